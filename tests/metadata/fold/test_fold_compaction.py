"""Compaction records in the fold: how they change ranges, and which of them it refuses."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import pytest

from streamlog.errors import Corrupt
from streamlog.format.records.commit import RecordEntry, StreamAt, Trim
from streamlog.format.records.compaction import CompactionRecord, OutputRows
from streamlog.metadata.fold.generation import SPAN_MAX, find_in_all
from streamlog.metadata.interface import Tenure
from streamlog.runtime.concurrency.steps import run
from tests.metadata.fold.harness import A, Harness

C, D = Tenure(1 << 31 | 1, 1), Tenure(1 << 31 | 2, 1)
Row = tuple[int, int, int]


def output(object_id: int, *rows: Row) -> OutputRows:
    """Rows as (stream, start, end)."""
    streams, starts = (array("Q", [row[i] for row in rows]) for i in range(2))
    counts = array("I", [end - start for _, start, end in rows])
    return OutputRows(object_id, 100, 90, 10, 7, 0, streams, starts, counts)


class Compacting(Harness):
    def compact(
        self, inputs: Sequence[int], *outputs: OutputRows, tenure: Tenure = C, counter: int = 0
    ) -> None:
        self.revision += 1
        counter = counter or self.fold.compactions.counter + 1
        record = CompactionRecord(0, counter, array("Q", inputs), outputs)
        seq = self.fold.mark(tenure).seq + 1
        run(self.fold.apply_record(tenure, seq, record, self.revision))

    def live(self, stream_id: int) -> list[Row]:
        ranges = find_in_all(
            self.fold.generations, stream_id, self.fold.starts[stream_id], 1 << 62, 99
        )
        return [tuple(one) for one in ranges]  # type: ignore[misc]


@pytest.fixture
def one() -> Compacting:
    """Streams 3 and 4 with ranges of 5 offsets in objects 10 to 13."""
    harness = Compacting()
    harness.create(A, 3, 4)
    for number in range(4):
        at = 5 * number
        harness.append(A, 10 + number, (3, 1, at, at + 5), (4, 1, at, at + 5))
    return harness


def test_outputs_replace_live_ranges_at_their_offsets(one: Compacting) -> None:
    one.compact([10, 11, 12], output(50, (3, 0, 10), (4, 5, 15)), output(51, (3, 10, 15)))
    assert one.live(3) == [(0, 10, 50), (10, 15, 51), (15, 20, 13)]
    assert one.live(4) == [(0, 5, 10), (5, 15, 50), (15, 20, 13)]
    assert one.fold.newest.objects[50].ranges == 2
    assert one.fold.compactions.counter == 1
    assert one.fold.newest.patch_count == 3
    one.append(A, 14, (3, 1, 20, 25))
    assert one.live(3)[-1] == (20, 25, 14)


def test_outputs_are_compacted_again_by_another_tenure(one: Compacting) -> None:
    one.compact([10, 11], output(50, (3, 0, 10)))
    one.compact([50, 12], output(60, (3, 0, 15)), tenure=D)
    assert one.live(3) == [(0, 15, 60), (15, 20, 13)]
    assert one.fold.newest.objects[50].ranges == 0
    assert one.fold.newest.patch_count == 1


def test_adjacent_rows_are_one_range(one: Compacting) -> None:
    one.compact([10, 11, 12], output(50, (3, 0, 3), (3, 3, 10), (3, 10, 15), (4, 0, 5)))
    assert one.live(3) == [(0, 15, 50), (15, 20, 13)]
    assert one.fold.newest.objects[50].ranges == 2


def test_a_long_output_is_cut_as_a_checkpoint_needs_it() -> None:
    one, half = Compacting(), SPAN_MAX // 2 + 1
    one.create(A, 3)
    for number in range(3):
        one.append(A, 10 + number, (3, 1, number * half, number * half + half))
    rows = [(3, number * half, number * half + half) for number in range(3)]
    one.compact([10, 11, 12], output(50, *rows))
    assert one.live(3) == [(0, SPAN_MAX, 50), (SPAN_MAX, 3 * half, 50)]
    assert one.fold.newest.objects[50].ranges == 2


def test_rows_are_clipped_to_the_stream_start(one: Compacting) -> None:
    """Planned before the trims and the destruction, committed after them."""
    one.record(A, RecordEntry(trims=(Trim(3, 1, 12),), destroys=(StreamAt(4, 1),)))
    one.compact([10, 11, 12], output(50, (3, 2, 10), (4, 0, 15)), output(51, (3, 10, 15)))
    assert one.live(3) == [(12, 15, 51), (15, 20, 13)]
    assert one.fold.newest.objects[50].ranges == 0
    assert one.fold.newest.objects[51].ranges == 1
    assert 4 not in one.fold.newest.patches


def test_a_compaction_folds_once(one: Compacting) -> None:
    one.compact([10], output(50, (3, 0, 5)))
    record = CompactionRecord(0, 1, array("Q", [11]), (output(51, (3, 5, 10)),))
    run(one.fold.apply_record(C, 1, record, 99))
    assert one.live(3)[:2] == [(0, 5, 50), (5, 10, 11)]


@pytest.mark.parametrize(
    ("inputs", "outputs", "why"),
    [
        ([10], [output(50, (3, 0, 4))], "a part of"),
        ([10, 11], [output(50, (3, 0, 6))], "a part of"),
        ([10, 11], [output(50, (3, 1, 10))], "a part of"),
        ([10], [output(50, (3, 0, 10))], "none of its inputs"),
        ([13], [output(50, (3, 15, 21))], "past its end"),
        ([10, 11], [output(50, (3, 0, 5)), output(51, (3, 0, 5))], "overlap"),
        ([10, 11], [output(50, (3, 5, 10), (3, 0, 5))], "overlap"),
        ([10], [output(10, (3, 0, 5))], "second time"),
        ([10], [output(13, (3, 0, 5))], "second time"),
        ([10], [output(50, (3, 0, 5)), output(50, (4, 0, 5))], "second time"),
    ],
)
def test_an_entry_that_does_not_fit_changes_nothing(
    one: Compacting, inputs: list[int], outputs: list[OutputRows], why: str
) -> None:
    before = (one.live(3), one.live(4), one.fold.mark(C), sorted(one.fold.newest.objects))
    with pytest.raises(Corrupt, match=rf"record 1 of tenure 2147483649\.1 .*{why}"):
        one.compact(inputs, *outputs)
    assert (one.live(3), one.live(4), one.fold.mark(C), sorted(one.fold.newest.objects)) == before
    assert one.fold.compactions.counter == 0
    assert not one.fold.newest.patches


def test_a_lost_compaction_is_found(one: Compacting) -> None:
    for counter in (2, 9):
        with pytest.raises(Corrupt, match="one is lost"):
            one.compact([10], output(50, (3, 0, 5)), counter=counter)
    one.compact([10], output(50, (3, 0, 5)))
    with pytest.raises(Corrupt, match="one is lost"):
        one.compact([11], output(51, (3, 5, 10)), counter=1)
