"""ListOffsets: the first record at or after a timestamp, and the special offsets.

1. Segments are passed over by their largest timestamp.
2. The time stream's entries around the timestamp bound where in the segment it can be.
3. Between them, attributes say which batch holds the first record late enough.
4. That one batch is read and decoded.
"""

from __future__ import annotations

from collections.abc import Sequence

from streamlog.codec.records import first_at_or_after
from streamlog.errors import Invalid
from streamlog.log.abstract import (
    EARLIEST,
    EARLIEST_LOCAL,
    LATEST,
    LATEST_TIERED,
    MAX_TIMESTAMP,
    TimestampAndOffset,
)
from streamlog.log.batch_facts import decode_facts
from streamlog.log.leader_epochs import LeaderEpochs
from streamlog.log.recovery import OpenStreams
from streamlog.log.segment import SharedLogSegment
from streamlog.runtime.buffers import Buffer, join
from streamlog.runtime.offload import Lane, Offload

NOT_FOUND = TimestampAndOffset(-1, -1, -1)
ATTRIBUTES_STEP = 4096
"""Offsets whose attributes are read at a time where no index entry bounds the search."""
INLINE_BYTES_MAX = 16 << 10
"""Batches up to this size are decoded on the event loop: at most about 1 ms."""


async def lookup(
    timestamp_ms: int,
    *,
    segments: Sequence[SharedLogSegment],
    streams: OpenStreams,
    epochs: LeaderEpochs,
    start_offset: int,
    end_offset: int,
    offload: Offload | None,
) -> TimestampAndOffset:
    """Among offsets start (inclusive) to end (exclusive). Errors: Invalid, those of the streams."""
    if timestamp_ms in (EARLIEST, EARLIEST_LOCAL):
        return TimestampAndOffset(-1, start_offset, epochs.epoch_at(start_offset))
    if timestamp_ms == LATEST:
        return TimestampAndOffset(-1, end_offset, epochs.epoch_at(end_offset))
    if timestamp_ms == LATEST_TIERED:
        return NOT_FOUND
    if timestamp_ms == MAX_TIMESTAMP:
        timestamp_ms = max(one.largest_visible for one in segments)
        if timestamp_ms < 0:
            return NOT_FOUND
    if timestamp_ms < 0:
        raise Invalid(
            f"timestamp {timestamp_ms} is neither a time nor one of -1 (latest), -2 (earliest), "
            "-3 (largest timestamp), -4 (earliest local), -5 (latest tiered)"
        )
    search = _Search(timestamp_ms, streams, start_offset, end_offset, offload)
    for segment in segments:
        if segment.base_offset >= end_offset:
            break
        if segment.largest < timestamp_ms or segment.end_offset <= start_offset:
            continue
        found = await search.in_segment(segment)
        if found is not None:
            offset, stamp = found
            return TimestampAndOffset(stamp, offset, epochs.epoch_at(offset))
    return NOT_FOUND


class _Search:
    def __init__(
        self,
        timestamp_ms: int,
        streams: OpenStreams,
        start_offset: int,
        end_offset: int,
        offload: Offload | None,
    ) -> None:
        self._timestamp_ms = timestamp_ms
        self._streams = streams
        self._start = start_offset
        self._end = end_offset
        self._offload = offload

    async def in_segment(self, segment: SharedLogSegment) -> tuple[int, int] | None:
        """(offset, timestamp)."""
        time = self._streams.by_id[segment.time.stream_id]
        below, above = await segment.time_index.around(time, self._timestamp_ms)
        base = segment.base_offset
        start = max(base if below is None else base + below.relative_offset + 1, self._start)
        end = min(segment.end_offset, self._end)
        likely_end = end if above is None else min(base + above.relative_offset + 1, end)
        while start < end:
            step_end = likely_end if start < likely_end else end
            step_end = min(step_end, start + ATTRIBUTES_STEP)
            found = await self._in_range(segment, start, step_end)
            if found is not None:
                return found
            start = step_end
        return None

    async def _in_range(
        self, segment: SharedLogSegment, start: int, end: int
    ) -> tuple[int, int] | None:
        stream, shift = self._streams.by_id[segment.data.stream_id], segment.data_shift
        for batch in await stream.attributes(start + shift, end + shift):
            if decode_facts(batch.attributes).max_timestamp_ms < self._timestamp_ms:
                continue
            at = max(batch.base_offset, stream.start_offset)
            (stored,) = (await stream.fetch(at, at + 1, 1)).batches
            found = await self._decode(join(stored.parts))
            if found is not None:
                return found
        return None

    async def _decode(self, batch: Buffer) -> tuple[int, int] | None:
        if self._offload is None or len(batch) <= INLINE_BYTES_MAX:
            return first_at_or_after(batch, self._timestamp_ms, self._start)
        return await self._offload.run(
            Lane.CPU, first_at_or_after, batch, self._timestamp_ms, self._start
        )
