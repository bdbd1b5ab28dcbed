"""Fetch: a long poll that reads each byte once and leaves nothing behind when it ends.

1. Read what has changed, in order; the first partition with data ignores the limits.
2. Enough (min_bytes), an error, no time left, or a node that drains: answer.
3. Else subscribe to the logs just read, wait until one of them changes, and read on there.

Between two looks at a log's offsets, the second together with the subscription, nothing is awaited:
so no change falls between the read and the wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from streamlog.errors import (
    CorruptMessage,
    InvalidRecord,
    StoreUnavailable,
    StreamlogError,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from streamlog.log.api.abstract_log import AbstractLog, Isolation, LogFetch
from streamlog.model.partition import TopicPartition
from streamlog.runtime.buffers import Parts
from streamlog.runtime.offload import Lane
from streamlog.server.context import Operation, RequestContext, Resource, ResourceType
from streamlog.server.services.ports import check_partitions, opened_until
from streamlog.server.services.records.long_polls import LongPolls
from streamlog.server.services.records.partition_read import (
    PartitionRead,
    check_leader_epoch,
    divergence,
)
from streamlog.server.services.records.parts import RecordParts
from streamlog.server.services.records.positions import (
    ConsumerPositions,
    LogOffsets,
    ReadPosition,
    offsets_of,
)
from streamlog.server.services.records.requests import (
    FetchBounds,
    FetchCall,
    FetchTopicResult,
)
from streamlog.server.services.support.in_order import in_order
from streamlog.server.services.support.plain_records import decode_plain_records
from streamlog.server.services.support.topic_identity import check_topic_id, client_error, id_of
from streamlog.settings.limits import RECORDS_FORM_BYTES_MAX

WAIT_BESIDE_OTHERS_S = 1.0
"""How long open partitions of a request wait at most for those that are being opened, and in a
Kafka client's fetch for those whose records are in the store.

