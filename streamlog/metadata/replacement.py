"""A Replacement as a record, and whether it replaces what it says. Pure but for the look-ups."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Awaitable, Callable, Sequence

from streamlog.errors import Invalid
from streamlog.format.compaction_record import CompactionRecord, Output
from streamlog.metadata.compaction_interface import Replacement
from streamlog.metadata.fold import Fold
from streamlog.metadata.generation import SPAN_MAX
from streamlog.metadata.interface import NewObject
from streamlog.metadata.overlay import FoundRange

RangesOf = Callable[[int, int, int], Awaitable[Sequence[FoundRange]]]
"""Live ranges of a stream that overlap [start, end), the first ones, clipped to its start."""
BREATHE_ROWS = 64


def record_of(replacement: Replacement, counter: int, floor: int) -> CompactionRecord:
    """The record that makes `x` to be `counter`."""
    outputs = tuple(_output(new) for new in replacement.outputs)
    return CompactionRecord(floor, counter, array("Q", sorted(set(replacement.inputs))), outputs)


def runs_of(new: NewObject) -> list[tuple[int, int, int]]:
    """(stream, start, end) of the object's rows, those that meet as one.

    Errors: Invalid (rows are out of order, overlap or are empty).
    """
    runs: list[tuple[int, int, int]] = []
    for stream_id, _, start, end in new.ranges:
        last = runs[-1] if runs else (-1, 0, 0)
        if start >= end or stream_id < last[0] or (stream_id == last[0] and start < last[2]):
            raise Invalid(
                f"the rows of object {new.row.object_id} are empty or out of order at stream "
                f"{stream_id}, {start} to {end}"
            )
        if (stream_id, start) == (last[0], last[2]):
            runs[-1] = (stream_id, last[1], end)
        else:
            runs.append((stream_id, start, end))
    return runs


async def check_replaced(
    replacement: Replacement, fold: Callable[[], Fold], find: RangesOf
) -> None:
    """Every output row takes the place of whole live ranges of inputs, but for what was trimmed.

    Errors: Invalid; those of the look-ups.
    """
    inputs = frozenset(replacement.inputs)
    for new in replacement.outputs:
        for number, (stream_id, start, end) in enumerate(runs_of(new)):
            at = start
            while at < end and stream_id in fold().info:
                for old in await find(stream_id, at, end):
                    if old.object_id not in inputs or old.end > end or old.start < start:
                        raise Invalid(
                            f"output {new.row.object_id} has offsets {start} to {end} of stream "
                            f"{stream_id}, where {old.start} to {old.end} live in object "
                            f"{old.object_id}: it replaces whole ranges of its inputs only"
                        )
                    at = old.end
                known = fold().info.get(stream_id)
                if known is not None:
                    at = max(at, fold().starts[stream_id])
                    if end > fold().ends[stream_id]:
                        raise Invalid(
                            f"output {new.row.object_id} has offsets {start} to {end} of stream "
                            f"{stream_id}, which ends at {fold().ends[stream_id]}"
                        )
            if number % BREATHE_ROWS == BREATHE_ROWS - 1:
                await asyncio.sleep(0)


def _output(new: NewObject) -> Output:
    streams, starts, counts = array("Q"), array("Q"), array("I")
    for stream_id, start, end in runs_of(new):
        for at in range(start, end, SPAN_MAX):
            streams.append(stream_id)
            starts.append(at)
            counts.append(min(end - at, SPAN_MAX))
    row = new.row
    return Output(
        row.object_id,
        row.size_bytes,
        row.index_position,
        row.index_length,
        row.index_crc32c,
        row.store,
        streams,
        starts,
        counts,
    )
