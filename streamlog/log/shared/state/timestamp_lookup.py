"""ListOffsets: the first record at or after a timestamp, and the special offsets.

1. Segments are passed over by their largest timestamp.
2. The time stream's entries around the timestamp bound where in the segment it can be.
3. Between them, attributes say which batch holds the first record late enough.
4. That one batch is read and decoded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from streamlog.codec.batch import Compression, parse_header
from streamlog.codec.piecewise import first_at_or_after, largest_timestamp
from streamlog.errors import Invalid
from streamlog.log.api.abstract_log import (
    EARLIEST,
    EARLIEST_LOCAL,
    LATEST,
    LATEST_TIERED,
    MAX_TIMESTAMP,
    TimestampAndOffset,
)
from streamlog.log.partition.batch_metadata import decode_batch_metadata
from streamlog.log.partition.leader_epoch_cache import LeaderEpochCache
from streamlog.log.shared.state.recovery import OpenStreams
from streamlog.log.shared.state.segment import SharedLogSegment
from streamlog.model.stream import Stream
from streamlog.runtime.buffers import Buffer, join
from streamlog.runtime.offload import Lane, Offload

T = TypeVar("T")

NOT_FOUND = TimestampAndOffset(-1, -1, -1)
ATTRIBUTES_STEP = 4096
"""Offsets whose attributes are read at a time where no index entry bounds the search."""
INLINE_BYTES_MAX = 16 << 10
"""Uncompressed batches up to this size are decoded on the event loop: at most about 1 ms. What is
compressed may expand to any size, and is decoded elsewhere."""


async def lookup(
    timestamp_ms: int,
    *,
    segments: Sequence[SharedLogSegment],
    streams: OpenStreams,
    epochs: LeaderEpochCache,
    start_offset: int,
    end_offset: int,
    offload: Offload | None,
    record_bytes_max: int,
) -> TimestampAndOffset:
    """Among offsets start (inclusive) to end (exclusive). Errors: Invalid, those of the streams."""
    if timestamp_ms in (EARLIEST, EARLIEST_LOCAL):
        return TimestampAndOffset(-1, start_offset, epochs.epoch_at(start_offset))
    if timestamp_ms == LATEST:
        return TimestampAndOffset(-1, end_offset, epochs.epoch_at(end_offset))
    if timestamp_ms == LATEST_TIERED:
        return NOT_FOUND
    search = _Search(streams, start_offset, end_offset, offload, record_bytes_max)
    if timestamp_ms == MAX_TIMESTAMP:
        timestamp_ms = await search.largest(segments)
        if timestamp_ms < 0:
            return NOT_FOUND
    if timestamp_ms < 0:
        raise Invalid(
            f"timestamp {timestamp_ms} is neither a time nor one of -1 (latest), -2 (earliest), "
            "-3 (largest timestamp), -4 (earliest local), -5 (latest tiered)"
        )
    for segment in segments:
        if segment.base_offset >= end_offset:
            break
        if segment.largest < timestamp_ms or segment.end_offset <= start_offset:
            continue
        found = await search.in_segment(segment, timestamp_ms)
        if found is not None:
            offset, stamp = found
            return TimestampAndOffset(stamp, offset, epochs.epoch_at(offset))
    return NOT_FOUND


class _Search:
    """Among offsets start (inclusive) to end (exclusive)."""

    def __init__(
        self,
        streams: OpenStreams,
        start_offset: int,
        end_offset: int,
        offload: Offload | None,
        record_bytes_max: int,
    ) -> None:
        self._streams = streams
        self._start = start_offset
        self._end = end_offset
        self._offload = offload
        self._record_bytes_max = record_bytes_max

    async def largest(self, segments: Sequence[SharedLogSegment]) -> int:
        """The largest timestamp; -1 where no record has one.

        A segment knows its own, of deleted records, too: of the one that the log's start lies in,
        what is left is looked at, if the others have not a later one.
        """
        left = [one for one in segments if one.end_offset > self._start]
        cut = [one for one in left if one.base_offset < self._start]
        found = max((one.largest_visible for one in left if one not in cut), default=-1)
        for segment in cut:
            if segment.largest_visible > found:
                found = max(found, await self._largest_left(segment, found))
        return found

    async def _largest_left(self, segment: SharedLogSegment, known: int) -> int:
        stream, shift = self._streams.by_id[segment.data.stream_id], segment.data_shift
        start, end = self._start + shift, min(segment.end_offset, self._end) + shift
        found = known
        while start < end:
            step_end = min(start + ATTRIBUTES_STEP, end)
            for batch in await stream.attributes(start, step_end):
                step_end = max(step_end, batch.base_offset + batch.record_count)
                stamp = decode_batch_metadata(batch.attributes).max_timestamp_ms
                if stamp > found and batch.base_offset < self._start + shift:
                    data = await self._batch(stream, batch.base_offset)
                    stamp = await self._decoded(data, largest_timestamp, data, self._start)
                found = max(found, stamp)
            start = step_end
        return found

    async def in_segment(
        self, segment: SharedLogSegment, timestamp_ms: int
    ) -> tuple[int, int] | None:
        """(offset, timestamp)."""
        time = self._streams.by_id[segment.time.stream_id]
        below, above = await segment.time_index.around(time, timestamp_ms)
        base = segment.base_offset
        start = max(base if below is None else base + below.relative_offset + 1, self._start)
        end = min(segment.end_offset, self._end)
        likely_end = end if above is None else min(base + above.relative_offset + 1, end)
        while start < end:
            step_end = likely_end if start < likely_end else end
            step_end = min(step_end, start + ATTRIBUTES_STEP)
            found, start = await self._in_range(segment, start, step_end, timestamp_ms)
            if found is not None:
                return found
        return None

    async def _in_range(
        self, segment: SharedLogSegment, start: int, end: int, timestamp_ms: int
    ) -> tuple[tuple[int, int] | None, int]:
        """What was found, and where to look on: behind the last batch, which may be longer than a
        step and would be decoded again for each step that it reaches into."""
        stream, shift = self._streams.by_id[segment.data.stream_id], segment.data_shift
        next_start = end
        for batch in await stream.attributes(start + shift, end + shift):
            next_start = max(next_start, batch.base_offset + batch.record_count - shift)
            if decode_batch_metadata(batch.attributes).max_timestamp_ms < timestamp_ms:
                continue
            data = await self._batch(stream, batch.base_offset)
            found = await self._decoded(data, first_at_or_after, data, timestamp_ms, self._start)
            if found is not None:
                return found, next_start
        return None, next_start

    @staticmethod
    async def _batch(stream: Stream, offset: int) -> Buffer:
        at = max(offset, stream.start_offset)
        (stored,) = (await stream.fetch(at, at + 1, 1)).batches
        return join(stored.parts)

    async def _decoded(self, batch: Buffer, decode: Callable[..., T], *arguments: object) -> T:
        """`decode` with the bound on one record as its last argument."""
        work = partial(decode, *arguments, self._record_bytes_max)
        is_small = len(batch) <= INLINE_BYTES_MAX
        if self._offload is None or (is_small and parse_header(batch).codec == Compression.NONE):
            return work()
        return await self._offload.run(Lane.CPU, work)
