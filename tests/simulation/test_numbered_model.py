"""The model of a topic in local files accepts right histories and finds each wrong one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from streamlog.testing.simulation.checker import Violation
from streamlog.testing.simulation.numbered.cleaned_reads import check_all, check_read, lasting
from streamlog.testing.simulation.numbered.model import (
    MARKER,
    Content,
    NumberedBatch,
    NumberedLogModel,
    NumberedTransaction,
    ObservedNumberedBatch,
)

NOW_MS = 1_000_000


def sent(
    model: NumberedLogModel,
    keys: tuple[bytes | None, ...] = (None,),
    *,
    transaction: NumberedTransaction | None = None,
    tombstone: bool = False,
) -> NumberedBatch:
    first = model.take_numbers(len(keys))
    deleted = frozenset([first]) if tombstone else frozenset[int]()
    batch = NumberedBatch(
        "c", len(model.batches), first, keys, deleted, b"." * 100, NOW_MS, transaction
    )
    model.send(batch)
    return batch


def of(batch: NumberedBatch, base: int, visible: bool | None = None) -> ObservedNumberedBatch:
    records = tuple((base + i, batch.first + i) for i in range(len(batch.keys)))
    return ObservedNumberedBatch(base, base + len(batch.keys), records, None, visible)


def plain() -> tuple[NumberedLogModel, NumberedBatch, NumberedBatch]:
    """Two records at 0 and one at 2 were acknowledged."""
    model = NumberedLogModel("p", False, 10)
    one, other = sent(model, (None, None)), sent(model)
    model.acknowledge(one, 0)
    model.acknowledge(other, 2)
    return model, one, other


def compacted() -> tuple[NumberedLogModel, list[NumberedBatch]]:
    """k is at 0 and 2, l at 1, and deleted at 3; tombstones stay for 50 ms."""
    model = NumberedLogModel("c", True, 10, delete_retention_ms=50)
    batches = [sent(model, (key,)) for key in (b"k", b"l", b"k")]
    batches.append(sent(model, (b"l",), tombstone=True))
    for offset, batch in enumerate(batches):
        model.acknowledge(batch, offset)
    return model, batches


def test_a_right_history_passes() -> None:
    model, one, other = plain()
    model.bounds(0, 3, 3, NOW_MS)
    assert model.read([of(one, 0), of(other, 2)], 1) == 3
    model.start_asked = 1
    model.bounds(1, 3, 3, NOW_MS)
    model.finish({0: 0, 1: 1, 2: 2}, 1, 3, NOW_MS)


def test_a_right_history_of_a_compacted_topic_passes() -> None:
    model, batches = compacted()
    assert model.read([of(batches[2], 2)], 0) == 3
    model.finish({2: 2, 3: 3}, 0, 4, NOW_MS)
    model.finish({2: 2}, 0, 4, NOW_MS + 50)
    assert model.superseded_and_gone({2: 2}) == 3


def test_retention_may_move_the_start_only_as_far_as_its_limits_say() -> None:
    model, _, _ = plain()
    model.retention.may_be(size_bytes=90)
    model.bounds(2, 3, 3, NOW_MS)
    with pytest.raises(Violation, match="bytes are left"):
        model.bounds(3, 3, 3, NOW_MS)
    aged, _, _ = plain()
    aged.retention.may_be(age_ms=100)
    with pytest.raises(Violation, match="does not allow it"):
        aged.bounds(3, 3, 3, NOW_MS + 80)
    aged.bounds(3, 3, 3, NOW_MS + 90)


def read_gap(model: NumberedLogModel, one: NumberedBatch, other: NumberedBatch) -> None:
    model.read([of(one, 0), of(other, 3)], 0)


def read_elsewhere(model: NumberedLogModel, _: NumberedBatch, other: NumberedBatch) -> None:
    model.read([of(other, 5)], 5)


def read_half(model: NumberedLogModel, _: NumberedBatch, __: NumberedBatch) -> None:
    model.read([ObservedNumberedBatch(0, 1, ((0, 0),))], 0)


def read_never_sent(model: NumberedLogModel, _: NumberedBatch, __: NumberedBatch) -> None:
    model.read([ObservedNumberedBatch(3, 4, ((3, 77),))], 3)


def read_refused(model: NumberedLogModel, _: NumberedBatch, __: NumberedBatch) -> None:
    refused = sent(model)
    refused.is_refused = True
    model.read([of(refused, 3)], 3)


def read_marker_at_a_record(model: NumberedLogModel, _: NumberedBatch, __: NumberedBatch) -> None:
    model.read([ObservedNumberedBatch(2, 3, (), True)], 2)


def hidden_without_transaction(
    model: NumberedLogModel, one: NumberedBatch, _: NumberedBatch
) -> None:
    model.read([of(one, 0, visible=False)], 0)


def aborted_visible(model: NumberedLogModel, _: NumberedBatch, __: NumberedBatch) -> None:
    batch = sent(model, transaction=NumberedTransaction(1, 9, is_commit=False))
    model.read([of(batch, 3, visible=True)], 3)


def committed_hidden(model: NumberedLogModel, _: NumberedBatch, __: NumberedBatch) -> None:
    batch = sent(model, transaction=NumberedTransaction(1, 9, is_commit=True))
    model.read([of(batch, 3, visible=False)], 3)


def open_is_stable(model: NumberedLogModel, _: NumberedBatch, __: NumberedBatch) -> None:
    batch = sent(model, transaction=NumberedTransaction(1, 9))
    model.read([of(batch, 3, visible=True)], 3)


def acknowledged_twice(model: NumberedLogModel, one: NumberedBatch, _: NumberedBatch) -> None:
    model.acknowledge(one, 4)


def acknowledged_where_another_is(
    model: NumberedLogModel, _: NumberedBatch, __: NumberedBatch
) -> None:
    model.acknowledge(sent(model), 1)


def acknowledged_has_gone(model: NumberedLogModel, _: NumberedBatch, __: NumberedBatch) -> None:
    model.finish({0: 0, 1: 1}, 0, 2, NOW_MS)


def marker_has_gone(model: NumberedLogModel, _: NumberedBatch, __: NumberedBatch) -> None:
    model.marked(3)
    model.finish({0: 0, 1: 1, 2: 2, 3: 5}, 0, 4, NOW_MS)


def hole(model: NumberedLogModel, _: NumberedBatch, __: NumberedBatch) -> None:
    model.finish({0: 0, 1: 1, 2: 2, 4: MARKER}, 0, 5, NOW_MS)


def out_of_order(model: NumberedLogModel, _: NumberedBatch, __: NumberedBatch) -> None:
    early, late = sent(model), sent(model)
    model.acknowledge(early, 4)
    model.acknowledge(late, 3)
    model.finish({0: 0, 1: 1, 2: 2, 4: 3, 3: 4}, 0, 5, NOW_MS)


def end_goes_back(model: NumberedLogModel, _: NumberedBatch, __: NumberedBatch) -> None:
    model.bounds(0, 2, 2, NOW_MS)


def stable_goes_back(model: NumberedLogModel, _: NumberedBatch, __: NumberedBatch) -> None:
    model.bounds(0, 3, 3, NOW_MS)
    model.bounds(0, 2, 3, NOW_MS)


def start_goes_back(model: NumberedLogModel, _: NumberedBatch, __: NumberedBatch) -> None:
    model.start_asked = 2
    model.bounds(2, 3, 3, NOW_MS)
    model.bounds(1, 3, 3, NOW_MS)


def nobody_deleted(model: NumberedLogModel, _: NumberedBatch, __: NumberedBatch) -> None:
    model.bounds(1, 3, 3, NOW_MS)


WRONG: list[Callable[[NumberedLogModel, NumberedBatch, NumberedBatch], None]] = [
    read_gap,
    read_elsewhere,
    read_half,
    read_never_sent,
    read_refused,
    read_marker_at_a_record,
    hidden_without_transaction,
    aborted_visible,
    committed_hidden,
    open_is_stable,
    acknowledged_twice,
    acknowledged_where_another_is,
    acknowledged_has_gone,
    marker_has_gone,
    hole,
    out_of_order,
    end_goes_back,
    stable_goes_back,
    start_goes_back,
    nobody_deleted,
]


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: wrong.__name__)
def test_a_wrong_history_is_found(
    wrong: Callable[[NumberedLogModel, NumberedBatch, NumberedBatch], None],
) -> None:
    model, one, other = plain()
    with pytest.raises(Violation):
        wrong(model, one, other)


@pytest.mark.parametrize(
    ("found", "after_ms", "says"),
    [
        ({0: 0, 3: 3}, 0, "the last of b'k', has gone"),
        ({2: 2}, 30, "the tombstone 3"),
        ({1: 1, 2: 2}, 50, "was deleted by 3"),
    ],
)
def test_a_cleaning_that_loses_or_brings_back_a_key_is_found(
    found: dict[int, int], after_ms: int, says: str
) -> None:
    model, _ = compacted()
    with pytest.raises(Violation, match=says):
        model.finish(found, 0, 4, NOW_MS + after_ms)


def test_a_tombstone_that_no_reader_met_may_have_taken_a_key_and_gone() -> None:
    model, _ = compacted()
    sent(model, (b"k",), tombstone=True)
    with pytest.raises(Violation, match="the last of b'k', has gone"):
        model.finish({3: 3}, 0, 4, NOW_MS + 30)
    model.finish({3: 3}, 0, 4, NOW_MS + 50)


def test_a_read_lacks_no_record_that_nothing_supersedes() -> None:
    model, batches = compacted()
    check_read(model, [of(batches[3], 3)], 3, 4, NOW_MS)
    check_read(model, [of(batches[2], 2)], 0, 3, NOW_MS)
    with pytest.raises(Violation, match="lacks 2 at 2, the last of b'k'"):
        check_read(model, [of(batches[3], 3)], 1, 4, NOW_MS)
    with pytest.raises(Violation, match="the tombstone 3"):
        check_read(model, [of(batches[2], 2)], 0, 4, NOW_MS + 30)
    check_read(model, [of(batches[2], 2)], 0, 4, NOW_MS + 50)


def test_a_record_whose_key_may_have_been_written_again_may_be_missing() -> None:
    model, batches = compacted()
    assert lasting(model) == [(2, NOW_MS)]
    sent(model, (b"k",))
    check_read(model, [of(batches[3], 3)], 0, 4, NOW_MS)
    assert lasting(model) == []


def test_a_young_record_stays_whatever_supersedes_it() -> None:
    model, batches = compacted()
    model.lag_ms = 100
    newest = [of(batch, 2 + index) for index, batch in enumerate(batches[2:])]
    with pytest.raises(Violation, match="0 at 0 was superseded and went 80 ms"):
        check_read(model, newest, 0, 4, NOW_MS + 80)
    check_read(model, newest, 0, 4, NOW_MS + 91)


def test_a_record_is_what_was_sent() -> None:
    model, batches = compacted()
    model.contents[2] = Content(NOW_MS, b"k", b"v")
    read = of(batches[2], 2)
    model.read([read._replace(contents=(Content(NOW_MS, b"k", b"v"),))], 2)
    for wrong in (
        Content(NOW_MS + 1, b"k", b"v"),
        Content(NOW_MS, b"l", b"v"),
        Content(NOW_MS, b"k", None),
    ):
        with pytest.raises(Violation, match="and was sent as"):
            model.read([read._replace(contents=(wrong,))], 2)


def test_what_was_aborted_supersedes_nothing() -> None:
    model, batches = compacted()
    aborted = sent(model, (b"k",), transaction=NumberedTransaction(1, 9, is_commit=False))
    model.acknowledge(aborted, 4)
    with pytest.raises(Violation, match="lacks 2 at 2"):
        check_read(model, [of(batches[3], 3), of(aborted, 4)], 0, 5, NOW_MS)


def test_the_last_batch_of_a_producer_stays_at_least_as_a_header() -> None:
    model, batches = compacted()
    for batch in batches[:3]:
        batch.producer_id = 7
    left = [of(batches[2], 2), of(batches[3], 3)]
    check_all(model, left, 0)
    check_all(model, [ObservedNumberedBatch(2, 3, ()), of(batches[3], 3)], 0)
    with pytest.raises(Violation, match="the last of producer 7"):
        check_all(model, left[1:], 0)


def test_a_transaction_with_a_record_left_has_its_marker() -> None:
    model, batches = compacted()
    transaction = NumberedTransaction(1, 9, is_commit=True, marker_offset=5)
    committed = sent(model, (b"m",), transaction=transaction)
    model.acknowledge(committed, 4)
    left = [of(batches[2], 2), of(committed, 4)]
    check_all(model, [*left, ObservedNumberedBatch(5, 6, (), True, None, 9)], 0)
    check_all(model, left[:1], 0)
    for marker in (
        ObservedNumberedBatch(5, 6, (), True, None, 8),
        ObservedNumberedBatch(6, 7, (), True, None, 9),
    ):
        with pytest.raises(Violation, match="its marker has gone"):
            check_all(model, [*left, marker], 0)
