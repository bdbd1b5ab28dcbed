"""Fetch: a long poll that reads each byte once and leaves nothing behind when it ends.

1. Read what is there, in request order; the first partition with data ignores the limits.
2. Enough (min_bytes), an error, no time left, or a node that drains: answer.
3. Else wait until some partition's visible end passes the offset read to, and read on from there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from typing import Any

from streamlog.errors import (
    CorruptMessage,
    EpochFenced,
    InvalidRecord,
    StreamlogError,
    UnknownLeaderEpoch,
)
from streamlog.log.api.abstract_log import AbstractLog, Isolation, LogFetch
from streamlog.model.partition import TopicPartition
from streamlog.runtime.buffers import Buffer
from streamlog.runtime.offload import Lane
from streamlog.runtime.progress import Due
from streamlog.server.context import Operation, RequestContext, Resource, ResourceType
from streamlog.server.services.ports import check_partitions, opened_until
from streamlog.server.services.records.parts import RecordParts
from streamlog.server.services.records.requests import (
    FetchCall,
    FetchPartition,
    FetchPartitionResult,
    FetchTopic,
    FetchTopicResult,
)
from streamlog.server.services.support.in_order import in_order
from streamlog.server.services.support.plain_records import decode_plain_records
from streamlog.server.services.support.topic_identity import check_topic_id, client_error, id_of
from streamlog.settings.limits import RECORDS_FORM_BYTES_MAX

log = logging.getLogger(__name__)

OPEN_WAIT_BESIDE_OTHERS_S = 1.0
"""How long open partitions of a request wait at most for those that are being opened.

