"""SharedLogFactory: creates, opens and deletes partitions on streams, and deletes orphans.

A partition's four streams are created by one commit, which also holds the first meta record. Their
tags (`stream_tags`) name the partition, so that orphans, streams that no record names, can be
recognised and deleted.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence, Set
from dataclasses import dataclass, field
from typing import TypeVar
from uuid import UUID

from streamlog.errors import (
    Conflict,
    MessageTooLarge,
    NotLeader,
    OutcomeUnknown,
    StreamFenced,
    StreamlogError,
    StreamNotFound,
)
from streamlog.log.api.abstract_log import AbstractLog
from streamlog.log.api.environment import LogEnvironment
from streamlog.log.api.log_factory import LogFailed, TopicIdentity
from streamlog.log.api.topic_config import TopicConfig, overrides
from streamlog.log.shared.meta.codec import OPEN_END, Description, SegmentOpened, encode_entry
from streamlog.log.shared.meta.log import MetaLog
from streamlog.log.shared.shared_log import SharedLog
from streamlog.log.stream_tags import ROLES, belongs_to_log, tags_of
from streamlog.model.batch import (
    CreateStreamOptions,
    OpenStreamOptions,
    RecordBatch,
    StreamDescription,
    StreamSlice,
    StreamState,
)
from streamlog.model.partition import TopicPartition
from streamlog.model.stream import Stream, StreamClient
from streamlog.runtime.clock import Clock
from streamlog.runtime.concurrency.gather import gather_all

log = logging.getLogger(__name__)

T = TypeVar("T")

PARTITIONS_PER_COMMIT = 256
"""Partitions created by one commit; fewer where a commit record cannot hold so many names."""
REMOVED_AT_ONCE = 64
DESCRIBED_AT_ONCE = 256
"""Streams that are described before other tasks get a turn: about 2 ms."""
PAGE = 1000
LISTING_S = 5.0
"""How long a listing of all streams serves: a node may be told the leaders of thousands."""


@dataclass(slots=True)
class _Attempt:
    """Streams of one partition that one attempt created."""

    meta_stream_id: int = 0
    stream_ids: list[int] = field(default_factory=list)


class _SplitPartitions:
    """Streams that this process holds of partitions whose meta streams another one has.

    A leader that dies while it takes a dead node's partition has taken the meta stream, and left
    the others. The dead node's next process takes what is left, and nobody else can open it. The
    meta stream would name the others, and is read by its holder alone; so they are found by their
    tags, in one listing for all partitions that are asked for once.
    """

    def __init__(self, streams: StreamClient, clock: Clock) -> None:
        self._streams = streams
        self._clock = clock
        self._listed_at = 0.0
        self._asked: set[int] | None = None
        """Meta streams that were asked for since the last listing; None: there was none."""
        self._found: dict[int, list[int]] = {}
        """By meta stream: streams that are open with another holder."""
        self._listing = asyncio.Lock()

    async def streams_beside(self, meta_stream_id: int) -> list[int]:
        """Open streams of the partition with another holder than its meta stream; perhaps not ours.

        It looks anew where it looked LISTING_S ago, or is asked for the same partition again.
        """
        async with self._listing:
            now = self._clock.monotonic()
            is_old = now - self._listed_at >= LISTING_S
            if self._asked is None or meta_stream_id in self._asked or is_old:
                self._listed_at = now
                self._found = await self._list()
                self._asked = set()
            self._asked.add(meta_stream_id)
            return self._found.pop(meta_stream_id, [])

    async def _list(self) -> dict[int, list[int]]:
        partitions: defaultdict[tuple[str, str], list[StreamDescription]] = defaultdict(list)
        async for stream in _every_stream(self._streams):
            if belongs_to_log(stream.tags):
                partitions[stream.tags["attempt"], stream.tags["partition"]].append(stream)
        found: dict[int, list[int]] = {}
        for streams in partitions.values():
            for meta in streams:
                if meta.tags["role"] == "meta":
                    found[meta.stream_id] = [
                        one.stream_id for one in streams if _is_beside(one, meta)
                    ]
        return {meta: beside for meta, beside in found.items() if beside}


async def _every_stream(streams: StreamClient) -> AsyncIterator[StreamDescription]:
    after = 0
    while page := await streams.list_streams(after=after, limit=PAGE):
        for stream in page:
            yield stream
        after = page[-1].stream_id
        await asyncio.sleep(0)


def _is_beside(stream: StreamDescription, meta: StreamDescription) -> bool:
    has_another = meta.state is not StreamState.OPEN or stream.holder != meta.holder
    return stream.state is StreamState.OPEN and has_another


class SharedLogFactory:
    """Handles are ids of meta streams."""

    def __init__(self, streams: StreamClient, environment: LogEnvironment) -> None:
        self._streams = streams
        self._environment = environment
        self._fresh: dict[int, dict[int, int]] = {}
        """Meta stream id → epochs of a partition's streams that this process created and holds."""
        self._split = _SplitPartitions(streams, environment.clock)

    def check(self, config: TopicConfig, before: TopicConfig | None) -> None:
        """As LogFactory.check: it follows whatever is accepted."""

    async def create(
        self, topic: TopicIdentity, partitions: Sequence[int], config: TopicConfig
    ) -> list[int]:
        handles: list[int] = []
        at_once = PARTITIONS_PER_COMMIT
        try:
            while len(handles) < len(partitions):
                chunk = partitions[len(handles) : len(handles) + at_once]
                try:
                    handles += await self._create_chunk(topic, chunk, config)
                except MessageTooLarge:
                    # The commit was refused as a whole: long names, or a lower bound.
                    if len(chunk) == 1:
                        raise
                    at_once = len(chunk) // 2
        except StreamlogError:
            await self._remove_created(topic, handles)
            raise
        return handles

    async def _remove_created(self, topic: TopicIdentity, handles: Sequence[int]) -> None:
        """Removes the first partitions of a topic whose later ones could not be created."""
        try:
            for start in range(0, len(handles), REMOVED_AT_ONCE):
                await gather_all(
                    self.remove(one) for one in handles[start : start + REMOVED_AT_ONCE]
                )
        except StreamlogError as error:
            log.warning(
                "partitions of a topic that was not created stay until the next start: %s",
                error,
                extra={"topic": topic.name},
            )

    async def _create_chunk(
        self, topic: TopicIdentity, partitions: Sequence[int], config: TopicConfig
    ) -> list[int]:
        options = [
            CreateStreamOptions(tags=tags_of(topic, partition, role))
            for partition in partitions
            for role in ROLES
        ]
        now_ms = self._environment.clock.now_ms()

        def first_batches(ids: Sequence[int]) -> list[tuple[int, RecordBatch]]:
            return [
                (meta, _first_batch(topic, partition, config, now_ms, data, time, txn))
                for partition, (meta, data, time, txn) in zip(partitions, _fours(ids), strict=True)
            ]

        created = await self._streams.create_and_open_streams(options, first_batches)
        handles = []
        for four in _fours(created):
            handles.append(four[0].stream_id)
            self._fresh[four[0].stream_id] = {
                stream.stream_id: stream.stream_epoch for stream in four
            }
        return handles

    async def check_created(self, handles: Sequence[int]) -> None:
        """As LogFactory.check_created. The first look counts all changes of other nodes up to now;
        descriptions know them from then on."""
        # Read before the first wait: an open of the partition takes its epochs away.
        created = [
            (handle, self._fresh[handle][handle]) for handle in handles if handle in self._fresh
        ]
        try:
            if created:
                await self._look_now(created[0][0])
            for number, (handle, epoch) in enumerate(created, start=1):
                described = await self._streams.describe_stream(handle)
                if described.epoch != epoch:
                    raise _taken_over()
                if number % DESCRIBED_AT_ONCE == 0:
                    await asyncio.sleep(0)
        except StreamNotFound as error:
            raise _taken_over() from error

    async def _look_now(self, stream_id: int) -> None:
        """Returns if the stream is there, with other nodes' changes up to now. Errors:
        StreamNotFound."""
        # An open at epoch 0, which every stream is past, changes nothing.
        with contextlib.suppress(Conflict, StreamFenced):
            await self._streams.open_stream(stream_id, OpenStreamOptions(epoch=0))

    async def open(
        self, partition: TopicPartition, handle: int, config: TopicConfig, on_failure: LogFailed
    ) -> AbstractLog:
        epochs = self._fresh.pop(handle, {})
        try:
            return await SharedLog.open(
                self._streams,
                partition,
                handle,
                config,
                self._environment,
                on_failure=on_failure,
                epochs=epochs,
            )
        except Conflict as error:
            raise NotLeader(f"{partition} is led by another node: {error}") from error

    async def is_there(self, handle: int) -> bool:
        try:
            await self._streams.describe_stream(handle)
        except StreamNotFound:
            # Another node may have created it a moment ago, which only an open is sure to see.
            try:
                await self._look_now(handle)
            except StreamNotFound:
                return False
        return True

    async def claim(self, partition: TopicPartition, topic_id: UUID, handle: int) -> bool:
        """As LogFactory.claim. A record that comes while the orphan is being deleted is told by the
        open, which finds nothing."""
        return await self.is_there(handle)

    async def remove(self, handle: int) -> None:
        """As LogFactory.remove. The meta stream goes last: a call cut short can be repeated."""
        epochs = self._fresh.pop(handle, {})
        try:
            meta = await self._open(handle, epochs)
        except StreamNotFound:
            return
        except Conflict as error:
            raise NotLeader(f"a partition to be deleted is led elsewhere: {error}") from error
        replayed = await MetaLog.replay(meta, self._environment.clock, 0)
        await gather_all(
            self._delete_stream(stream_id) for stream_id in sorted(replayed.other_stream_ids)
        )
        await meta.destroy()

    async def release(self, handle: int) -> None:
        """As LogFactory.release. The meta stream goes last: a call cut short can be repeated."""
        self._fresh.pop(handle, None)
        meta = await self._held(handle)
        if meta is None:
            await self._close_held(await self._split.streams_beside(handle))
            return
        replayed = await MetaLog.replay(meta, self._environment.clock, 0)
        await self._close_held(sorted(replayed.other_stream_ids))
        await meta.close()

    async def _close_held(self, stream_ids: Sequence[int]) -> None:
        streams = await gather_all(self._held(stream_id) for stream_id in stream_ids)
        await gather_all(stream.close() for stream in streams if stream is not None)

    async def _held(self, stream_id: int) -> Stream | None:
        """The stream, if this process holds it: an open at the stream's own epoch moves nothing."""
        try:
            described = await self._streams.describe_stream(stream_id)
            if described.state is not StreamState.OPEN:
                return None
            options = OpenStreamOptions(epoch=described.epoch)
            return await self._streams.open_stream(stream_id, options)
        except (Conflict, StreamFenced, StreamNotFound):
            return None

    async def _open(self, stream_id: int, epochs: dict[int, int]) -> Stream:
        options = OpenStreamOptions(epoch=epochs.get(stream_id))
        return await self._streams.open_stream(stream_id, options)

    async def _delete_stream(self, stream_id: int) -> None:
        try:
            await self._streams.delete_stream(stream_id)
        except StreamNotFound:
            log.debug("stream is gone already", extra={"stream_id": stream_id})

    async def delete_orphans(
        self,
        attempts_under_way: Callable[[], Set[str]],
        registered: Callable[[], Awaitable[Set[int]]],
    ) -> int:
        """As LogFactory.delete_orphans.

        Streams are listed before registrations are read, so that no listed partition is registered
        unseen.
        """
        attempts = await self._list_attempts()
        under_way = set(attempts_under_way())
        handles = await registered()
        deleted = 0
        for (partition, name), attempt in attempts.items():
            if name not in under_way and attempt.meta_stream_id not in handles:
                deleted += await self._delete_orphan(partition, attempt, registered)
        return deleted

    async def _list_attempts(self) -> dict[tuple[str, str], _Attempt]:
        attempts: dict[tuple[str, str], _Attempt] = {}
        async for stream in _every_stream(self._streams):
            _note(attempts, stream)
        return attempts

    async def _delete_orphan(
        self,
        partition: str,
        attempt: _Attempt,
        registered: Callable[[], Awaitable[Set[int]]],
    ) -> int:
        """Opens the meta stream first, which fails while a living node, its creator, holds it.

        The meta stream is also deleted first: a topic record that arrives late finds no partition.
        """
        if attempt.meta_stream_id:
            try:
                await self._streams.open_stream(attempt.meta_stream_id, OpenStreamOptions())
            except (Conflict, StreamNotFound):
                return 0
            if attempt.meta_stream_id in await registered():
                return 0
            await self._delete_stream(attempt.meta_stream_id)
        rest = [
            stream_id for stream_id in attempt.stream_ids if stream_id != attempt.meta_stream_id
        ]
        await gather_all(self._delete_stream(stream_id) for stream_id in rest)
        log.info(
            "removed streams that no topic names",
            extra={"partition": partition, "stream_ids": attempt.stream_ids},
        )
        return 1


