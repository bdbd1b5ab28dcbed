"""StagedStreams over an engine: objects that the metadata knows before they are in any stream.

1. Staging builds and PUTs an object, and commits a record that names it. Its offsets start at 0.
2. Attaching raises an append barrier on each stream, waits until everything sequenced is committed,
   commits one record that attaches all objects at the streams' ends, and lifts the barriers.
   Without them an append behind the attached offsets could, with wal=disk, be acknowledged out of a
   WAL that is replayed without these offsets. A checkpoint follows: with wal=object before the
   barriers are lifted, with wal=disk soon (`save_interval_ms`).
3. Any node drops expired objects, and forgets writers that were silent for long.
"""

from __future__ import annotations

import asyncio
import logging
from array import array
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Protocol

from streamlog.codec.crc import crc32c_parts
from streamlog.engine.commit_parts import commit_parts
from streamlog.engine.config import StagingConfig
from streamlog.engine.engine import Engine, fenced
from streamlog.engine.staging.attached_attributes import attached_attributes
from streamlog.engine.staging.metrics import StagingMetrics
from streamlog.engine.stream_core import StreamCore
from streamlog.engine.streams.client import EngineStreamClient
from streamlog.errors import (
    Closed,
    Conflict,
    Fenced,
    Internal,
    Invalid,
    MessageTooLarge,
    OutcomeUnknown,
    Overloaded,
    StagedNotFound,
    StreamlogError,
    StreamNotFound,
)
from streamlog.format.entry import StreamEntry
from streamlog.format.rows import NO_LEADER_EPOCH
from streamlog.metadata.fold.generation import SPAN_MAX
from streamlog.metadata.fold.staging import FoldedStaging, Stage, WriterRow
from streamlog.metadata.interface import AttachEntry, CommitEntry, Metadata, StreamRow, UnstageEntry
from streamlog.model.batch import BatchAttributes, RecordBatch, StreamState
from streamlog.model.batch_limits import refusal_of
from streamlog.model.numbers import checked_int
from streamlog.model.staging import (
    Attached,
    AttachedRow,
    StagedRow,
    UnattachedObject,
    WriterState,
    maybe_attached,
)
from streamlog.objectstore.keys import data_key
from streamlog.runtime.buffers import parts_size
from streamlog.runtime.concurrency.byte_semaphore import ByteSemaphore
from streamlog.runtime.concurrency.keyed_lock import KeyedLock

log = logging.getLogger(__name__)

NAME_BYTES_MAX = 200
EPOCH_MAX = (1 << 63) - 1
LEADER_EPOCH_MAX = (1 << 31) - 1
_PUT_TRIES_MAX = 5
_STREAMS_AT_ONCE = 128
"""Streams that are locked in one step of the event loop."""
_ROWS_AT_ONCE = 20_000
"""Rows that one step of the event loop processes: about 1 ms."""


class StagingMetadata(Metadata, Protocol):
    @property
    def staging(self) -> FoldedStaging: ...