Records that can be read must not wait for a store that one other partition needs."""


def check_leader_epoch(leader: AbstractLog, current: int | None) -> None:
    """KIP-320. Errors: EpochFenced, UnknownLeaderEpoch."""
    if current is None or current == leader.leader_epoch:
        return
    epochs = f"{leader.topic_partition}: the caller knows leader epoch {current}, this node is at "
    if current < leader.leader_epoch:
        raise EpochFenced(
            f"{epochs}{leader.leader_epoch}; refresh the metadata", leader_epoch=leader.leader_epoch
        )
    raise UnknownLeaderEpoch(
        f"{epochs}{leader.leader_epoch}; retry until it has caught up",
        leader_epoch=leader.leader_epoch,
    )


class LongPolls:
    """The requests that wait for new records. A draining node ends their waits at once."""

    def __init__(self) -> None:
        self._waiting: set[asyncio.Future[None]] = set()
        self._late: dict[asyncio.Future[None], None] = {}
        """Waits whose time is over and that have not ended; each stays here for a moment only."""
        self.is_draining = False

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def progress(self) -> Due | None:
        """A long poll that should have been answered."""
        oldest = next(iter(self._late), None)
        if oldest is None:
            return None
        return Due(oldest, f"{len(self._late)} long polls to end, whose time is over")

    def drain(self) -> None:
        """Ends all waits, and those to come at once."""
        self.is_draining = True
        for waiter in self._waiting:
            _wake(waiter)

    async def wait(self, watches: Sequence[Coroutine[Any, Any, object]], seconds: float) -> None:
        """Returns when one of the watches ends, after `seconds`, or on drain; ends the watches.

        A watch that fails ends the wait too: the read that follows raises the same error.
        """
        if self.is_draining:
            for watch in watches:
                watch.close()
            return
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        self._waiting.add(waiter)
        timer = loop.call_later(seconds, self._time_is_over, waiter)
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(_watch(watch, waiter)) for watch in watches]
                await waiter
                for task in tasks:
                    task.cancel()
        finally:
            timer.cancel()
            self._waiting.discard(waiter)
            self._late.pop(waiter, None)

    def _time_is_over(self, waiter: asyncio.Future[None]) -> None:
        self._late[waiter] = None
        _wake(waiter)


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


async def _watch(watch: Coroutine[Any, Any, object], waiter: asyncio.Future[None]) -> None:
    try:
        await watch
    except StreamlogError as error:
        log.debug("a watch ended early", extra={"error": str(error)})
    finally:
        _wake(waiter)


class _Progress:
    """One partition of a fetch, and its records so far."""

    __slots__ = (
        "current_leader_epoch",
        "is_full",
        "log",
        "max_bytes",
        "parts",
        "result",
        "topic",
        "topic_id",
    )

    def __init__(self, topic: FetchTopic, wanted: FetchPartition, max_bytes: int) -> None:
        self.topic = topic.topic
        self.topic_id = topic.topic_id
        self.current_leader_epoch = wanted.current_leader_epoch
        self.max_bytes = min(wanted.max_bytes or max_bytes, max_bytes)
        self.log: AbstractLog | None = None
        self.parts: list[Buffer] = []
        self.is_full = False
        self.result = FetchPartitionResult(wanted.partition, wanted.offset)

    def fail(self, error: StreamlogError) -> None:
        """Ends the partition's reading. Records already read are answered without the error, which
        the next fetch raises."""
        self.is_full = True
        if not self.parts:
            self.result.error = error


class FetchService:
    """`record_bytes_max`: what a record may expand to where plain records are asked for."""

    def __init__(self, parts: RecordParts, polls: LongPolls, *, record_bytes_max: int) -> None:
        self._logs = parts.logs
        self._clients = parts.clients
        self._offload = parts.offload
        self._clock = parts.clock
        self._authorize = parts.authorize
        self._limits = parts.limits
        self._metrics = parts.topics
        self._polls = polls
        self._record_bytes_max = record_bytes_max

    async def fetch(self, context: RequestContext, call: FetchCall) -> list[FetchTopicResult]:
        """In request order. Cancellation leaves nothing behind. Errors: Invalid."""
        max_bytes = min(
            call.max_bytes or self._limits.fetch_bytes_max, self._limits.fetch_bytes_max
        )
        if call.as_records:
            max_bytes = min(max_bytes, RECORDS_FORM_BYTES_MAX)
        topics = self._begin(call, max_bytes)
        partitions = [part for _, parts in topics for part in parts]
        min_bytes = min(max(call.min_bytes, 1), max_bytes)
        wait_ms = min(call.max_wait_ms, self._limits.fetch_wait_ms_max)
        give_up = self._clock.monotonic() + wait_ms / 1000
        if context.deadline is not None:
            give_up = min(give_up, context.deadline)
        await self._open(context, partitions, give_up)
        while True:
            size = await self._read(partitions, max_bytes, call.isolation)
            seconds = give_up - self._clock.monotonic()
            if size >= min_bytes or seconds <= 0 or self._polls.is_draining:
                break
            if any(part.result.error is not None or part.is_full for part in partitions):
                break
            watches = [
                part.log.wait_for(part.result.next_offset, call.isolation)
                for part in partitions
                if part.log is not None
            ]
            await self._polls.wait(watches, seconds)
        self._clients.took(context.client_id, size)
        return await self._finish(topics, call)

    def _begin(self, call: FetchCall, max_bytes: int) -> list[tuple[str, list[_Progress]]]:
        check_partitions(call.topics, self._limits.partitions_per_request_max)
        return [
            (topic.topic, [_Progress(topic, part, max_bytes) for part in topic.partitions])
            for topic in call.topics
        ]

    async def _open(
        self, context: RequestContext, partitions: list[_Progress], give_up: float
    ) -> None:
        """Opens the partitions; waits until `give_up` at least.

        A request without any open partition waits for limits.open_wait_ms: an answer at once would
        hold nothing but errors.
        """
        closed: list[_Progress] = []
        for part in partitions:
            if self._logs.open_log(TopicPartition(part.topic, part.result.partition)) is None:
                closed.append(part)
            else:
                await self._open_one(context, part, give_up)
        if not closed:
            return
        wait_s = self._limits.open_wait_ms / 1000
        if len(closed) < len(partitions):
            wait_s = min(wait_s, OPEN_WAIT_BESIDE_OTHERS_S)
        deadline = max(give_up, self._clock.monotonic() + wait_s)
        if context.deadline is not None:
            deadline = min(deadline, context.deadline)
        await in_order([self._open_one(context, part, deadline) for part in closed])

    async def _open_one(self, context: RequestContext, part: _Progress, deadline: float) -> None:
        try:
            self._authorize(context, Operation.READ, Resource(ResourceType.TOPIC, part.topic))
            key = TopicPartition(part.topic, part.result.partition)
            part.log = self._logs.open_log(key)
            if part.log is None:
                part.log = await opened_until(deadline, self._clock, self._logs.log(key), key)
            check_topic_id(self._logs, part.topic, part.result.partition, part.topic_id)
            part.topic_id = part.topic_id or id_of(self._logs, part.topic)
            check_leader_epoch(part.log, part.current_leader_epoch)
        except StreamlogError as error:
            part.fail(error)

    async def _read(self, partitions: list[_Progress], max_bytes: int, isolation: Isolation) -> int:
        """Reads on in every partition; bytes in the answer so far."""
        size = sum(part.result.size_bytes for part in partitions)
        for part in partitions:
            source = part.log
            if source is None or part.is_full:
                continue
            room = min(max_bytes - size, part.max_bytes - part.result.size_bytes)
            if size and room <= 0:
                part.is_full = True
                continue
            try:
                read = await source.fetch(
                    part.result.next_offset,
                    max(room, 0),
                    min_one_batch=size == 0,
                    isolation=isolation,
                    deadline=None,
                )
            except StreamlogError as error:
                self._set_offsets(part, source)
                result = part.result
                part.fail(
                    client_error(error, self._logs, part.topic, result.partition, part.topic_id)
                )
                continue
            result = part.result
            result.high_watermark = read.high_watermark
            result.last_stable_offset = read.last_stable_offset
            result.log_start_offset = read.log_start_offset
            if read.size_bytes:
                part.parts.extend(read.parts)
                result.aborted += tuple(a for a in read.aborted if a not in result.aborted)
                result.size_bytes += read.size_bytes
                result.next_offset = read.next_offset
                size += read.size_bytes
            is_left_out = not read.size_bytes and read.next_offset < self._visible(read, isolation)
            # The next batch does not fit into the room left, or other readers go first.
            if read.is_paced or (size and is_left_out):
                part.is_full = True
        return size

    @staticmethod
    def _visible(read: LogFetch, isolation: Isolation) -> int:
        if isolation is Isolation.READ_COMMITTED:
            return read.last_stable_offset
        return read.high_watermark

    @staticmethod
    def _set_offsets(part: _Progress, source: AbstractLog) -> None:
        """A client that is out of range learns the range (KIP-392 case 3)."""
        part.result.high_watermark = source.high_watermark
        part.result.last_stable_offset = source.last_stable_offset
        part.result.log_start_offset = source.log_start_offset

    async def _finish(
        self, topics: list[tuple[str, list[_Progress]]], call: FetchCall
    ) -> list[FetchTopicResult]:
        room = RECORDS_FORM_BYTES_MAX
        starts = [part.offset for topic in call.topics for part in topic.partitions]
        position = 0
        for topic, parts in topics:
            for part in parts:
                result = part.result
                result.parts = part.parts
                if call.as_records and part.parts:
                    room -= await self._decode(part, starts[position], max(0, room))
                if result.size_bytes:
                    records = result.next_offset - starts[position]
                    self._metrics.fetched(topic, records, result.size_bytes)
                position += 1
        return [FetchTopicResult(topic, [part.result for part in parts]) for topic, parts in topics]

    async def _decode(self, part: _Progress, start_offset: int, room_bytes: int) -> int:
        """Batches become records, or the partition's own error; bytes used."""
        result = part.result
        result.parts = ()
        try:
            result.records, result.next_offset, used = await self._offload.run(
                Lane.CPU,
                decode_plain_records,
                part.parts,
                start_offset,
                room_bytes,
                result.next_offset,
                self._record_bytes_max,
            )
        except (CorruptMessage, InvalidRecord) as error:
            result.error = error
            return 0
        return used
