"""A Replacement as a record, and whether it replaces what it says. Pure but for the look-ups."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Awaitable, Callable, Sequence

from streamlog.errors import Corrupt, Invalid
from streamlog.format.records.compaction import CompactionRecord, Output
from streamlog.metadata.compaction_interface import Replacement
from streamlog.metadata.fold.fold import Fold
from streamlog.metadata.fold.generation import SPAN_MAX
from streamlog.metadata.fold.overlay import FoundRange
from streamlog.metadata.interface import NewObject
from streamlog.metadata.steps import Steps, run_breathing

RangesOf = Callable[[int, int, int], Awaitable[Sequence[FoundRange]]]
"""Live ranges of a stream that overlap [start, end), the first ones, clipped to its start."""
STEP_ROWS = 2048
"""About 1 ms."""
LOOKUP_ROWS = 20
"""Rows that take as long as a look-up without results."""


def record_of(replacement: Replacement, counter: int, floor: int) -> Steps[CompactionRecord]:
    """The record that makes `x` to be `counter`. Errors: Invalid."""
    outputs = []
    for new in replacement.outputs:
        outputs.append((yield from _output(new)))
    inputs = array("Q", sorted(set(replacement.inputs)))
    return CompactionRecord(floor, counter, inputs, tuple(outputs))


def runs_of(new: NewObject) -> Steps[list[tuple[int, int, int]]]:
    """(stream, start, end) of the object's rows, those that meet as one.

    Errors: Invalid (rows are out of order, overlap or are empty).
    """
    runs: list[tuple[int, int, int]] = []
    last_stream = last_end = -1
    for number, (stream_id, _, start, end) in enumerate(new.ranges):
        if (
            start >= end
            or stream_id < last_stream
            or (stream_id == last_stream and start < last_end)
        ):
            raise Invalid(
                f"the rows of object {new.row.object_id} are empty or out of order at stream "
                f"{stream_id}, {start} to {end}"
            )
        if start == last_end and stream_id == last_stream:
            runs[-1] = (stream_id, runs[-1][1], end)
        else:
            runs.append((stream_id, start, end))
        last_stream, last_end = stream_id, end
        if number % STEP_ROWS == STEP_ROWS - 1:
            yield
    return runs


async def check_replaced(
    replacement: Replacement, fold: Callable[[], Fold], find: RangesOf
) -> None:
    """Every output row takes the place of whole live ranges of inputs, but for what was trimmed.

    Errors: Invalid; Corrupt (a stream has a hole); those of the look-ups.
    """
    inputs = frozenset(replacement.inputs)
    done = 0
    for new in replacement.outputs:
        for stream_id, start, end in await run_breathing(runs_of(new)):
            at = start
            while at < end and stream_id in fold().info:
                before, found = at, await find(stream_id, at, end)
                for low, high, object_id in found:
                    if object_id not in inputs or high > end or low < start:
                        raise Invalid(
                            f"output {new.row.object_id} has offsets {start} to {end} of stream "
                            f"{stream_id}, where {low} to {high} live in object {object_id}: it "
                            "replaces whole ranges of its inputs only"
                        )
                    at = high
                done += LOOKUP_ROWS + len(found)
                known = fold().info.get(stream_id)
                if known is not None:
                    at = max(at, fold().starts[stream_id])
                    if end > fold().ends[stream_id]:
                        raise Invalid(
                            f"output {new.row.object_id} has offsets {start} to {end} of stream "
                            f"{stream_id}, which ends at {fold().ends[stream_id]}"
                        )
                    if at == before:
                        raise Corrupt(
                            f"stream {stream_id} has no data at offset {at}, between its start "
                            f"{fold().starts[stream_id]} and its end {fold().ends[stream_id]}: run "
                            "fsck"
                        )
            if done >= STEP_ROWS:
                done = 0
                await asyncio.sleep(0)


def _output(new: NewObject) -> Steps[Output]:
    streams, starts, counts = array("Q"), array("Q"), array("I")
    for number, (stream_id, start, end) in enumerate((yield from runs_of(new))):
        if number % STEP_ROWS == STEP_ROWS - 1:
            yield
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