class EngineStaging:
    """The StagedStreams protocol."""

    def __init__(
        self,
        engine: Engine,
        streams: EngineStreamClient,
        metadata: StagingMetadata,
        config: StagingConfig,
    ) -> None:
        self._engine = engine
        self._streams = streams
        self._metadata = metadata
        self._config = config
        self._clock = engine.parts.clock
        self._bytes_in_flight = ByteSemaphore(config.bytes_in_flight_max)
        self._slots = asyncio.Semaphore(config.stages_in_flight_max)
        self._under_way: KeyedLock[tuple[str, str]] = KeyedLock()
        self._attaching: KeyedLock[str] = KeyedLock()
        self._is_unsaved = True
        """With wal=disk: whether an attach may be in no checkpoint yet. True at the start, because
        of the previous tenure's attaches."""
        self._metrics = StagingMetrics(engine.parts.registry)
        self._metrics.staged.set_function(lambda: len(metadata.staging.staged))

    def start(self, *, drops_expired: bool = True) -> None:
        """Starts to drop what has expired and, with wal=disk, to save attaches in checkpoints."""
        if drops_expired:
            self._engine.background.every(
                lambda: self._config.sweep_interval_ms / 1000, self.drop_expired, name="staging"
            )
        if self._engine.group_commit is not None:
            self._engine.background.every(
                lambda: self._config.save_interval_ms / 1000, self._save_late, name="save_attaches"
            )

    # staging

    async def stage(
        self,
        writer_id: str,
        attempt: str,
        batches: Mapping[int, Sequence[RecordBatch]],
        *,
        expires_ms: int = 0,
    ) -> UnattachedObject:
        self._engine.check_open()
        _check_name(writer_id, "writer id")
        _check_name(attempt, "attempt")
        expires_ms = checked_int("expires_ms", expires_ms, 0, EPOCH_MAX - 1)
        entries, size_bytes = await self._entries(batches)
        async with AsyncExitStack() as held:
            # A request that was sent again must not store a second object.
            await held.enter_async_context(self._under_way.holding((writer_id, attempt)))
            stage = self._metadata.staging.of_attempt(writer_id, attempt)
            if stage is not None:
                return staged_object(stage)
            await held.enter_async_context(self._slots)
            await held.enter_async_context(self._bytes_in_flight.holding(size_bytes))
            self._check_count()
            expires_at = self._clock.now_ms() + (expires_ms or self._config.expiry_ms)
            # If the caller is cancelled, the work goes on and holds all of this to its end.
            return await self._engine.background.shielded_holding(
                held,
                lambda: self._store(writer_id, attempt, entries, expires_at),
                name="stage",
            )

    def _check_count(self) -> None:
        """Does not count objects under way: up to stages_in_flight_max may come on top."""
        count, bound = len(self._metadata.staging.staged), self._config.staged_objects_max
        if count >= bound:
            raise Overloaded(
                f"{count} objects are staged and not committed; the bound is {bound} "
                "(staging.staged_objects_max). Nothing was stored: commit or abort some, wait for "
                "others to expire, or raise the bound; then retry"
            )

    @property
    def bytes_in_flight(self) -> int:
        """Bytes of the calls of `stage` that have begun; `bytes_in_flight_max` bounds them."""
        return self._bytes_in_flight.used_bytes

    def staged(self, object_id: int) -> UnattachedObject | None:
        stage = self._metadata.staging.staged.get(object_id)
        return None if stage is None else staged_object(stage)

    async def _entries(
        self, batches: Mapping[int, Sequence[RecordBatch]]
    ) -> tuple[list[StreamEntry], int]:
        entries: list[StreamEntry] = []
        size_bytes = 0
        for number, stream_id in enumerate(sorted(batches)):
            if number % _STREAMS_AT_ONCE == _STREAMS_AT_ONCE - 1:
                await asyncio.sleep(0)
            if self._metadata.stream(stream_id) is None:
                raise StreamNotFound(f"no stream {stream_id}", stream_id=stream_id)
            end = 0
            for batch in batches[stream_id]:
                entries.append(_entry(stream_id, end, batch))
                size_bytes += parts_size(batch.parts)
                end += batch.record_count
            if not 0 < end <= SPAN_MAX:
                raise Invalid(
                    f"{end} records are staged at once for stream {stream_id}; it must be 1 to "
                    f"{SPAN_MAX}: stage them in several calls"
                )
        if not entries:
            raise Invalid("there is nothing to stage")
        if size_bytes > self._config.object_bytes_max:
            raise MessageTooLarge(
                f"{size_bytes} bytes are staged at once; at most {self._config.object_bytes_max} "
                "(staging.object_bytes_max): stage them in several calls",
                size_bytes=size_bytes,
                max_bytes=self._config.object_bytes_max,
            )
        return entries, size_bytes

    async def _store(
        self, writer_id: str, attempt: str, entries: list[StreamEntry], expires_at_ms: int
    ) -> UnattachedObject:
        engine = self._engine
        async with engine.writer.writing(entries, is_staged=True) as written:
            ranges = written.new_object.ranges
            stage = Stage(
                written.new_object.row,
                writer_id,
                attempt,
                expires_at_ms,
                array("Q", [row.stream_id for row in ranges]),
                array("I", [row.end for row in ranges]),
            )
            entry = CommitEntry(stages=[stage])
            self._metadata.check_fits(entry)
            await engine.put.put(
                data_key(written.object_id), written.parts, tries_max=_PUT_TRIES_MAX
            )
            await self._metadata.commit(entry)
        self._metrics.stages.inc()
        self._metrics.stage_bytes.inc(sum(parts_size(entry.parts) for entry in entries))
        return staged_object(stage)

    # attaching

    async def attach(
        self,
        writer_id: str,
        epoch: int,
        object_ids: Sequence[int],
        *,
        leader_epochs: Mapping[int, int] | None = None,
    ) -> Attached:
        self._engine.check_open()
        _check_name(writer_id, "writer id")
        epoch = checked_int(f"the epoch of writer {writer_id}", epoch, 0, EPOCH_MAX)
        leader_epochs = {
            stream_id: checked_int(
                "a leader epoch", leader_epoch, NO_LEADER_EPOCH, LEADER_EPOCH_MAX
            )
            for stream_id, leader_epoch in (leader_epochs or {}).items()
        }
        if self._metadata.staging.last_epoch(writer_id) >= epoch:
            # The call that attached the epoch may still wait for its checkpoint.
            await self._saved(writer_id, epoch)
            async with self._attaching.holding(writer_id):
                pass  # That call has moved the streams' ends.
            self._metrics.attaches.labels("known").inc()
            return self._attached(writer_id, epoch, was_attached=True)
        streams = await self._check_rows(writer_id, object_ids)
        try:
            attached = await self._engine.background.shielded(
                lambda: self._attach(writer_id, epoch, object_ids, streams, leader_epochs),
                name="attach",
            )
        except Closed as error:
            # The engine or the metadata was closed while the commit was under way.
            self._metrics.attaches.labels("refused").inc()
            raise maybe_attached(writer_id, epoch) from error
        except StreamlogError:
            self._metrics.attaches.labels("refused").inc()
            raise
        self._metrics.attaches.labels("known" if attached.was_attached else "attached").inc()
        return attached

    async def streams_of(self, object_ids: Sequence[int]) -> set[int]:
        streams: set[int] = set()
        rows = 0
        staged = self._metadata.staging.staged
        for object_id in object_ids:
            stage = staged.get(object_id)
            if stage is not None:
                streams.update(stage.streams)
                rows += len(stage.streams)
                if rows >= _ROWS_AT_ONCE:
                    rows = 0
                    await asyncio.sleep(0)
                    staged = self._metadata.staging.staged
        return streams

    async def _check_rows(self, writer_id: str, object_ids: Sequence[int]) -> list[int]:
        """The ids of the streams with staged rows, sorted. Errors: StagedNotFound, Invalid."""
        staged = self._metadata.staging.staged
        for object_id in object_ids:
            if object_id not in staged:
                raise not_staged(writer_id, object_id)
        rows = sum([len(staged[object_id].streams) for object_id in object_ids])
        bound = self._config.commit_rows_max
        if rows > bound:
            raise Invalid(
                f"{len(object_ids)} staged objects have {rows} rows, pairs of object and "
                f"partition; a commit takes {bound} (engine.staging.commit_rows_max). Nothing was "
                "committed. Gather more in a task before it stages (Spark: the option "
                "bufferBytes), bring the rows of a partition into few tasks (Spark: "
                "streamlog.spark.functions.partition_of), write in several commits, or raise the "
                "bound",
                rows=rows,
            )
        return sorted(await self.streams_of(object_ids))

    async def _attach(
        self,
        writer_id: str,
        epoch: int,
        object_ids: Sequence[int],
        streams: Sequence[int],
        leader_epochs: Mapping[int, int],
    ) -> Attached:
        async with AsyncExitStack() as locked:
            await locked.enter_async_context(self._attaching.holding(writer_id))
            # In the order of stream ids, so that two attaches never deadlock.
            for number, stream_id in enumerate(streams):
                await locked.enter_async_context(self._streams.holding(stream_id))
                if number % _STREAMS_AT_ONCE == _STREAMS_AT_ONCE - 1:
                    await asyncio.sleep(0)
                    locked.push_async_callback(asyncio.sleep, 0)
            cores = [self._core(stream_id) for stream_id in streams]
            sequencer = self._engine.sequencer
            began = self._clock.monotonic()
            for core in cores:
                sequencer.raise_barrier(core)
            try:
                for core in cores:
                    await core.committed_to(core.next, self._engine.request_flush)
                entry = AttachEntry(
                    writer_id,
                    epoch,
                    self._clock.now_ms(),
                    object_ids,
                    {core.stream_id: core.epoch for core in cores},
                    leader_epochs,
                )
                committed = await self._metadata.commit(CommitEntry(attaches=[entry]))
                try:
                    await self._saved(writer_id, epoch)
                finally:
                    # Only now: readers must not see what a recovery from the bucket would lose.
                    for core in cores:
                        self._move_end(core)
            finally:
                for core in cores:
                    sequencer.lift_barrier(core)
                self._metrics.attach_seconds.observe(self._clock.monotonic() - began)
            self._is_unsaved = True
            return self._attached(writer_id, epoch, was_attached=not committed.has_changed)

    async def _save_late(self) -> None:
        """Saves the attaches of this node."""
        if self._is_unsaved:
            self._is_unsaved = False
            await self._engine.save_attaches_late()
            self._is_unsaved = self._is_unsaved or self._metadata.has_unsaved_attach

    async def _saved(self, writer_id: str, epoch: int) -> None:
        """Errors: OutcomeUnknown."""
        try:
            await self._engine.save_attaches()
        except (Fenced, Closed) as error:
            raise OutcomeUnknown(
                f"epoch {epoch} of writer {writer_id} was committed, and the node ended before "
                "that was safe; commit the same epoch again"
            ) from error

    def _core(self, stream_id: int) -> StreamCore:
        row = self._metadata.stream(stream_id)
        if row is None or row.state is not StreamState.OPEN:
            raise Conflict(
                f"stream {stream_id}, for which data is staged, is gone or closed; nothing was "
                "attached",
                stream_id=stream_id,
            )
        if row.holder != self._metadata.tenure:
            raise fenced(stream_id, row.epoch)()
        core = self._engine.core(row)
        if core.stop is not None:
            raise core.stop()
        return core

    def _move_end(self, core: StreamCore) -> None:
        """Moves the stream's end in memory to its end in the fold, behind the attached batches."""
        row: StreamRow | None = self._metadata.stream(core.stream_id)
        if core.stop is not None or row is None or row.epoch != core.epoch or row.end == core.next:
            return
        if row.end < core.next:
            raise Internal(f"stream {core.stream_id} ends at {row.end}, before {core.next}")
        core.next = core.confirm = core.committed = row.end
        core.tail = self._engine.tails.tail(row.end)
        core.confirmed()

    def attributes(
        self, object_ids: Sequence[int]
    ) -> AsyncIterator[tuple[int, Sequence[BatchAttributes]]]:
        engine = self._engine
        return attached_attributes(
            self._metadata,
            engine.blocks,
            object_ids,
            ahead_bytes_max=engine.config.read.index_cache_bytes // 4,
        )

    def _attached(self, writer_id: str, epoch: int, *, was_attached: bool) -> Attached:
        row = self._metadata.staging.writers.get(writer_id)
        rows = () if row is None or row.epoch != epoch else attached_rows(row)
        return Attached(epoch, rows, was_attached)

    # the end

    async def unstage(self, writer_id: str, object_ids: Sequence[int]) -> int:
        self._engine.check_open()
        staged = self._metadata.staging.staged
        own = [
            i for i in dict.fromkeys(object_ids) if i in staged and staged[i].writer_id == writer_id
        ]
        for part in commit_parts(own, _dropping, self._metadata):
            await self._metadata.commit(_dropping(part))
            self._metrics.dropped.labels("abort").inc(len(part))
        return len(own)

    def writer(self, writer_id: str) -> WriterState:
        staging = self._metadata.staging
        count = staging.count_of(writer_id)
        row = staging.writers.get(writer_id)
        if row is None:
            return WriterState(staged_objects=count)
        return WriterState(row.epoch, row.at_ms, attached_rows(row), count)

    async def drop_expired(self) -> None:
        """Drops expired objects, and forgets writers that were silent for `writer_memory_ms`."""
        staging, now_ms = self._metadata.staging, self._clock.now_ms()
        expired: list[int] = []
        for number, (object_id, stage) in enumerate(list(staging.staged.items())):
            if stage.expires_ms <= now_ms:
                expired.append(object_id)
            if number % _ROWS_AT_ONCE == _ROWS_AT_ONCE - 1:
                await asyncio.sleep(0)
        before_ms = now_ms - self._config.writer_memory_ms
        silent = [(w, row.epoch) for w, row in staging.writers.items() if row.at_ms <= before_ms]
        try:
            for objects in commit_parts(expired, _dropping, self._metadata):
                await self._metadata.commit(_dropping(objects))
                self._metrics.dropped.labels("expiry").inc(len(objects))
            for writers in commit_parts(silent, _forgetting, self._metadata):
                await self._metadata.commit(_forgetting(writers))
        except (Fenced, Closed):
            return  # This node is ending; other nodes drop what expires.
        if expired or silent:
            log.info(
                "dropped what was staged and not committed in time",
                extra={"objects": len(expired), "writers": len(silent)},
            )


