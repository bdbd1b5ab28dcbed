"""Applies a compaction record to the fold: outputs take the place of live ranges of inputs.

1. Rows are clipped to their stream's current start; rows that a trim or a destruction has ended are
   dropped. So only another compaction can conflict, and the compaction counter excludes that.
2. The replaced ranges stay where they are; patches of the newest generation hide them.
3. Replaced ranges in memory are checked: each must belong to an input and be replaced whole.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamlog.errors import Corrupt
from streamlog.format.records.compaction import CompactionRecord, OutputRows
from streamlog.metadata.fold.generation import SPAN_MAX, NewObjectEntry, find_in_all
from streamlog.metadata.fold.overlay import ObjectRange
from streamlog.metadata.interface import ObjectRow
from streamlog.runtime.concurrency.steps import Steps

if TYPE_CHECKING:
    from streamlog.metadata.fold.fold import Fold

STEP_ROWS = 2048
"""About 1 ms."""
STREAM_ROWS = 20
"""Checking one stream costs as much as this number of replaced ranges."""
STEP_STREAMS = 128
ANY_NUMBER = 1 << 40


class CompactionDraft:
    """A compaction record while it is applied: `check` it in full, then `finish`."""

    def __init__(self, fold: Fold, what: str, record: CompactionRecord) -> None:
        self._fold = fold
        self._what = what
        self._record = record
        self._runs: dict[int, list[ObjectRange]] = {}
        """Stream id → the outputs' ranges in it, in order, clipped."""
        self._counts: dict[int, int] = {}
        """Output id → number of its live ranges."""

    def check(self) -> Steps[None]:
        """Checks the record; the fold stays unchanged. Errors: Corrupt."""
        record, fold = self._record, self._fold
        if record.counter != fold.compactions.counter + 1:
            raise self._corrupt(
                f"is compaction {record.counter}, after {fold.compactions.counter}: one is lost"
            )
        seen = set(record.inputs)
        for output in record.outputs:
            object_id = output.object_id
            if object_id in seen or any(object_id in g.objects for g in fold.generations):
                raise self._corrupt(f"commits object {object_id} a second time")
            seen.add(object_id)
            self._counts[object_id] = 0
            yield from self._take(output)
        inputs = frozenset(record.inputs)
        done = 0
        for stream_id in list(self._runs):
            done += STREAM_ROWS + self._check_stream(stream_id, inputs)
            if done >= STEP_ROWS:
                done = 0
                yield

    def finish(self, revision: int) -> Steps[None]:
        """Adds objects before their patches, because look-ups run between the steps."""
        newest, rows = self._fold.newest, 0
        for output in self._record.outputs:
            row = ObjectRow(
                output.object_id,
                output.size_bytes,
                output.index_position,
                output.index_length,
                output.index_crc32c,
                output.store,
            )
            count = self._counts[output.object_id]
            newest.objects[output.object_id] = NewObjectEntry(row, count, revision)
            rows += len(output.streams)
        for index, (stream_id, runs) in enumerate(self._runs.items()):
            newest.apply_patch(stream_id, _pieces(runs))
            if index % STEP_STREAMS == STEP_STREAMS - 1:
                yield
        newest.rows += rows
        self._fold.compactions.add(self._record.inputs)

    def _take(self, output: OutputRows) -> Steps[None]:
        """Notes the output's rows by stream; adjacent rows become one."""
        last_stream = last_end = -1
        for low in range(0, len(output.streams), STEP_ROWS):
            high = low + STEP_ROWS
            for stream_id, start, count in zip(
                output.streams[low:high],
                output.starts[low:high],
                output.counts[low:high],
                strict=True,
            ):
                end = start + count
                if stream_id == last_stream:
                    if start < last_end:
                        raise self._corrupt(f"has rows of stream {stream_id} that overlap")
                    if start == last_end:
                        runs = self._runs[stream_id]
                        runs[-1] = runs[-1]._replace(end=end)
                        last_end = end
                        continue
                self._runs.setdefault(stream_id, []).append(
                    ObjectRange(start, end, output.object_id)
                )
                last_stream, last_end = stream_id, end
            yield

    def _check_stream(self, stream_id: int, inputs: frozenset[int]) -> int:
        """Sorts and clips the stream's runs; the number of ranges they replace. Errors: Corrupt."""
        fold, runs = self._fold, sorted(self._runs.pop(stream_id))
        if stream_id not in fold.info:
            return 0
        stream_start, previous_end, clipped, replaced = fold.starts[stream_id], 0, [], 0
        for start, end, object_id in runs:
            if start < previous_end:
                raise self._corrupt(f"has rows of stream {stream_id} that overlap")
            previous_end = end
            if end > fold.ends[stream_id]:
                raise self._corrupt(
                    f"has rows of stream {stream_id} up to {end}, past its end "
                    f"{fold.ends[stream_id]}"
                )
            if end > stream_start:
                run = ObjectRange(max(start, stream_start), end, object_id)
                replaced += self._check_replaced(stream_id, run, inputs)
                clipped.append(run)
                self._counts[object_id] += -(-(end - run.start) // SPAN_MAX)
        if clipped:
            self._runs[stream_id] = clipped
        return replaced

    def _check_replaced(self, stream_id: int, run: ObjectRange, inputs: frozenset[int]) -> int:
        stream_start, generations = self._fold.starts[stream_id], self._fold.generations
        ranges = find_in_all(generations, stream_id, run.start, run.end, ANY_NUMBER)
        for start, end, object_id in ranges:
            if object_id not in inputs:
                raise self._corrupt(
                    f"replaces offsets {start} to {end} of stream {stream_id} in object "
                    f"{object_id}, which is none of its inputs"
                )
            if end > run.end or (start < run.start and run.start > stream_start):
                raise self._corrupt(
                    f"replaces a part of offsets {start} to {end} of stream {stream_id}"
                )
        return len(ranges)

    def _corrupt(self, how: str) -> Corrupt:
        return Corrupt(f"{self._what} {how}")


def _pieces(runs: list[ObjectRange]) -> list[ObjectRange]:
    """Splits runs into pieces that a checkpoint can count."""
    if all(run.end - run.start <= SPAN_MAX for run in runs):
        return runs
    return [
        ObjectRange(start, min(run.end, start + SPAN_MAX), run.object_id)
        for run in runs
        for start in range(run.start, run.end, SPAN_MAX)
    ]
