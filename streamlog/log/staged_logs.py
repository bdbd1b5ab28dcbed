"""Staged writes to partitions: record batches stored unseen, then committed to many logs at once.

1. `stage` validates batches as an append does, but gives them neither offsets nor producer state.
2. `commit` takes the turn of every log, in the order of their names, so that nothing is appended to
   them meanwhile. It attaches all batches by one step of the medium, accounts for them in each log,
   then shows them to readers.
3. A log that cannot account for its batches fails and is opened again: the commit stands.
4. `attach` does the same for batches of an open transaction: the transaction's end shows them to
   `read_committed` readers, in the logs of all leaders. What was staged for a producer's
   transaction is kept under the name of its id and epoch, so that no other transaction takes it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass
from operator import index
from typing import NamedTuple, Protocol, cast, runtime_checkable

from streamlog.errors import (
    Closed,
    Conflict,
    Invalid,
    InvalidTxnState,
    PolicyViolation,
    StreamlogError,
)
from streamlog.log.api.abstract_log import AbstractLog
from streamlog.log.api.internal_topics import check_not_internal
from streamlog.model.batch import BatchAttributes, RecordBatch
from streamlog.model.partition import TopicPartition
from streamlog.model.staging import AttachedRow, StagedStreams, UnattachedObject, maybe_attached
from streamlog.runtime.buffers import Buffer
from streamlog.runtime.concurrency.background import Background
from streamlog.runtime.concurrency.gather import gather_all

_LOGS_AT_ONCE = 128
"""Logs that a loop handles before other tasks get a turn."""
_READY_AT_ONCE = 256
"""Logs that get ready together: they may share a sync, or an upload."""
_PARTS_AT_ONCE = 64
"""Partitions of a staged object that are validated before other tasks get a turn: 1 to 2 ms."""
_BATCHES_AT_ONCE = 128
"""Batches that are accounted before other tasks get a turn: about 1.5 ms."""


TRANSACTION_WRITERS = "transaction:"
"""How the writer ids of what is staged for transactions begin; clients choose no such name."""


class StagingProducer(NamedTuple):
    """The producer whose transaction staged batches belong to."""

    producer_id: int
    producer_epoch: int

    @property
    def writer_id(self) -> str:
        return f"{TRANSACTION_WRITERS}{self.producer_id}.{self.producer_epoch}"


class Attaching(Protocol):
    """A log whose turn is held. Calls come in this order; after an error comes `give_up`."""

    def check_producer(self, producer_id: int, producer_epoch: int) -> None:
        """For batches of a transaction. Errors: ProducerFenced, InvalidTxnState (the coordinator
        was not asked whether the partition is part of it), QuotaExceeded."""
        ...

    async def ready(self) -> None:
        """Makes all data before the log's end durable. Errors: as of an append."""
        ...

    def account(self, batches: Sequence[BatchAttributes]) -> None:
        """Accounts for attached batches, in order. Batches behind a gap are left to `finish`."""
        ...

    async def finish(self) -> None:
        """Accounts for the rest, read from the stream. Errors: those of reading; Internal."""
        ...

    def show(self) -> None:
        """Makes the attached batches visible; never waits."""
        ...

    def give_up(self, error: StreamlogError) -> None:
        """Fails the log, if batches were attached to it. It is the last call then."""
        ...


@runtime_checkable
class TakesStaged(Protocol):
    """A log on a stream to which staged batches can be attached."""

    @property
    def leader_epoch(self) -> int: ...

    @property
    def data_stream_id(self) -> int: ...

    def offset_of(self, stream_offset: int) -> int:
        """The log's offset, near its end."""
        ...

    async def to_stage(
        self, batches: Buffer, producer: tuple[int, int] | None = None
    ) -> list[RecordBatch]:
        """Batches of the producer's transaction, or of no producer at all.

        Errors: those of an append to the log; InvalidRecord for another producer's.
        """
        ...

    def attaching(self) -> AbstractAsyncContextManager[Attaching]:
        """Nothing is appended while it is held."""
        ...