def _dropping(object_ids: Sequence[int]) -> CommitEntry:
    return CommitEntry(unstages=[UnstageEntry(object_ids)])


def _forgetting(writers: Sequence[tuple[str, int]]) -> CommitEntry:
    return CommitEntry(unstages=[UnstageEntry([], writers)])


def not_staged(writer_id: str, object_id: int) -> StagedNotFound:
    return StagedNotFound(
        f"writer {writer_id} has no staged object {object_id}: it expired, was dropped, or is "
        "committed already; nothing of this commit was applied. Stage everything again under new "
        "attempts, and commit that",
        writer_id=writer_id,
        object_id=object_id,
    )


def staged_object(stage: Stage) -> UnattachedObject:
    return UnattachedObject(
        stage.row.object_id,
        stage.writer_id,
        stage.attempt,
        stage.expires_ms,
        stage.row.size_bytes,
        tuple(map(StagedRow, stage.streams, stage.counts)),
    )


def attached_rows(row: WriterRow) -> tuple[AttachedRow, ...]:
    return tuple(map(AttachedRow, row.streams, row.starts, row.ends))


def _entry(stream_id: int, base: int, batch: RecordBatch) -> StreamEntry:
    refusal = refusal_of(batch)
    if refusal is not None:
        raise Invalid(f"a batch for stream {stream_id} cannot be staged: {refusal.message}")
    crc = batch.payload_crc32c
    return StreamEntry(
        stream_id,
        0,
        base,
        batch.record_count,
        batch.base_timestamp_ms,
        batch.parts,
        batch.attributes,
        crc32c_parts(batch.parts) if crc is None else crc,
    )


def _check_name(name: str, what: str) -> None:
    if not isinstance(name, str):
        raise Invalid(f"a {what} is text, not {name!r}")
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise Invalid(f"the {what} {name!r} cannot be written as UTF-8") from None
    if not 0 < size <= NAME_BYTES_MAX:
        raise Invalid(f"a {what} has 1 to {NAME_BYTES_MAX} bytes, not {size}")