Records that can be read must not wait for a store that one other partition needs."""

TURN_BATCHES = 512
"""Batches of several partitions that are read before other work has its turn: about 1 ms."""
TURN_BYTES = 1 << 20
TURN_READS = 32
"""As much of them, and so many partitions with batches: less than 1 ms, also where each read opens
a file, and most of what there is in it comes out of the page cache."""
ANSWER_BATCHES_MAX = 4096
"""Batches after which no further partition finds room in an answer: what a consumer of tiny batches
does not read is then a few MiB, and its next request costs little beside them."""
SMALL_BYTES = 512
MANY_PIECES = 64
"""So many pieces, of this size or less on average, are joined: the copy costs less than to encode
and to send them one by one."""

AT_ONCE_MAX = 256
"""Partitions that are looked at before other work of the node has its turn: about 1 ms."""
REMOTE_AT_ONCE_MAX = 48
"""Reads of the remote tier that one request has under way, and as many that it has left behind
because they came too late: together fewer than the tier has room for (100,
`remote.log.reader.max.pending.tasks`), so that none of its own is refused."""


class _Poll:
    """One fetch under way: its bounds, and what it has read."""

    __slots__ = (
        "batches",
        "bytes_max",
        "context",
        "give_up",
        "is_complete",
        "is_without_room",
        "isolation",
        "late_deadline",
        "least_bytes",
        "max_bytes",
        "partitions",
        "read_deadline",
        "reads",
        "remote",
        "remote_is_first",
        "room",
        "seen",
        "size_bytes",
    )

    def __init__(
        self,
        context: RequestContext,
        bounds: FetchBounds,
        bytes_max: int,
        give_up: float,
    ) -> None:
        self.context = context
        self.isolation = bounds.isolation
        self.is_complete = bounds.is_complete
        self.is_without_room = False
        """A partition found no room in the answer, so the others would hardly find some."""
        self.partitions = bounds.partitions
        self.room = bounds.room
        self.bytes_max = bytes_max
        """Whatever room there is."""
        self.max_bytes = bytes_max
        """For those that are being read."""
        self.least_bytes = max(bounds.min_bytes, 1)
        self.give_up = give_up
        self.read_deadline: float | None = None
        """Until when a read may wait for the store; None: as long as the store is tried."""
        self.late_deadline: float | None = None
        """The same for a read that the records of other partitions wait for."""
        self.reads: dict[ReadPosition, PartitionRead] = {}
        self.size_bytes = 0
        self.batches = 0
        self.seen = 0
        self.remote = 0
        """Of the partitions that were seen those whose records are in a remote tier, until they are
        read."""
        self.remote_is_first = False
        """The first of all is one of these: the batch that is larger than the room is its."""

    def take_room(self, reads: Sequence[PartitionRead]) -> None:
        """These are about to be read: they may return so much, beside what there is."""
        if self.room is None:
            return
        more = sum(read.left_bytes for read in reads if read.log is not None and not read.is_full)
        wanted = min(self.size_bytes + more, self.bytes_max)
        granted = self.room.take(wanted)
        self.max_bytes = granted if granted < wanted else self.bytes_max

    def keep_room(self) -> None:
        """They have been read."""
        if self.room is not None:
            self.room.keep(self.size_bytes)

    @property
    def min_bytes(self) -> int:
        return min(self.least_bytes, self.max_bytes)

    @property
    def left_bytes(self) -> int:
        """Room in the answer. Those in a remote tier are read after all others, and keep their part
        of it: others could fill each answer."""
        bytes_max, batches_max = self.max_bytes, ANSWER_BATCHES_MAX
        if self.remote:
            local = self.seen - self.remote
            bytes_max = bytes_max * local // self.seen
            batches_max = batches_max * local // self.seen
        return bytes_max - self.size_bytes if self.batches < batches_max else 0

    def see(self, reads: Sequence[PartitionRead]) -> None:
        """Partitions that are about to be read."""
        remote = list(map(_is_remote, reads))
        if not self.seen and not self.size_bytes:
            self.remote_is_first = remote[0]
        self.seen += len(reads)
        self.remote += sum(remote)

    def read_of(self, position: ReadPosition) -> PartitionRead:
        read = self.reads.get(position)
        if read is None:
            read = self.reads[position] = PartitionRead(position, self.bytes_max)
        return read

    def is_answered_by(self, fresh: Sequence[PartitionRead], *, is_first: bool) -> bool:
        """Whether what was just read ends the wait."""
        if self.size_bytes >= self.min_bytes:
            return True
        full = [read for read in fresh if read.is_full]
        if not full:
            return False
        is_beside_others = is_first and len(full) < self.partitions
        return not (is_beside_others and all(read.is_absent for read in full))


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
        check_partitions(call.topics, self._limits.partitions_per_request_max)
        consumer = ConsumerPositions()
        topics = [
            [
                ReadPosition(
                    consumer,
                    TopicPartition(topic.topic, part.partition),
                    topic.topic_id,
                    part.offset,
                    part.max_bytes,
                    part.current_leader_epoch,
                )
                for part in topic.partitions
            ]
            for topic in call.topics
        ]
        max_bytes = call.max_bytes or self._limits.fetch_bytes_max
        if call.as_records:
            max_bytes = min(max_bytes, RECORDS_FORM_BYTES_MAX)
        bounds = FetchBounds(
            call.max_wait_ms, call.min_bytes, max_bytes, call.isolation, room=call.room
        )
        try:
            reads = await self.poll(context, consumer, consumer.begin(), bounds)
        finally:
            consumer.close(position for positions in topics for position in positions)
        if call.as_records:
            await self._decode_all(reads.values())
        self.count(context, reads.values())
        return [
            FetchTopicResult(topic.topic, [reads[position].result for position in positions])
            for topic, positions in zip(call.topics, topics, strict=True)
        ]

    async def poll(
        self,
        context: RequestContext,
        consumer: ConsumerPositions,
        turn: int,
        bounds: FetchBounds,
    ) -> dict[ReadPosition, PartitionRead]:
        """Reads the consumer's changed partitions, in the order in which it returns them.

        It waits for more as `bounds` say, and looks at no partition that does not change. The
        caller says what becomes of the partitions that were read (`ConsumerPositions.watch`, then
        `finish`); or else the consumer's next fetch reads them again, as it does when this one is
        cancelled. It also counts them (`count`). Errors: Superseded.
        """
        most = self._limits.fetch_bytes_max
        max_bytes = min(bounds.max_bytes or most, most)
        now = self._clock.monotonic()
        give_up = now + min(bounds.max_wait_ms, self._limits.fetch_wait_ms_max) / 1000
        if context.deadline is not None:
            give_up = min(give_up, context.deadline)
        poll = _Poll(context, bounds, max_bytes, give_up)
        if bounds.partitions:
            # Clients give a connection up that is silent for longer, with all its partitions.
            wait_s = self._limits.open_wait_ms / 1000
            poll.read_deadline = max(give_up, now + wait_s)
            poll.late_deadline = max(give_up, now + min(wait_s, WAIT_BESIDE_OTHERS_S))
        is_first = True
        while True:
            fresh: Sequence[PartitionRead] = ()
            if consumer.has_changed:
                fresh = await self._look(poll, consumer, turn)
                now = self._clock.monotonic()
            seconds = give_up - now
            if seconds <= 0 or self._polls.is_draining or consumer.is_closed:
                break
            if poll.is_answered_by(fresh, is_first=is_first):
                break
            is_first = False
            for read in fresh:
                if read.log is not None:
                    consumer.watch(turn, read.position, read.log, read.offsets)
            if not consumer.has_changed:
                await self._polls.until(consumer.waiter(turn), seconds)
                now = self._clock.monotonic()
        return poll.reads

    async def _look(
        self, poll: _Poll, consumer: ConsumerPositions, turn: int
    ) -> list[PartitionRead]:
        """Reads the partitions that have changed since the last look, a few at a time, so that a
        consumer of thousands does not hold up other requests; those in a remote tier after all
        others, together."""
        fresh: list[PartitionRead] = []
        remote: list[PartitionRead] = []
        while positions := consumer.take(turn, AT_ONCE_MAX):
            reads = [poll.read_of(position) for position in positions]
            await self._open(poll, reads)
            poll.see(reads)
            poll.take_room(reads)
            remote += await self._read(poll, reads)
            poll.keep_room()
            fresh += reads
            if not consumer.has_changed or (poll.is_without_room and not poll.is_complete):
                break
            await asyncio.sleep(0)
        poll.seen = poll.remote = 0
        if remote:
            poll.take_room(remote)
            await self._read_remote(poll, remote)
        if poll.remote_is_first:
            # Others may be left with a batch that had no room: it has some now, or waits for the
            # next fetch, and is the one that may be larger than the room if there is nothing yet.
            poll.remote_is_first = poll.is_without_room = False
            poll.take_room(fresh)
            remote = await self._read(poll, fresh)
            if remote:
                await self._read_remote(poll, remote)
        poll.keep_room()
        return fresh

    async def in_remote_tier(
        self, context: RequestContext, positions: Sequence[ReadPosition]
    ) -> set[ReadPosition]:
        """Those whose offset is no longer local here; it reads nothing. Partitions that cannot be
        opened within limits.open_wait_ms, or that the client may not read, are not among them."""
        bounds = FetchBounds(0, 0, 1, Isolation.READ_UNCOMMITTED, partitions=len(positions))
        poll = _Poll(context, bounds, 1, self._clock.monotonic())
        found: set[ReadPosition] = set()
        for first in range(0, len(positions), AT_ONCE_MAX):
            reads = [poll.read_of(one) for one in positions[first : first + AT_ONCE_MAX]]
            await self._open(poll, reads)
            found.update(
                read.position
                for read in reads
                if read.log is not None and read.log.is_remote(read.position.offset)
            )
            await asyncio.sleep(0)
        return found

    def count(self, context: RequestContext, reads: Iterable[PartitionRead]) -> None:
        """Counts what the client is handed of a `poll`."""
        size_bytes = 0
        for read in reads:
            result = read.result
            if result.size_bytes:
                size_bytes += result.size_bytes
                records = result.next_offset - read.start_offset
                self._metrics.fetched(read.position.key.topic, records, result.size_bytes)
        self._clients.took(context.client_id, size_bytes)

    async def _open(self, poll: _Poll, fresh: Sequence[PartitionRead]) -> None:
        """Finds the logs of partitions that this fetch has not looked at yet, and opens those that
        are closed; waits until the poll's end at least.

        A request without any open partition waits for limits.open_wait_ms: an answer at once would
        hold nothing but errors.
        """
        closed: list[PartitionRead] = []
        for read in fresh:
            if read.is_begun:
                continue
            read.is_begun = True
            try:
                log = self._logs.open_log(self._allowed_key(poll, read))
                if log is not None:
                    self._begin(read, log)
                else:
                    if poll.partitions:
                        self._check_known(read.position.key)
                    closed.append(read)
            except StreamlogError as error:
                read.fail(error)
        if not closed:
            return
        wait_s = self._limits.open_wait_ms / 1000
        if len(closed) < max(len(fresh), poll.partitions):
            wait_s = min(wait_s, WAIT_BESIDE_OTHERS_S)
        deadline = max(poll.give_up, self._clock.monotonic() + wait_s)
        if poll.context.deadline is not None:
            deadline = min(deadline, poll.context.deadline)
        await in_order([self._open_one(read, deadline) for read in closed])

    def _allowed_key(self, poll: _Poll, read: PartitionRead) -> TopicPartition:
        """The partition's name, found by the topic's id where that is all there is.

        Errors: UnknownTopicId, Unauthorized.
        """
        position = read.position
        if position.topic_id and not position.key.topic:
            topic = self._logs.topic_by_id(position.topic_id)
            if topic is None:
                raise UnknownTopicId(
                    f"no topic has the id {position.topic_id}; look it up again",
                    topic_id=position.topic_id,
                )
            position.key = TopicPartition(topic.name, position.key.partition)
        resource = Resource(ResourceType.TOPIC, position.key.topic)
        self._authorize(poll.context, Operation.READ, resource)
        return position.key

    def _check_known(self, key: TopicPartition) -> None:
        """A consumer that asks for a deleted topic again and again costs no look into the store.

        Errors: UnknownTopicOrPartition.
        """
        topic = self._logs.topic(key.topic)
        if topic is None or not 0 <= key.partition < topic.partitions:
            raise UnknownTopicOrPartition(
                f"this node knows no partition {key}; look the topic up again",
                topic=key.topic,
                partition=key.partition,
            )

    async def _open_one(self, read: PartitionRead, deadline: float) -> None:
        key = read.position.key
        try:
            self._begin(read, await opened_until(deadline, self._clock, self._logs.log(key), key))
        except StreamlogError as error:
            read.fail(error)

    def _begin(self, read: PartitionRead, log: AbstractLog) -> None:
        """Errors: UnknownTopicId, InconsistentTopicId, EpochFenced, UnknownLeaderEpoch,
        OffsetOutOfRange."""
        position, read.log = read.position, log
        topic, partition = position.key
        check_topic_id(self._logs, topic, partition, position.topic_id)
        read.topic_id = position.topic_id or id_of(self._logs, topic)
        check_leader_epoch(log, position.current_leader_epoch)
        read.result.diverging = divergence(log, position.last_fetched_epoch, position.offset)
        if read.result.diverging is not None:
            read.saw(offsets_of(log))
            read.is_full = True

    async def _read(self, poll: _Poll, fresh: Sequence[PartitionRead]) -> list[PartitionRead]:
        """Reads on in every partition but those in a remote tier, which it returns."""
        turn = 0.0
        remote: list[PartitionRead] = []
        for read in fresh:
            if turn >= 1:
                turn = 0.0
                await asyncio.sleep(0)
            log, result = read.log, read.result
            if log is None or read.is_full:
                continue
            if _is_remote(read):
                remote.append(read)
                continue
            left = poll.left_bytes
            room = min(left, read.left_bytes)
            is_cold = poll.is_without_room and log.is_cold(result.next_offset)
            if poll.size_bytes and (room <= 0 or is_cold):
                read.is_full = True
                poll.is_without_room = poll.is_without_room or left <= 0
                if read.offsets.high_watermark < 0:
                    read.saw(offsets_of(log))
                continue
            try:
                fetched = await log.fetch(
                    result.next_offset,
                    max(room, 0),
                    min_one_batch=poll.size_bytes == 0 and not poll.remote_is_first,
                    isolation=poll.isolation,
                    deadline=poll.late_deadline if poll.size_bytes else poll.read_deadline,
                )
            except StreamlogError as error:
                if self._is_merely_late(poll, error):
                    # It does not hold back the records of others; the next fetch may read it.
                    read.saw(offsets_of(log))
                    read.is_full = True
                    continue
                self._fail(read, log, error)
                continue
            self._take(poll, read, fetched)
            if fetched.batches or read.is_full:
                turn += fetched.batches / TURN_BATCHES + fetched.size_bytes / TURN_BYTES
                turn += 1 / TURN_READS
        return remote

    def _fail(self, read: PartitionRead, log: AbstractLog, error: StreamlogError) -> None:
        # A client that is out of range learns the range (KIP-392 case 3).
        read.saw(offsets_of(log))
        read.fail(client_error(error, self._logs, *read.position.key, read.topic_id))

    async def _read_remote(self, poll: _Poll, reads: Sequence[PartitionRead]) -> None:
        """Beside each other, so that a slow one holds up none of the others, each with its part of
        the room. One of them may return a batch that is larger than its part, unless a local one
        may: the first, or else the first that can.

        Where the local records suffice for an answer, the others take what is in memory, and what
        comes later is there for the client's next fetch. One that has nothing by the deadline is
        answered empty, and when there are many such so are those behind it.
        """
        share = max(poll.left_bytes, 0) // len(reads)
        deadline = poll.read_deadline
        if poll.size_bytes >= poll.min_bytes:
            deadline = self._clock.monotonic()
        takes_any = poll.size_bytes == 0
        late = 0

        async def one(
            read: PartitionRead, until: float | None, *, takes_one: bool
        ) -> LogFetch | StreamlogError | None:
            nonlocal late
            assert read.log is not None
            if late >= REMOTE_AT_ONCE_MAX:
                return None
            try:
                found = await read.log.fetch(
                    read.result.next_offset,
                    min(share, read.left_bytes),
                    min_one_batch=takes_one,
                    isolation=poll.isolation,
                    deadline=until,
                )
            except StreamlogError as error:
                return error
            # Not one whose part of the room is smaller than its batch.
            late += found.is_paced and not found.size_bytes
            return found

        first = reads[0] if takes_any or poll.remote_is_first else None
        work = [one(read, deadline, takes_one=read is first) for read in reads]
        for read, result in zip(reads, await in_order(work, REMOTE_AT_ONCE_MAX), strict=True):
            self._take_remote(poll, read, result)
        now, late = self._clock.monotonic(), 0
        for read in reads[1:]:
            if not takes_any or poll.size_bytes:
                break
            if read.result.error is None:
                self._take_remote(poll, read, await one(read, now, takes_one=True))

    def _take_remote(
        self, poll: _Poll, read: PartitionRead, result: LogFetch | StreamlogError | None
    ) -> None:
        """`result` None: it was not tried."""
        assert read.log is not None
        if isinstance(result, StreamlogError):
            self._fail(read, read.log, result)
            return
        if result is None:
            read.saw(offsets_of(read.log))
        else:
            self._take(poll, read, result)
        read.is_full = True

    def _is_merely_late(self, poll: _Poll, error: StreamlogError) -> bool:
        """Whether a read was cut off because records of other partitions waited for it."""
        return (
            poll.late_deadline is not None
            and poll.size_bytes > 0
            and isinstance(error, StoreUnavailable)
            and self._clock.monotonic() >= poll.late_deadline
        )

    @staticmethod
    def _take(poll: _Poll, read: PartitionRead, fetched: LogFetch) -> None:
        read.saw(
            LogOffsets(fetched.high_watermark, fetched.last_stable_offset, fetched.log_start_offset)
        )
        result = read.result
        if fetched.size_bytes:
            read.parts.extend(_pieces(fetched))
            result.parts = read.parts
            if fetched.aborted:
                # One that overlaps two reads is told by both.
                result.aborted = tuple(dict.fromkeys((*result.aborted, *fetched.aborted)))
            result.size_bytes += fetched.size_bytes
            poll.size_bytes += fetched.size_bytes
            poll.batches += fetched.batches
        # Also without batches: a cleaning may have left none in between.
        result.next_offset = fetched.next_offset
        is_committed = poll.isolation is Isolation.READ_COMMITTED
        visible = fetched.last_stable_offset if is_committed else fetched.high_watermark
        # More is there that had no room, or other readers go first.
        is_cut = bool(poll.size_bytes) and fetched.next_offset < visible
        if fetched.is_paced or is_cut:
            read.is_full = True
        left = poll.left_bytes
        has_no_room = is_cut and not fetched.size_bytes and not fetched.is_paced
        if has_no_room and left <= read.left_bytes:
            poll.is_without_room = True

    async def _decode_all(self, reads: Iterable[PartitionRead]) -> None:
        room = RECORDS_FORM_BYTES_MAX
        for read in reads:
            if read.parts:
                room -= await self._decode(read, max(0, room))

    async def _decode(self, read: PartitionRead, room_bytes: int) -> int:
        """Batches become records, or the partition's own error; bytes used."""
        result = read.result
        aborted, result.aborted = result.aborted, ()
        result.parts = ()
        try:
            result.records, result.next_offset, used = await self._offload.run(
                Lane.CPU,
                decode_plain_records,
                read.parts,
                read.start_offset,
                room_bytes,
                result.next_offset,
                self._record_bytes_max,
                aborted,
            )
        except (CorruptMessage, InvalidRecord) as error:
            result.error = error
            return 0
        return used


def _is_remote(read: PartitionRead) -> bool:
    log = read.log
    if log is None or read.is_full or not log.has_tier:
        return False
    return log.is_remote(read.result.next_offset)


def _pieces(fetched: LogFetch) -> Parts:
    """The batches as they are in memory, or as one piece where they are many and small."""
    parts = fetched.parts
    if len(parts) > MANY_PIECES and fetched.size_bytes <= SMALL_BYTES * len(parts):
        return (b"".join(parts),)
    return parts
