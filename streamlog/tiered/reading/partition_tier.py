"""The remote tier of one partition, as its log asks for it.

A segment is found by offset and the leader epoch that the log has for it: what another leader
copied of offsets that this log never had is not seen. Reads end by their deadline; what the store
sends later is in memory for the next read (`chunks.py`).
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

from streamlog.codec.piecewise import first_at_or_after
from streamlog.errors import Corrupt, ObjectNotFound, OffsetOutOfRange, StreamlogError
from streamlog.format.kafka_files import offset_index, time_index
from streamlog.format.kafka_files.transaction_index import AbortedTxn, decode_aborted
from streamlog.log.api.batch_reader import BatchReader, BatchRun
from streamlog.log.api.tiering import AS_LONG_AS_A_LOOK_UP, AbortedInTier, TierableLog
from streamlog.model.partition import TopicPartition
from streamlog.runtime.buffers import Buffer, parts_size
from streamlog.runtime.clock import Clock
from streamlog.runtime.concurrency.catch_up_throttle import ReadThrottle
from streamlog.runtime.offload import Lane, Offload
from streamlog.tiered.api.metadata_manager import RemoteLogMetadataManager
from streamlog.tiered.api.segments import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    TopicIdPartition,
)
from streamlog.tiered.api.storage_manager import IndexType
from streamlog.tiered.metrics import RemoteLogMetrics
from streamlog.tiered.reading.chunks import ChunkCache
from streamlog.tiered.reading.failures import RemoteFailures
from streamlog.tiered.reading.index_cache import RemoteIndexCache
from streamlog.tiered.reading.late_results import LateResults
from streamlog.tiered.reading.segment_scan import (
    RemoteBatch,
    ScannedChunk,
    ScanStart,
    SegmentScan,
)

POSITIONS_MAX = 64
"""Places where readers go on that are remembered."""
INLINE_CHECK_BYTES = 2 << 20
"""Whose CRCs are checked on the event loop, in 0.1 to 0.3 ms for each MiB: a change of thread costs
as much, and more where the loop is busy."""
STEP_BYTES = 1 << 20


class FetchQuota(Protocol):
    """Bytes that may be read from the remote tier (KIP-956)."""

    async def until_room(self, deadline: float) -> bool:
        """True at once where there is room, else as soon as there is; False at the deadline.

        The room is nobody's until a read has entered.
        """
        ...

    def reading(self) -> AbstractContextManager[bool]:
        """Entered with whether there is room. Within it the read is under way: it records its
        bytes, and then leaves."""
        ...

    def has_room(self) -> bool:
        """Whether a read would be let in at once."""
        ...

    def record(self, size_bytes: int) -> None: ...


class TierOwner(Protocol):
    """Who keeps the tiers, and their tasks."""

    def detached(self, tier: PartitionTier) -> None: ...

    async def delete_partition(self, partition: TopicPartition, topic_id: UUID) -> None: ...


@dataclass(frozen=True, slots=True)
class TierReads:
    """What all partitions of a node share. `fetch_wait_ms`: how long a fetch waits at most;
    `look_up_wait_ms`: a look-up by time."""

    metadata: RemoteLogMetadataManager
    chunks: ChunkCache
    indexes: RemoteIndexCache
    late: LateResults
    failures: RemoteFailures
    quota: FetchQuota
    throttle: ReadThrottle
    metrics: RemoteLogMetrics
    clock: Clock
    offload: Offload
    record_bytes_max: int
    fetch_wait_ms: int = 500
    look_up_wait_ms: int = 30_000


class PartitionTier:
    """A RemoteTier. `highest_offset` is raised by whoever copies."""

    def __init__(
        self, partition: TopicIdPartition, log: TierableLog, reads: TierReads, owner: TierOwner
    ) -> None:
        self.partition = partition
        self.highest_offset = -1
        self._owner = owner
        self._log = log
        self._reads = reads
        self._positions: OrderedDict[tuple[RemoteLogSegmentId, int], int] = OrderedDict()

    @property
    def log(self) -> TierableLog:
        return self._log

    def detached(self) -> None:
        self._owner.detached(self)

    async def delete(self) -> None:
        await self._owner.delete_partition(self.partition.topic_partition, self.partition.topic_id)

    def reader(self, deadline: float | None) -> BatchReader:
        return _TierReader(self, self._deadline(deadline, self._reads.fetch_wait_ms))

    def _deadline(self, deadline: float | None, wait_ms: int) -> float:
        latest = self._reads.clock.monotonic() + wait_ms / 1000
        return latest if deadline is None else min(deadline, latest)

    async def read_batches(
        self, offset: int, end_offset: int, max_bytes: int, deadline: float, *, is_required: bool
    ) -> BatchRun:
        """As BatchReader.read, and as RemoteTier.reader says."""
        reads, place = self._reads, (self.partition, offset)
        # Who waits for the quota stands in nobody's way in the line of the throttle.
        while await reads.quota.until_room(deadline):
            async with reads.throttle.admitted(max_bytes, place=place, deadline=deadline) as grant:
                if not grant.is_admitted:
                    break
                with reads.quota.reading() as may_read:
                    if not may_read:
                        # The room went to others meanwhile.
                        continue
                    run = await self._batches(
                        offset,
                        end_offset,
                        grant.bytes_max,
                        deadline,
                        first_bytes_max=None if is_required else max_bytes,
                        reads_ahead=not grant.is_paced,
                    )
                if run.is_too_large:
                    return run
                grant.used_bytes = sum(parts_size(batch.parts) for batch in run.batches)
            # Records that are here do not wait for room for further ones.
            is_last = grant.is_paced or not reads.quota.has_room()
            return run._replace(is_paced=run.is_paced or is_last)
        return BatchRun((), 0, True)

    async def _batches(
        self,
        offset: int,
        end_offset: int,
        max_bytes: int,
        deadline: float,
        *,
        first_bytes_max: int | None,
        reads_ahead: bool,
    ) -> BatchRun:
        """`first_bytes_max`: what the reader has room for; None: one batch has room anyway."""
        reads = self._reads
        segment = await self._segment_with(offset)
        with SegmentScan(reads.chunks, segment, deadline) as scan:
            try:
                found = await self._scanned(scan, offset, end_offset, max_bytes, deadline)
                if found is None:
                    return self._nothing(segment)
                if reads_ahead and not found.is_cut:
                    scan.ahead(found.position)
            except ObjectNotFound as error:
                raise await self._not_found(segment, offset) from error
            if not found.batches:
                if found.is_cut:
                    return self._nothing(segment)
                # A log that was compacted once has gaps.
                return BatchRun((), 0, False, empty_until=min(end_offset, segment.end_offset + 1))
            if first_bytes_max is not None and len(found.batches[0].parts[0]) > first_bytes_max:
                # Nobody gets it, so the quota has to pay for nothing.
                return BatchRun((), 0, False, is_too_large=True)
            found = await self._sound(scan, found)
        size = sum(len(batch.parts[0]) for batch in found.batches)
        reads.quota.record(size)
        reads.metrics.fetched(self.partition.topic, size)
        self._remember(segment.remote_log_segment_id, found.batches[-1], found.position)
        return BatchRun(found.batches, 0, found.is_cut)

    async def _sound(self, scan: SegmentScan, found: ScannedChunk) -> ScannedChunk:
        """Without the first batch that is damaged and those behind it. Errors: as of `check`."""
        batches = found.batches
        if sum(len(batch.parts[0]) for batch in batches) <= INLINE_CHECK_BYTES:
            count = scan.check(batches)
        else:
            count = await self._reads.offload.run(Lane.READ, scan.check, batches)
        if count == len(batches):
            return found
        scan.load_anew()
        return ScannedChunk(batches[:count], batches[count].position, False)

    async def _scanned(
        self, scan: SegmentScan, offset: int, end_offset: int, max_bytes: int, deadline: float
    ) -> ScannedChunk | None:
        """As SegmentScan.batches; None: where to begin is not known by the deadline."""
        segment = scan.segment
        start = await self._start(segment, offset, deadline)
        if start is None:
            return None
        try:
            return await scan.batches(start, offset, end_offset, max_bytes)
        except Corrupt:
            segment_id = segment.remote_log_segment_id
            index = segment_id, IndexType.OFFSET
            self._positions.pop((segment_id, offset), None)
            if not (start.position and self._reads.chunks.asks_anew(index)):
                raise
        # The index that told the position may have been damaged here.
        self._reads.late.forget(index)
        self._reads.indexes.distrust(segment, IndexType.OFFSET)
        start = await self._start(segment, offset, deadline)
        return None if start is None else await scan.batches(start, offset, end_offset, max_bytes)

    def _remember(self, segment_id: RemoteLogSegmentId, last: RemoteBatch, position: int) -> None:
        self._positions[segment_id, last.end_offset] = position
        if len(self._positions) > POSITIONS_MAX:
            self._positions.popitem(last=False)

    def _nothing(self, segment: RemoteLogSegmentMetadata) -> BatchRun:
        """A read that its deadline cut off. Errors: StoreUnavailable (a try has failed)."""
        if self._reads.failures.is_lasting:
            raise self._reads.failures.error(f"reading {segment.remote_log_segment_id}")
        return BatchRun((), 0, True)

    async def _start(
        self, segment: RemoteLogSegmentMetadata, offset: int, deadline: float
    ) -> ScanStart | None:
        """At or before the batch with the offset; None: it is not known by the deadline."""
        known = self._positions.get((segment.remote_log_segment_id, offset))
        if known is not None:
            return ScanStart(known, offset)
        first = segment.start_offset
        if offset == first:
            return ScanStart(0, first)
        data = await self._index(segment, IndexType.OFFSET, deadline)
        if data is None:
            return None
        # An entry has the last offset of a batch: one before the offset is behind no batch with it.
        entry = offset_index.floor_entry(data, offset - first)
        if entry is None:
            return ScanStart(0, first)
        return ScanStart(entry.position, first, first + entry.offset)

    async def _index(
        self, segment: RemoteLogSegmentMetadata, index_type: IndexType, deadline: float
    ) -> Buffer | None:
        """None: it is not there by the deadline."""
        reads = self._reads
        key = (segment.remote_log_segment_id, index_type)
        return await reads.late.get(key, lambda: reads.indexes.get(segment, index_type), deadline)

    async def _index_now(
        self, segment: RemoteLogSegmentMetadata, index_type: IndexType, deadline: float
    ) -> Buffer:
        data = await self._index(segment, index_type, deadline)
        if data is None:
            raise self._reads.chunks.late(segment)
        return data

    async def _segment_at(self, offset: int) -> RemoteLogSegmentMetadata | None:
        epoch = max((one for one, first in self._log.leader_epochs if first <= offset), default=-1)
        return await self._reads.metadata.remote_log_segment_metadata(self.partition, epoch, offset)

    async def _segment_with(self, offset: int) -> RemoteLogSegmentMetadata:
        """Errors: OffsetOutOfRange, Corrupt (as of `_gone`)."""
        segment = await self._segment_at(offset)
        if segment is None:
            raise self._gone(offset)
        return segment

    async def _not_found(self, segment: RemoteLogSegmentMetadata, offset: int) -> StreamlogError:
        """What a reader is told whose segment lacks a file. A deletion is in the metadata before it
        is in the store: of a segment that is still named the store has lost something, and a
        consumer that heard of an offset out of range would go on behind it."""
        named = await self._segment_at(offset)
        if named is None:
            return self._gone(offset)
        if not _is_same(named, segment):
            # Another copy of the same offsets has taken its place.
            return self._reads.chunks.late(segment)
        return Corrupt(
            "the remote storage has lost a file of the remote segment "
            f"{segment.remote_log_segment_id}, which is not deleted; put it back from a copy, or "
            f"raise the log start behind offset {segment.end_offset}",
            object_key=str(segment.remote_log_segment_id),
        )

    def _gone(self, offset: int) -> OffsetOutOfRange | Corrupt:
        """The log start moves before a segment goes: at or behind it nothing was deleted."""
        log = self._log
        if offset >= log.log_start_offset:
            return Corrupt(
                f"offset {offset} of {self.partition.topic_partition} is in neither tier, and was "
                "not deleted: no metadata names a remote segment with it. If metadata was lost, "
                "put it back; to give the offsets up, raise the log start behind them",
                object_key=str(self.partition),
                start=offset,
                end=offset + 1,
            )
        return OffsetOutOfRange(
            f"offset {offset} of {self.partition.topic_partition} is in no segment of the remote "
            f"storage: it was deleted. The log begins at {log.log_start_offset}",
            offset=offset,
            start_offset=log.log_start_offset,
            end_offset=log.log_end_offset,
        )

    async def aborted_between(
        self, offset: int, end_offset: int, deadline: float | None = AS_LONG_AS_A_LOOK_UP
    ) -> AbortedInTier:
        """As RemoteTier.aborted_between."""
        is_look_up = deadline == AS_LONG_AS_A_LOOK_UP
        wait_ms = self._reads.look_up_wait_ms if is_look_up else self._reads.fetch_wait_ms
        until = self._deadline(deadline, wait_ms)
        found: list[AbortedTxn] = []
        seen: set[RemoteLogSegmentId] = set()
        for epoch, first in self._epochs_from(offset):
            position = max(first, offset)
            while True:
                segment = await self._reads.metadata.next_segment_with_txn_index(
                    self.partition, epoch, position
                )
                if segment is None:
                    break
                asked, position = position, segment.end_offset + 1
                if segment.remote_log_segment_id in seen:
                    continue
                seen.add(segment.remote_log_segment_id)
                try:
                    data = await self._index(segment, IndexType.TRANSACTION, until)
                except Corrupt:
                    named = await self._reads.metadata.next_segment_with_txn_index(
                        self.partition, epoch, asked
                    )
                    if _is_same(named, segment):
                        raise
                    position = asked  # It was deleted meanwhile, and its list went with it.
                    continue
                if data is None:
                    if is_look_up:
                        raise self._reads.chunks.late(segment)
                    self._nothing(segment)
                    return AbortedInTier((), False, is_late=True)
                for entry in decode_aborted(data):
                    if entry.last_offset >= offset and entry.first_offset < end_offset:
                        found.append(entry)
                    if entry.last_stable_offset >= end_offset:
                        return AbortedInTier(found, True)
        return AbortedInTier(found, False)

    def _epochs_from(self, offset: int) -> Iterator[tuple[int, int]]:
        epochs = self._log.leader_epochs
        for index, (epoch, first) in enumerate(epochs):
            if index + 1 == len(epochs) or epochs[index + 1][1] > offset:
                yield epoch, first

    async def first_at_or_after(
        self, timestamp_ms: int, start_offset: int, end_offset: int
    ) -> tuple[int, int] | None:
        """As RemoteTier.first_at_or_after."""
        deadline = self._deadline(None, self._reads.look_up_wait_ms)
        offset = start_offset
        while offset < end_offset:
            segment = await self._segment_at(offset)
            if segment is None:
                return None
            if segment.max_timestamp_ms >= timestamp_ms:
                try:
                    found = await self._in_segment(segment, timestamp_ms, start_offset, deadline)
                except ObjectNotFound as error:
                    raise await self._not_found(segment, offset) from error
                if found is not None:
                    return found if found[0] < end_offset else None
            offset = segment.end_offset + 1
        return None

    async def _in_segment(
        self,
        segment: RemoteLogSegmentMetadata,
        timestamp_ms: int,
        start_offset: int,
        deadline: float,
    ) -> tuple[int, int] | None:
        reads = self._reads
        times = await self._index_now(segment, IndexType.TIMESTAMP, deadline)
        # Up to the entry no record has a later timestamp; its own batch may have one as late.
        entry = time_index.floor_time(times, timestamp_ms - 1)
        relative = 0 if entry is None else max(entry.relative_offset, 0)
        offset = max(segment.start_offset + relative, start_offset)
        start: ScanStart | None = None
        with SegmentScan(reads.chunks, segment, deadline) as scan:
            while offset <= segment.end_offset:
                wanted = offset, segment.end_offset + 1, STEP_BYTES
                if start is None:
                    found = await self._scanned(scan, *wanted, deadline)
                else:
                    found = await scan.batches(start, *wanted)
                if found is None or (not found.batches and found.is_cut):
                    raise reads.chunks.late(segment)
                if not found.batches:
                    return None
                scan.ahead(found.position)
                found = await self._sound(scan, found)
                for batch in found.batches:
                    if batch.header.max_timestamp_ms < timestamp_ms:
                        continue
                    record = await reads.offload.run(
                        Lane.CPU,
                        first_at_or_after,
                        batch.parts[0],
                        timestamp_ms,
                        start_offset,
                        reads.record_bytes_max,
                    )
                    if record is not None:
                        return record
                offset = found.batches[-1].end_offset
                start = ScanStart(found.position, offset)
                # Chunks in memory, and CRCs on the loop, give other work no turn.
                await asyncio.sleep(0)
        return None


def _is_same(one: RemoteLogSegmentMetadata | None, other: RemoteLogSegmentMetadata) -> bool:
    return one is not None and one.remote_log_segment_id == other.remote_log_segment_id


class _TierReader:
    """A BatchReader with a deadline."""

    def __init__(self, tier: PartitionTier, deadline: float) -> None:
        self._tier = tier
        self._deadline = deadline

    async def read(
        self, offset: int, end_offset: int, max_bytes: int, *, is_required: bool
    ) -> BatchRun:
        """As BatchReader.read, and as RemoteTier.reader says."""
        return await self._tier.read_batches(
            offset, end_offset, max_bytes, self._deadline, is_required=is_required
        )
