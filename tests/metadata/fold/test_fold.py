"""The fold: how records and transfers change streams, and which of them it refuses."""

from __future__ import annotations

import pytest

from streamlog.errors import Corrupt
from streamlog.format.records.commit import CommitRecord, Create, RecordEntry, StreamAt, Token, Trim
from streamlog.metadata.fold.generation import SPAN_MAX, find
from streamlog.metadata.fold.overlay import ObjectRange
from streamlog.metadata.interface import StreamEpoch
from streamlog.metadata.keys.transfer import TransferRecord
from streamlog.runtime.concurrency.steps import run
from tests.metadata.fold.harness import A, B, Harness, rows


@pytest.fixture
def one() -> Harness:
    harness = Harness()
    harness.create(A, 3, 4)
    return harness


def test_rows_start_where_their_stream_ends(one: Harness) -> None:
    one.append(A, 10, (3, 1, 0, 5), (4, 1, 0, 2))
    one.append(A, 11, (3, 1, 5, 6))
    row = one.fold.row(3)
    assert row is not None
    assert (row.start, row.end, row.epoch, row.holder) == (0, 6, 1, A)
    assert one.ranges(3) == [(0, 5, 10), (5, 6, 11)]
    assert one.ranges(4) == [(0, 2, 10)]


def test_adjacent_rows_in_one_object_are_one_range(one: Harness) -> None:
    new_rows = ((3, 1, 0, 5), (3, 1, 5, 9), (4, 1, 0, 1))
    one.append(A, 10, *new_rows)
    assert one.ranges(3) == [(0, 9, 10)]
    assert one.fold.newest.objects[10].ranges == 2


def test_a_range_never_passes_what_a_checkpoint_can_count(one: Harness) -> None:
    one.append(A, 10, (3, 1, 0, SPAN_MAX), (3, 1, SPAN_MAX, SPAN_MAX + 5))
    assert one.ranges(3) == [(0, SPAN_MAX, 10), (SPAN_MAX, SPAN_MAX + 5, 10)]
    assert one.fold.newest.objects[10].ranges == 2


def test_an_entry_uses_what_the_same_record_created() -> None:
    one = Harness()
    new_rows = ((7, 4, 0, 3),)
    entry = RecordEntry(
        creates=(Create(7, 4, (("a", "b"),)),),
        objects=(rows(10, *new_rows),),
        tokens=(Token(7, 4, b"t"),),
        trims=(Trim(7, 4, 2),),
        closes=(StreamAt(7, 4),),
    )
    one.record(A, entry, crc=new_rows)
    row = one.fold.row(7)
    assert row is not None
    assert (row.epoch, row.start, row.end, row.token, row.tags) == (4, 2, 3, b"t", {"a": "b"})
    assert row.state.name == "CLOSED"
    assert one.fold.newest.cuts == {7: 0}


def test_a_stream_created_and_destroyed_in_one_record_leaves_a_dead_object() -> None:
    one = Harness()
    new_rows = ((7, 1, 0, 3),)
    one.record(
        A,
        RecordEntry(creates=(Create(7, 1),), objects=(rows(10, *new_rows),)),
        RecordEntry(destroys=(StreamAt(7, 1),)),
        crc=new_rows,
    )
    assert one.fold.row(7) is None
    assert not one.fold.ids
    assert not one.fold.ends
    assert one.fold.newest.cuts == {7: 0}
    assert one.ranges(7) == [(0, 3, 10)]


def test_destroyed_streams_are_gone(one: Harness) -> None:
    one.append(A, 10, (3, 1, 0, 5))
    one.record(A, RecordEntry(trims=(Trim(3, 1, 2),)))
    one.record(A, RecordEntry(destroys=(StreamAt(3, 1),)))
    assert one.fold.row(3) is None
    assert one.fold.ids == [4]
    assert one.fold.held == {A: {4}}
    assert one.fold.newest.cuts == {3: 0}


def test_a_backward_trim_does_nothing(one: Harness) -> None:
    one.append(A, 10, (3, 1, 0, 5))
    one.record(A, RecordEntry(trims=(Trim(3, 1, 4),)))
    one.record(A, RecordEntry(trims=(Trim(3, 1, 2),)))
    assert one.fold.starts[3] == 4


def test_a_transfer_list_opens_its_streams(one: Harness) -> None:
    one.record(A, RecordEntry(closes=(StreamAt(3, 1),)))
    one.move(A, B, (3, 5))
    row = one.fold.row(3)
    assert row is not None
    assert (row.holder, row.epoch, row.state.name) == (B, 5, "OPEN")
    assert one.fold.held == {A: {4}, B: {3}}


