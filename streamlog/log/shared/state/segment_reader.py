"""Reads record batches of a shared log through its segments' slices of streams."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence

from streamlog.codec.batch import parse_header
from streamlog.log.api.batch_reader import BatchRun
from streamlog.log.shared.state.segment import SharedLogSegment
from streamlog.model.batch import FetchContext, ReadMode, StoredBatch
from streamlog.model.stream import Stream
from streamlog.runtime.buffers import join


class SegmentReader:
    """A BatchReader for one fetch. `segments` may lose its first ones meanwhile."""

    def __init__(
        self,
        segments: Sequence[SharedLogSegment],
        streams: Mapping[int, Stream],
        deadline: float | None,
    ) -> None:
        self._segments = segments
        self._streams = streams
        self._deadline = deadline

    async def read(
        self, offset: int, end_offset: int, max_bytes: int, *, is_required: bool
    ) -> BatchRun:
        """As BatchReader.read. Errors: those of Stream.fetch."""
        segment, run_end = _run(self._segments, offset, end_offset, max_bytes)
        stream_id, shift = segment.data.stream_id, segment.data_shift
        mode = ReadMode.WAIT if is_required else ReadMode.SKIP
        context = FetchContext(
            deadline=self._deadline, is_catch_up=not segment.is_active, read_mode=mode
        )
        result = await self._streams[stream_id].fetch(
            offset + shift, run_end + shift, max(max_bytes, 1), context
        )
        batches = result.batches
        if (
            batches
            and batches[-1].end_offset > run_end + shift
            and _begins_at(batches[-1], run_end)
        ):
            return BatchRun(batches[:-1], shift, result.is_paced, empty_until=run_end)
        return BatchRun(batches, shift, result.is_paced)


def reads_objects(
    segments: Sequence[SharedLogSegment], streams: Mapping[int, Stream], offset: int
) -> bool:
    segment = segments[_index(segments, offset)]
    return offset + segment.data_shift < streams[segment.data.stream_id].tail_offset


def _begins_at(batch: StoredBatch, offset: int) -> bool:
    """Whether the first record is at the offset, or behind it.

    A batch that a cleaning has kept takes the offsets of those that went before it: where the last
    stable offset lies between them, a read that must not pass it would get an open transaction.
    """
    return parse_header(join(batch.parts)).base_offset >= offset


def _index(segments: Sequence[SharedLogSegment], offset: int) -> int:
    return max(bisect_right(segments, offset, key=lambda segment: segment.base_offset) - 1, 0)


def _run(
    segments: Sequence[SharedLogSegment], offset: int, end_offset: int, room: int
) -> tuple[SharedLogSegment, int]:
    """The segment of `offset`, and the end of the run of segments that meet on the same stream."""
    index = _index(segments, offset)
    first = segments[index]
    size = first.size
    while index + 1 < len(segments) and segments[index].end_offset < end_offset and size < room:
        index += 1
        following = segments[index]
        if (
            following.data.stream_id != first.data.stream_id
            or following.data_shift != first.data_shift
        ):
            index -= 1
            break
        size += following.size
    return first, min(segments[index].end_offset, end_offset)