class StagedPartition(NamedTuple):
    partition: TopicPartition
    records: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class StagedBatches:
    staged: UnattachedObject
    parts: tuple[StagedPartition, ...]


class ManifestEntry(NamedTuple):
    """A staged object and the partitions of its batches, except those that another entry names."""

    object_id: int
    partitions: Sequence[TopicPartition]


class CommittedRange(NamedTuple):
    """Offsets start (inclusive) to end (exclusive) of a partition."""

    partition: TopicPartition
    start_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class ManifestCommit:
    """`parts`: only of partitions that still exist, and only if the epoch is the writer's last.

    `was_committed`: this epoch, or a later one, was committed before; nothing was changed.
    """

    epoch: int
    parts: tuple[CommittedRange, ...]
    was_committed: bool


@dataclass(frozen=True, slots=True)
class WriterProgress:
    """`last_epoch` -1: the writer is unknown. `parts` and `committed_ms` belong to that epoch."""

    last_epoch: int
    committed_ms: int
    parts: tuple[CommittedRange, ...]
    staged_objects: int


class StagedLogs:
    def __init__(
        self,
        streams: StagedStreams,
        partition_of: Callable[[int], Awaitable[TopicPartition | None]],
        log: Callable[[TopicPartition], Awaitable[AbstractLog]],
        background: Background,
    ) -> None:
        """`partition_of`: the partition of a data stream; None: no topic has it."""
        self._streams = streams
        self._partition_of = partition_of
        self._log = log
        self._background = background
        self._takes: dict[type[AbstractLog], bool] = {}

    async def stage(
        self,
        writer_id: str,
        attempt: str,
        batches: Mapping[TopicPartition, Buffer],
        *,
        producer: StagingProducer | None = None,
        expires_ms: int = 0,
    ) -> StagedBatches:
        """As StagedStreams.stage. With a producer, whose transaction the batches belong to, its
        name stands for the writer's. Errors: those, and those of an append."""
        if not batches:
            raise Invalid("there is nothing to stage")
        writer_id = _writer_of(writer_id, producer)
        by_stream: dict[int, list[RecordBatch]] = {}
        parts: list[StagedPartition] = []
        for number, partition in enumerate(_in_order(batches)):
            if number % _PARTS_AT_ONCE == _PARTS_AT_ONCE - 1:
                await asyncio.sleep(0)
            data = batches[partition]
            log = await self._taking(partition)
            staged_batches = await log.to_stage(data, producer)
            by_stream[log.data_stream_id] = staged_batches
            records = sum(batch.record_count for batch in staged_batches)
            parts.append(StagedPartition(partition, records, len(data)))
        staged = await self._streams.stage(writer_id, attempt, by_stream, expires_ms=expires_ms)
        return StagedBatches(staged, tuple(parts))

    async def commit(
        self, writer_id: str, epoch: int, manifest: Sequence[ManifestEntry]
    ) -> ManifestCommit:
        """Commits all of the manifest, in its order, or nothing; durable and visible on return.

        It goes on when the caller is cancelled. Errors: StagedNotFound, Conflict (a partition was
        deleted or created again since), NotLeader, StreamFenced, Unavailable, Invalid;
        OutcomeUnknown (the node ended meanwhile: the same epoch again is safe).
        """
        return await self._shielded(_writer_of(writer_id, None), epoch, manifest, None)

    async def attach(
        self, producer: StagingProducer, epoch: int, manifest: Sequence[ManifestEntry]
    ) -> ManifestCommit:
        """As `commit`, for what was staged for the producer's open transaction, which shows it.

        Whether the transaction has the partitions is for the caller to ask before
        (`AbstractLog.verified`). Errors: as of `commit`; ProducerFenced; InvalidTxnState, also
        where a later epoch is attached.
        """
        return await self._shielded(producer.writer_id, epoch, manifest, producer)

    async def _shielded(
        self,
        writer_id: str,
        epoch: int,
        manifest: Sequence[ManifestEntry],
        producer: StagingProducer | None,
    ) -> ManifestCommit:
        # Arguments of wrong types raise here: in the shielded work they would end the node.
        epoch = index(epoch)
        object_ids = [index(entry.object_id) for entry in manifest]
        partitions = _in_order({partition for entry in manifest for partition in entry.partitions})
        try:
            return await self._background.shielded(
                lambda: self._commit(writer_id, epoch, object_ids, partitions, producer),
                name="commit_staged",
            )
        except Closed as error:
            raise maybe_attached(writer_id, epoch) from error

    async def status(self, writer_id: str) -> WriterProgress:
        """Errors: those of opening the partitions of the last commit."""
        writer = self._streams.writer(writer_id)
        parts = await self._placed(writer.rows)
        return WriterProgress(writer.last_epoch, writer.attached_ms, parts, writer.staged_objects)

    async def abort(
        self, writer_id: str, object_ids: Sequence[int], producer: StagingProducer | None = None
    ) -> int:
        """Drops staged objects that are neither committed nor attached; returns how many."""
        return await self._streams.unstage(_writer_of(writer_id, producer), object_ids)

    async def _commit(
        self,
        writer_id: str,
        epoch: int,
        object_ids: Sequence[int],
        partitions: Sequence[TopicPartition],
        producer: StagingProducer | None,
    ) -> ManifestCommit:
        if self._streams.writer(writer_id).last_epoch >= epoch:
            attached = await self._streams.attach(writer_id, epoch, ())
            self._check_last(writer_id, epoch, producer)
            return ManifestCommit(epoch, await self._placed(attached.rows), True)
        logs: dict[TopicPartition, TakesStaged] = {}
        for number, partition in enumerate(partitions):
            logs[partition] = await self._taking(partition)
            if number % _LOGS_AT_ONCE == _LOGS_AT_ONCE - 1:
                await asyncio.sleep(0)
        by_stream = {log.data_stream_id: partition for partition, log in logs.items()}
        await self._check(object_ids, by_stream)
        async with AsyncExitStack() as turns:
            held: dict[int, Attaching] = {}
            for number, partition in enumerate(partitions):
                log = logs[partition]
                held[log.data_stream_id] = await turns.enter_async_context(log.attaching())
                if number % _LOGS_AT_ONCE == _LOGS_AT_ONCE - 1:
                    await asyncio.sleep(0)
                    turns.push_async_callback(asyncio.sleep, 0)
            attaching = list(held.values())
            if producer is not None:
                for attach in attaching:
                    attach.check_producer(*producer)
            for low in range(0, len(attaching), _READY_AT_ONCE):
                await gather_all(attach.ready() for attach in attaching[low : low + _READY_AT_ONCE])
            attached = await self._streams.attach(
                writer_id,
                epoch,
                object_ids,
                leader_epochs={log.data_stream_id: log.leader_epoch for log in logs.values()},
            )
            await self._account(() if attached.was_attached else object_ids, held)
            for attach in attaching:
                attach.show()
        # The commit stands, whether or not each of the logs has failed.
        if attached.was_attached:
            # Another caller's commit was first: its manifest may name other partitions than this.
            self._check_last(writer_id, epoch, producer)
            return ManifestCommit(epoch, await self._placed(attached.rows), True)
        parts = [_part(row, by_stream[row.stream_id], logs) for row in attached.rows]
        return ManifestCommit(epoch, _sorted(parts), False)

    def _check_last(self, writer_id: str, epoch: int, producer: StagingProducer | None) -> None:
        """A transaction is not ended for an epoch, of which it may have nothing, while it may have
        the objects of a later one. Errors: InvalidTxnState."""
        last_epoch = self._streams.writer(writer_id).last_epoch
        if producer is not None and last_epoch > epoch:
            raise InvalidTxnState(
                f"epoch {epoch} was not attached now: producer {producer.producer_id} (epoch "
                f"{producer.producer_epoch}) has attached epoch {last_epoch}, so another driver "
                "has the same producer, or had it: abort the transaction, or initialise the writer",
                producer_id=producer.producer_id,
            )

    async def _account(self, object_ids: Sequence[int], held: Mapping[int, Attaching]) -> None:
        """Every log accounts for its batches, or fails."""
        batches = 0
        try:
            async for stream_id, run in self._streams.attributes(object_ids):
                for low in range(0, len(run), _BATCHES_AT_ONCE):
                    part = run[low : low + _BATCHES_AT_ONCE]
                    try:
                        held[stream_id].account(part)
                    except StreamlogError as error:
                        held[stream_id].give_up(error)
                    batches += len(part)
                    if batches >= _BATCHES_AT_ONCE:
                        batches = 0
                        await asyncio.sleep(0)
        except StreamlogError as error:
            for attach in held.values():
                attach.give_up(error)
        for number, attach in enumerate(held.values()):
            try:
                await attach.finish()
            except StreamlogError as error:
                attach.give_up(error)
            if number % _LOGS_AT_ONCE == _LOGS_AT_ONCE - 1:
                await asyncio.sleep(0)

    async def _check(
        self, object_ids: Sequence[int], by_stream: Mapping[int, TopicPartition]
    ) -> None:
        """Errors: Conflict; those of the medium for objects that are no longer staged."""
        for stream_id in sorted(await self._streams.streams_of(object_ids) - by_stream.keys()):
            raise Conflict(
                f"the staged objects have data for stream {stream_id}, which is no partition of "
                "the manifest: its topic was deleted or made anew. Nothing was committed; stage "
                "everything again",
                stream_id=stream_id,
            )

    async def _placed(self, rows: Sequence[AttachedRow]) -> tuple[CommittedRange, ...]:
        """The offsets of rows in their partitions, without deleted partitions."""
        parts: list[CommittedRange] = []
        for number, row in enumerate(rows):
            if number % _LOGS_AT_ONCE == _LOGS_AT_ONCE - 1:
                await asyncio.sleep(0)
            partition = await self._partition_of(row.stream_id)
            if partition is None:
                continue
            log = await self._taking(partition)
            if log.data_stream_id == row.stream_id:
                parts.append(_part(row, partition, {partition: log}))
        return _sorted(parts)

    async def _taking(self, partition: TopicPartition) -> TakesStaged:
        check_not_internal(partition.topic)
        log = await self._log(partition)
        # isinstance of a Protocol is slow, so the answer for the class is kept.
        takes = self._takes.get(type(log))
        if takes is None:
            takes = self._takes[type(log)] = isinstance(log, TakesStaged)
        if not takes:
            raise PolicyViolation(
                f"{partition} keeps its records in files of its node (log.type=unified), and "
                "staged writes attach objects of the store: write it with a producer, or write a "
                "topic with log.type=shared"
            )
        return cast(TakesStaged, log)


def _writer_of(writer_id: str, producer: StagingProducer | None) -> str:
    """Errors: Invalid."""
    if not isinstance(writer_id, str):
        raise Invalid(f"a writer id is text, not {writer_id!r}")
    if producer is not None:
        return producer.writer_id
    if writer_id.startswith(TRANSACTION_WRITERS):
        raise Invalid(
            f"the writer id {writer_id!r} begins with {TRANSACTION_WRITERS!r}, as those of "
            "transactions do; choose another one"
        )
    return writer_id


def _part(
    row: AttachedRow, partition: TopicPartition, logs: Mapping[TopicPartition, TakesStaged]
) -> CommittedRange:
    log = logs[partition]
    return CommittedRange(partition, log.offset_of(row.start), log.offset_of(row.end))


def _sorted(parts: Sequence[CommittedRange]) -> tuple[CommittedRange, ...]:
    return tuple(sorted(parts, key=lambda part: (part.partition.topic, part.partition.partition)))


def _in_order(partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
    return sorted(partitions, key=lambda partition: (partition.topic, partition.partition))