def test_a_transfer_of_all_raises_each_epoch_and_keeps_streams_closed(one: Harness) -> None:
    one.record(A, RecordEntry(closes=(StreamAt(3, 1),)))
    one.move(A, B)
    stream_rows = [one.fold.row(3), one.fold.row(4)]
    assert [(r.holder, r.epoch, r.state.name) for r in stream_rows if r] == [
        (B, 2, "CLOSED"),
        (B, 2, "OPEN"),
    ]


def test_a_transfer_skips_streams_the_holder_no_longer_has(one: Harness) -> None:
    one.move(A, B, (3, 2))
    one.move(A, B, (3, 3), (4, 2))
    row = one.fold.row(3)
    assert row is not None
    assert row.epoch == 2


def test_records_and_transfers_fold_once(one: Harness) -> None:
    one.append(A, 10, (3, 1, 0, 5))
    record = CommitRecord(0, 0, (RecordEntry(trims=(Trim(3, 1, 5),)),))
    run(one.fold.apply_record(A, 2, record, 9))
    assert one.fold.starts[3] == 0
    one.move(A, B, (3, 2))
    run(one.fold.apply_transfer(A, 1, TransferRecord(A, bytes(16), [StreamEpoch(3, 9)])))
    assert one.fold.info[3].epoch == 2


@pytest.mark.parametrize(
    "entry",
    [
        RecordEntry(creates=(Create(3, 1),)),
        RecordEntry(trims=(Trim(3, 1, 6),)),
        RecordEntry(trims=(Trim(3, 2, 1),)),
        RecordEntry(tokens=(Token(9, 1, b""),)),
        RecordEntry(closes=(StreamAt(3, 2),)),
        RecordEntry(destroys=(StreamAt(9, 1),)),
        RecordEntry(objects=(rows(11, (9, 1, 0, 1)),)),
        RecordEntry(objects=(rows(10, (3, 1, 5, 6)),)),
        RecordEntry(closes=(StreamAt(3, 1),), destroys=(StreamAt(3, 2),)),
    ],
)
def test_an_entry_that_does_not_fit_changes_nothing(one: Harness, entry: RecordEntry) -> None:
    one.append(A, 10, (3, 1, 0, 5))
    before = (one.fold.row(3), one.fold.mark(A), list(one.fold.ids))
    with pytest.raises(Corrupt, match=r"record 3 of tenure 1\.1"):
        one.record(A, entry)
    assert (one.fold.row(3), one.fold.mark(A), list(one.fold.ids)) == before


def test_rows_written_for_other_offsets_are_found(one: Harness) -> None:
    with pytest.raises(Corrupt, match="other offsets"):
        one.record(A, RecordEntry(objects=(rows(10, (3, 1, 0, 5)),)), crc=((3, 1, 1, 6),))


def test_rows_of_a_closed_stream_are_refused(one: Harness) -> None:
    one.record(A, RecordEntry(closes=(StreamAt(3, 1),)))
    with pytest.raises(Corrupt, match="does not hold open"):
        one.append(A, 10, (3, 1, 0, 5))


def test_only_the_holder_commits(one: Harness) -> None:
    with pytest.raises(Corrupt, match="does not hold open"):
        one.append(B, 10, (3, 1, 0, 5))


def test_gaps_in_records_and_transfers_are_found(one: Harness) -> None:
    with pytest.raises(Corrupt, match="one is lost"):
        run(one.fold.apply_record(A, 3, CommitRecord(0, 0, ()), 9))
    with pytest.raises(Corrupt, match="one is lost"):
        run(one.fold.apply_transfer(A, 2, TransferRecord(B, bytes(16), None)))


def test_an_epoch_never_goes_back(one: Harness) -> None:
    with pytest.raises(Corrupt, match="back to 1"):
        one.move(A, B, (3, 1))


def test_find_returns_overlapping_ranges(one: Harness) -> None:
    for i in range(10):
        one.append(A, 10 + i, (3, 1, 3 * i, 3 * i + 3))
    ranges = one.fold.newest.ranges[3]
    assert find(ranges, 4, 10, 99) == [
        ObjectRange(3, 6, 11),
        ObjectRange(6, 9, 12),
        ObjectRange(9, 12, 13),
    ]
    assert find(ranges, 4, 10, 2) == [ObjectRange(3, 6, 11), ObjectRange(6, 9, 12)]
    assert find(ranges, 30, 40, 9) == []
    assert find(ranges, 0, 1, 9) == [ObjectRange(0, 3, 10)]
