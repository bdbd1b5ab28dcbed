"""Turns a Replacement into a record, and checks that it replaces whole ranges of its inputs."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Awaitable, Callable, Sequence

from streamlog.errors import Corrupt, Invalid
from streamlog.format.records.compaction import CompactionRecord, OutputRows
from streamlog.metadata.compaction_interface import Replacement
from streamlog.metadata.fold.fold import Fold
from streamlog.metadata.fold.generation import SPAN_MAX
from streamlog.metadata.fold.overlay import ObjectRange
from streamlog.metadata.interface import NewObject
from streamlog.runtime.concurrency.steps import Steps, run_cooperatively

RangesOf = Callable[[int, int, int], Awaitable[Sequence[ObjectRange]]]
"""(stream id, start, end) → the first live ranges there, clipped to the stream's start."""
STEP_ROWS = 2048
"""About 1 ms."""
LOOKUP_ROWS = 20
"""A look-up without results costs as much as this number of rows."""


def record_of(replacement: Replacement, counter: int, floor: int) -> Steps[CompactionRecord]:
    """The record that raises the compaction counter to `counter`. Errors: Invalid."""
    outputs = []
    for new in replacement.outputs:
        outputs.append((yield from _output(new)))
    inputs = array("Q", sorted(set(replacement.inputs)))
    return CompactionRecord(floor, counter, inputs, tuple(outputs))


def runs_of(new: NewObject) -> Steps[list[tuple[int, int, int]]]:
    """(stream, start, end) of the object's rows; adjacent rows become one.

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
    """Checks that every output row replaces whole live ranges of inputs, except trimmed ones.

    Errors: Invalid; Corrupt (a stream has a hole); those of the look-ups.
    """
    inputs = frozenset(replacement.inputs)
    done = 0
    for new in replacement.outputs:
        for stream_id, start, end in await run_cooperatively(runs_of(new)):
            offset = start
            while offset < end and stream_id in fold().info:
                before, ranges = offset, await find(stream_id, offset, end)
                for low, high, object_id in ranges:
                    if object_id not in inputs or high > end or low < start:
                        raise Invalid(
                            f"output {new.row.object_id} has offsets {start} to {end} of stream "
                            f"{stream_id}, where {low} to {high} live in object {object_id}: it "
                            "replaces whole ranges of its inputs only"
                        )
                    offset = high
                done += LOOKUP_ROWS + len(ranges)
                if stream_id in fold().info:
                    offset = max(offset, fold().starts[stream_id])
                    if end > fold().ends[stream_id]:
                        raise Invalid(
                            f"output {new.row.object_id} has offsets {start} to {end} of stream "
                            f"{stream_id}, which ends at {fold().ends[stream_id]}"
                        )
                    if offset == before:
                        raise Corrupt(
                            f"stream {stream_id} has no data at offset {offset}, between its start "
                            f"{fold().starts[stream_id]} and its end {fold().ends[stream_id]}: run "
                            "fsck"
                        )
            if done >= STEP_ROWS:
                done = 0
                await asyncio.sleep(0)


def _output(new: NewObject) -> Steps[OutputRows]:
    streams, starts, counts = array("Q"), array("Q"), array("I")
    for number, (stream_id, start, end) in enumerate((yield from runs_of(new))):
        if number % STEP_ROWS == STEP_ROWS - 1:
            yield
        for part in range(start, end, SPAN_MAX):
            streams.append(stream_id)
            starts.append(part)
            counts.append(min(end - part, SPAN_MAX))
    row = new.row
    return OutputRows(
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
