"""Record batches of a log, read through its segments' slices."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from streamlog.errors import Internal, StreamlogError
from streamlog.log.shared.state.segment import SharedLogSegment
from streamlog.model.batch import FetchContext, Turn
from streamlog.model.stream import Stream
from streamlog.runtime.buffers import Buffer, parts_size


@dataclass(slots=True)
class BatchesRead:
    """Whole batches; `next_offset` follows the last one. `is_paced` as in FetchResult."""

    next_offset: int
    parts: list[Buffer] = field(default_factory=list)
    size_bytes: int = 0
    batches: int = 0
    is_paced: bool = False


async def fetch_batches(
    segments: Sequence[SharedLogSegment],
    streams: Mapping[int, Stream],
    offset: int,
    end_offset: int,
    max_bytes: int,
    *,
    min_one_batch: bool,
    deadline: float | None,
) -> BatchesRead:
    """Batches from the one with `offset` up to `end_offset` (exclusive), at most `max_bytes`.

    `min_one_batch` returns the first one even when it is larger, and waits where others go first;
    without it nothing comes then. `segments` may lose its first ones meanwhile. Errors: those of
    Stream.fetch.
    """
    read = BatchesRead(offset)
    last = 1
    while read.next_offset < end_offset:
        room = max_bytes - read.size_bytes
        # One more as large as the last would be too much.
        if room < last and (read.batches or not min_one_batch):
            break
        position = read.next_offset
        segment, run_end = _run(segments, position, end_offset, room)
        shift = segment.data_shift
        turn = Turn.WAIT if min_one_batch and not read.batches else Turn.LEAVE
        context = FetchContext(deadline=deadline, lagging=not segment.is_active, turn=turn)
        try:
            result = await streams[segment.data.stream_id].fetch(
                position + shift, run_end + shift, max(room, 1), context
            )
        except StreamlogError:
            # What came before the failure is handed out; the next fetch meets it.
            if not read.batches:
                raise
            return read
        for batch in result.batches:
            size = parts_size(batch.parts)
            if read.size_bytes + size > max_bytes and (read.batches or not min_one_batch):
                return read
            last = max(size, 1)
            read.parts += batch.parts
            read.size_bytes += size
            read.batches += 1
            read.next_offset = batch.end_offset - shift
        if result.is_paced:
            read.is_paced = True
            return read
        if read.next_offset == position:
            raise Internal(
                f"stream {segment.data.stream_id} returned nothing at {position + shift}"
            )
    return read


def _run(
    segments: Sequence[SharedLogSegment], offset: int, end_offset: int, room: int
) -> tuple[SharedLogSegment, int]:
    """The segment of `offset`, and the end of the run of segments that meet on the same stream."""
    index = max(bisect_right(segments, offset, key=lambda one: one.base_offset) - 1, 0)
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
