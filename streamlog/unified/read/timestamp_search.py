"""Searches a unified log for a timestamp, for ListOffsets: the time index says from where on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from streamlog.codec.batch import Compression
from streamlog.codec.piecewise import first_at_or_after, largest_timestamp
from streamlog.errors import StoreUnavailable
from streamlog.format.kafka_files.time_index import TimeEntry, floor_time
from streamlog.runtime.disk.folders import typed_os_error
from streamlog.runtime.offload import Lane, Offload
from streamlog.unified.disk.files import read_if_there
from streamlog.unified.read.segment_reader import FileBatch, SegmentFileReader
from streamlog.unified.state.segment import UnifiedLogSegment

T = TypeVar("T")

STEP_BYTES = 1 << 20
TURN_BATCHES = 512
"""Behind so many batches, which are looked at in about 0.6 ms, other work has its turn."""
INLINE_BYTES_MAX = 16 << 10
"""Uncompressed batches up to this size are decoded on the event loop, in about 1 ms."""


class FileSearch:
    """A TimestampSearch among offsets start (inclusive) to end (exclusive).

    Errors: SegmentReplaced, beside those of TimestampSearch: search again.
    """

    def __init__(
        self,
        reader: SegmentFileReader,
        start_offset: int,
        end_offset: int,
        offload: Offload,
        record_bytes_max: int,
    ) -> None:
        self.start_offset = start_offset
        self.end_offset = end_offset
        self._reader = reader
        self._offload = offload
        self._record_bytes_max = record_bytes_max

    async def largest(self, segments: Sequence[UnifiedLogSegment]) -> int:
        """As TimestampSearch.largest. A segment's own largest may be that of a deleted record."""
        left = [segment for segment in segments if segment.end_offset > self.start_offset]
        whole = [segment for segment in left if segment.base_offset >= self.start_offset]
        largest = max((segment.largest_visible for segment in whole), default=-1)
        for segment in left:
            if segment.base_offset < self.start_offset and segment.largest_visible > largest:
                largest = max(largest, await self._largest_left(segment, largest))
        return largest

    async def _largest_left(self, segment: UnifiedLogSegment, largest: int) -> int:
        position, end = self.start_offset, min(segment.end_offset, self.end_offset)
        while position < end:
            batches = await self._read(segment, position, end)
            if not batches:
                break
            for number, batch in enumerate(batches, 1):
                if not number % TURN_BATCHES:
                    await asyncio.sleep(0)
                stamp = batch.header.max_timestamp_ms
                if stamp > largest and batch.header.base_offset < self.start_offset:
                    stamp = await self._decoded(
                        batch, largest_timestamp, batch.parts[0], self.start_offset
                    )
                largest = max(largest, stamp)
                position = batch.end_offset
        return largest

    async def in_segment(
        self, segment: UnifiedLogSegment, timestamp_ms: int
    ) -> tuple[int, int] | None:
        """As TimestampSearch.in_segment."""
        times = segment.times
        if times is None:
            name = segment.time_index_name
            stored = await self._stored(name)
            segment.check_current()
            times = bytearray(stored or b"")
        # Up to the entry no record has a later timestamp; its own batch may have one as late.
        entry = floor_time(times, timestamp_ms - 1)
        first = segment.base_offset
        if entry is not None and await self._is_true(segment, entry):
            first += entry.relative_offset
        position, end = max(first, self.start_offset), min(segment.end_offset, self.end_offset)
        while position < end:
            batches = await self._read(segment, position, end)
            if not batches:
                break
            for number, batch in enumerate(batches, 1):
                if not number % TURN_BATCHES:
                    await asyncio.sleep(0)
                position = batch.end_offset
                if batch.header.max_timestamp_ms < timestamp_ms:
                    continue
                record = await self._decoded(
                    batch, first_at_or_after, batch.parts[0], timestamp_ms, self.start_offset
                )
                if record is not None:
                    return record
        return None

    async def _stored(self, name: str) -> bytes | None:
        """Errors: StoreUnavailable."""
        try:
            return await self._offload.run(Lane.READ, read_if_there, self._reader.folder, name)
        except OSError as error:
            raise typed_os_error(error, name, "reading", StoreUnavailable) from error

    async def _is_true(self, segment: UnifiedLogSegment, entry: TimeEntry) -> bool:
        """Whether the batch is there that the entry speaks of: an index has no CRC."""
        offset = segment.base_offset + entry.relative_offset
        if not segment.base_offset <= offset < segment.end:
            return False
        found = await self._reader.find(segment, offset, segment.end, 1)
        segment.check_current()
        return bool(found) and found is not None and self._says(found[0], offset, entry)

    @staticmethod
    def _says(batch: FileBatch, offset: int, entry: TimeEntry) -> bool:
        header = batch.header
        return header.last_offset == offset and header.max_timestamp_ms == entry.timestamp_ms

    async def _read(self, segment: UnifiedLogSegment, offset: int, end: int) -> Sequence[FileBatch]:
        found = await self._reader.find(segment, offset, end, STEP_BYTES)
        segment.check_current()
        return found or ()

    async def _decoded(self, batch: FileBatch, decode: Callable[..., T], *arguments: object) -> T:
        """Calls `decode` with the bound on one record as its last argument."""
        work = partial(decode, *arguments, self._record_bytes_max)
        is_small = batch.header.size_bytes <= INLINE_BYTES_MAX
        if is_small and batch.header.codec == Compression.NONE:
            return work()
        return await self._offload.run(Lane.CPU, work)
