"""Searches a shared log for a timestamp, for ListOffsets.

1. The time stream's entries around the timestamp bound where in the segment it can be.
2. Between them, attributes say which batch holds the first record late enough.
3. That one batch is read and decoded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

from streamlog.codec.batch import Compression, parse_header
from streamlog.codec.piecewise import first_at_or_after, largest_timestamp
from streamlog.log.partition.batch_metadata import decode_batch_metadata
from streamlog.log.shared.state.segment import SharedLogSegment
from streamlog.model.stream import Stream
from streamlog.runtime.buffers import Buffer, join
from streamlog.runtime.offload import Lane, Offload

T = TypeVar("T")

ATTRIBUTES_STEP = 4096
"""Offsets whose attributes are read at a time where no index entry bounds the search."""
INLINE_BYTES_MAX = 16 << 10
"""Uncompressed batches up to this size are decoded on the event loop, in about 1 ms. Compressed
ones may expand to any size, and are decoded elsewhere."""


class SegmentSearch:
    """A TimestampSearch among offsets start (inclusive) to end (exclusive)."""

    def __init__(
        self,
        streams: Mapping[int, Stream],
        start_offset: int,
        end_offset: int,
        offload: Offload | None,
        record_bytes_max: int,
    ) -> None:
        self.start_offset = start_offset
        self.end_offset = end_offset
        self._streams = streams
        self._offload = offload
        self._record_bytes_max = record_bytes_max

    async def largest(self, segments: Sequence[SharedLogSegment]) -> int:
        """As TimestampSearch.largest.

        A segment's own largest timestamp may be that of a deleted record. So the segment that holds
        the log's start offset is searched, unless a later segment has a larger timestamp.
        """
        left = [segment for segment in segments if segment.end_offset > self.start_offset]
        whole = [segment for segment in left if segment.base_offset >= self.start_offset]
        largest = max((segment.largest_visible for segment in whole), default=-1)
        for segment in left:
            if segment.base_offset < self.start_offset and segment.largest_visible > largest:
                largest = max(largest, await self._largest_left(segment, largest))
        return largest

    async def _largest_left(self, segment: SharedLogSegment, largest: int) -> int:
        """The larger of `largest` and of the timestamps that are left in the segment."""
        stream, shift = self._streams[segment.data.stream_id], segment.data_shift
        start, end = self.start_offset + shift, min(segment.end_offset, self.end_offset) + shift
        while start < end:
            step_end = min(start + ATTRIBUTES_STEP, end)
            for batch in await stream.attributes(start, step_end):
                step_end = max(step_end, batch.base_offset + batch.record_count)
                stamp = decode_batch_metadata(batch.attributes).max_timestamp_ms
                if stamp > largest and batch.base_offset < self.start_offset + shift:
                    data = await self._batch(stream, batch.base_offset)
                    stamp = await self._decoded(data, largest_timestamp, data, self.start_offset)
                largest = max(largest, stamp)
            start = step_end
        return largest

    async def in_segment(
        self, segment: SharedLogSegment, timestamp_ms: int
    ) -> tuple[int, int] | None:
        """As TimestampSearch.in_segment."""
        time = self._streams[segment.time.stream_id]
        below, above = await segment.time_index.around(time, timestamp_ms)
        base = segment.base_offset
        start = max(base if below is None else base + below.relative_offset + 1, self.start_offset)
        end = min(segment.end_offset, self.end_offset)
        likely_end = end if above is None else min(base + above.relative_offset + 1, end)
        while start < end:
            step_end = likely_end if start < likely_end else end
            step_end = min(step_end, start + ATTRIBUTES_STEP)
            record, start = await self._in_range(segment, start, step_end, timestamp_ms)
            if record is not None:
                return record
        return None

    async def _in_range(
        self, segment: SharedLogSegment, start: int, end: int, timestamp_ms: int
    ) -> tuple[tuple[int, int] | None, int]:
        """(offset, timestamp) of the record, if there is one, and where the search goes on.

        It goes on behind the last batch, which may be longer than a step and would else be decoded
        again for each step that it reaches into.
        """
        stream, shift = self._streams[segment.data.stream_id], segment.data_shift
        next_start = end
        for batch in await stream.attributes(start + shift, end + shift):
            next_start = max(next_start, batch.base_offset + batch.record_count - shift)
            if decode_batch_metadata(batch.attributes).max_timestamp_ms < timestamp_ms:
                continue
            data = await self._batch(stream, batch.base_offset)
            record = await self._decoded(
                data, first_at_or_after, data, timestamp_ms, self.start_offset
            )
            # A batch of a cleaned segment may begin before the end, its first record behind it.
            if record is not None and record[0] < self.end_offset:
                return record, next_start
        return None, next_start

    @staticmethod
    async def _batch(stream: Stream, offset: int) -> Buffer:
        start = max(offset, stream.start_offset)
        (stored,) = (await stream.fetch(start, start + 1, 1)).batches
        return join(stored.parts)

    async def _decoded(self, batch: Buffer, decode: Callable[..., T], *arguments: object) -> T:
        """Calls `decode` with the bound on one record as its last argument."""
        work = partial(decode, *arguments, self._record_bytes_max)
        is_small = len(batch) <= INLINE_BYTES_MAX
        if self._offload is None or (is_small and parse_header(batch).codec == Compression.NONE):
            return work()
        return await self._offload.run(Lane.CPU, work)
