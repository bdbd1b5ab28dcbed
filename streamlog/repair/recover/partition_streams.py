"""What a meta stream's state tells of its partition's other streams. Pure.

Meta records follow the data that they describe: where one says that a stream reached an offset, all
before it was stored. And they precede a trim, which goes to the lowest start of any slice that they
name (`SliceTrimmer`).
"""

from __future__ import annotations

from collections.abc import Iterator

from streamlog.log.shared.meta.codec import OPEN_END, SegmentOpened, SegmentSealed
from streamlog.log.shared.meta.state import MetaState
from streamlog.log.stream_tags import CLEANED_ROLES
from streamlog.model.batch import StreamSlice

DATA, TIME = "data", "time"


def by_role(state: MetaState) -> dict[str, int]:
    """Role → stream id, without the meta stream's. Without a description there are none."""
    described = state.description
    if described is None:
        return {}
    streams = {
        DATA: described.data_stream_id,
        TIME: described.time_stream_id,
        "txn": described.txn_stream_id,
    }
    if state.cleaned is not None:
        # While they are being created, none is named.
        streams |= zip(CLEANED_ROLES, state.cleaned.ids, strict=False)
    return streams


def reached(state: MetaState, role: str, stream_id: int) -> int:
    """Where the stream ends at least."""
    ends = [part.end_offset for part in _slices(state, stream_id) if part.end_offset != OPEN_END]
    active, checkpoint = state.active, state.checkpoint
    if active is not None:
        parts = (active.data, active.time, active.txn)
        ends += [part.start_offset for part in parts if part.stream_id == stream_id]
        if checkpoint is not None and role == DATA:
            ends.append(active.data.start_offset + checkpoint.offset - active.base_offset)
    if checkpoint is not None and role == TIME:
        ends.append(checkpoint.time_stream_end)
    return max([0, *ends])


def trimmed_to(state: MetaState, stream_id: int) -> int | None:
    """Where the stream begins at the latest; None: no segment has anything on it."""
    starts = []
    for number, one in enumerate(_segments(state)):
        starts += [part.start_offset for part in (one.time, one.txn) if part.stream_id == stream_id]
        if one.data.stream_id == stream_id:
            # Of the oldest segment what lies before the log's start goes, too.
            gone = max(_log_start_in(state, one) - one.base_offset, 0) if number == 0 else 0
            starts.append(one.data.start_offset + gone)
    return min(starts, default=None)


def _log_start_in(state: MetaState, segment: SegmentSealed | SegmentOpened) -> int:
    if isinstance(segment, SegmentSealed):
        return min(state.log_start_offset, segment.end_offset)
    return state.log_start_offset


def _segments(state: MetaState) -> Iterator[SegmentSealed | SegmentOpened]:
    yield from state.sealed
    if state.active is not None:
        yield state.active


def _slices(state: MetaState, stream_id: int) -> list[StreamSlice]:
    return [
        part
        for one in _segments(state)
        for part in (one.data, one.time, one.txn)
        if part.stream_id == stream_id
    ]