def _taken_over() -> OutcomeUnknown:
    return OutcomeUnknown(
        "another process took the topic's partitions over while they were created: look whether "
        "the topic is there, and create it again if it is not"
    )


def _note(attempts: dict[tuple[str, str], _Attempt], stream: StreamDescription) -> None:
    tags = stream.tags
    if not belongs_to_log(tags):
        return
    key = (f"{tags.get('topic')}-{tags.get('partition')}", tags["attempt"])
    attempt = attempts.setdefault(key, _Attempt())
    attempt.stream_ids.append(stream.stream_id)
    if tags["role"] == "meta":
        attempt.meta_stream_id = stream.stream_id


def _first_batch(
    topic: TopicIdentity,
    partition: int,
    config: TopicConfig,
    now_ms: int,
    data: int,
    time: int,
    txn: int,
) -> RecordBatch:
    described = Description(
        topic.name, topic.topic_id, partition, data, time, txn, overrides(config)
    )
    opened = SegmentOpened(
        0,
        now_ms,
        StreamSlice(data, 0, OPEN_END),
        StreamSlice(time, 0, OPEN_END),
        StreamSlice(txn, 0, OPEN_END),
    )
    return RecordBatch(1, now_ms, (encode_entry((described, opened)),))


def _fours(items: Sequence[T]) -> list[tuple[T, T, T, T]]:
    return [(items[i], items[i + 1], items[i + 2], items[i + 3]) for i in range(0, len(items), 4)]
