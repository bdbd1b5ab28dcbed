"""The model of transactions accepts right histories and finds each wrong one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from streamlog.testing.simulation.checker import Violation
from streamlog.testing.simulation.transaction_checker import (
    ObservedTransaction,
    SentTransaction,
    TransactionsModel,
    TransactionValue,
)

PAIR = (7, 0)


def model() -> tuple[TransactionsModel, SentTransaction]:
    """A transaction with one record in each of two partitions, at 0, all acknowledged."""
    made = TransactionsModel("t", 2)
    begun = made.begin("tx", {0: 1, 1: 1})
    for partition in begun.plan:
        made.placed(begun.values(partition), 0)
    return made, begun


def batch(
    sent: SentTransaction, partition: int, *, is_visible: bool, at: int = 0, epoch: int = 0
) -> ObservedTransaction:
    return ObservedTransaction(at, (7, epoch), tuple(sent.values(partition)), -1, is_visible)


def marker(at: int, epoch: int = 0, coordinator_epoch: int = 1) -> ObservedTransaction:
    return ObservedTransaction(at, (7, epoch), (), coordinator_epoch)


def read(made: TransactionsModel, partition: int, *batches: ObservedTransaction) -> None:
    asked = batches[0].base_offset
    end = made.read(partition, list(batches), asked, is_committed=True)
    assert end == batches[-1].end_offset


def test_a_right_history_passes() -> None:
    made, first = model()
    made.initialised("tx", "one", PAIR)
    made.ask_commit(first)
    made.committed(first)
    second = made.begin("tx", {0: 1})
    made.placed(second.values(0), 2)
    made.aborted(second)
    read(made, 0, batch(first, 0, is_visible=True), marker(1))
    read(made, 0, batch(second, 0, at=2, is_visible=False), marker(3))
    read(made, 1, batch(first, 1, is_visible=True), marker(1))
    made.initialised("tx", "two", (7, 1))
    assert made.is_newest("tx", (7, 1))
    assert not made.is_newest("tx", PAIR)
    for log, end in zip(made.logs, (4, 2), strict=True):
        log.bounds(1, 0, 0, end)
        log.bounds(2, 0, end, end)
        log.bounds(1, 0, 0, end)  # a leader that was replaced does not know it yet
        log.finish(0, end)
    made.finish([0, 0])


def test_a_committed_transaction_may_have_lost_deleted_records_alone() -> None:
    made, sent = model()
    made.ask_commit(sent)
    made.committed(sent)
    read(made, 1, batch(sent, 1, is_visible=True))
    made.finish([1, 0])
    with pytest.raises(Violation, match="has gone"):
        made.finish([0, 0])


def _torn(made: TransactionsModel, sent: SentTransaction) -> None:
    made.ask_commit(sent)
    read(made, 0, batch(sent, 0, is_visible=True))
    read(made, 1, batch(sent, 1, is_visible=False))


def _lost(made: TransactionsModel, sent: SentTransaction) -> None:
    made.ask_commit(sent)
    made.committed(sent)
    read(made, 0, batch(sent, 0, is_visible=False))


def _aborted_read(made: TransactionsModel, sent: SentTransaction) -> None:
    made.aborted(sent)
    read(made, 0, batch(sent, 0, is_visible=True))


def _never_asked(made: TransactionsModel, sent: SentTransaction) -> None:
    read(made, 0, batch(sent, 0, is_visible=True))


def _decided_twice(made: TransactionsModel, sent: SentTransaction) -> None:
    made.ask_commit(sent)
    made.committed(sent)
    made.aborted(sent)


def _changes(made: TransactionsModel, sent: SentTransaction) -> None:
    made.ask_commit(sent)
    log = made.logs[0]
    log.read([batch(sent, 0, is_visible=False)], 0, is_committed=True)
    log.read([batch(sent, 0, is_visible=True)], 0, is_committed=True)


def _duplicated(made: TransactionsModel, sent: SentTransaction) -> None:
    made.ask_commit(sent)
    read(made, 0, batch(sent, 0, is_visible=True), batch(sent, 0, at=1, is_visible=True))


def _elsewhere(made: TransactionsModel, sent: SentTransaction) -> None:
    read(made, 1, batch(sent, 0, is_visible=False))


def _unknown(made: TransactionsModel, sent: SentTransaction) -> None:
    made.placed([TransactionValue("tx", 9, 0, 0, 1, 1)], 0)


def _gap(made: TransactionsModel, sent: SentTransaction) -> None:
    read(made, 0, batch(sent, 0, is_visible=False), marker(2))


def _another_batch(made: TransactionsModel, sent: SentTransaction) -> None:
    read(made, 0, batch(sent, 0, is_visible=False))
    read(made, 0, marker(0))


def _same_pair(made: TransactionsModel, sent: SentTransaction) -> None:
    made.initialised("tx", "one", PAIR)
    made.initialised("tx", "two", PAIR)


def _older_pair(made: TransactionsModel, sent: SentTransaction) -> None:
    made.initialised("tx", "one", (7, 3))
    made.initialised("tx", "two", (7, 2))


def _fenced(made: TransactionsModel, sent: SentTransaction) -> None:
    made.initialised("tx", "two", (7, 1))
    made.stored_of_fenced("tx", PAIR, 0, 5)


def _fenced_seen(made: TransactionsModel, sent: SentTransaction) -> None:
    read(made, 0, marker(0, epoch=2), marker(1, epoch=1))
    made.logs[0].finish(0, 2)


def _replaced_coordinator(made: TransactionsModel, sent: SentTransaction) -> None:
    read(made, 0, marker(0, coordinator_epoch=4), marker(1, coordinator_epoch=3))
    made.logs[0].finish(0, 2)


def _out_of_order(made: TransactionsModel, sent: SentTransaction) -> None:
    later = made.begin("tx", {0: 1})
    for one in (sent, later):
        one.is_commit_asked = True
    del sent.places[0, 0]
    read(made, 0, batch(later, 0, is_visible=True), batch(sent, 0, at=1, is_visible=True))
    made.logs[0].finish(0, 2)


def _goes_back(made: TransactionsModel, sent: SentTransaction) -> None:
    made.logs[0].bounds(1, 0, 5, 9)
    made.logs[0].bounds(2, 0, 4, 9)


def _past_the_end(made: TransactionsModel, sent: SentTransaction) -> None:
    made.logs[0].bounds(1, 0, 5, 4)


def _has_gone(made: TransactionsModel, sent: SentTransaction) -> None:
    read(made, 0, batch(sent, 0, is_visible=False), marker(1))
    made.logs[0].finish(0, 1)


def _start_goes_back(made: TransactionsModel, sent: SentTransaction) -> None:
    made.logs[0].start = 3
    made.logs[0].finish(2, 9)


def _deleted_unasked(made: TransactionsModel, sent: SentTransaction) -> None:
    made.logs[0].start_asked = 3
    made.logs[0].finish(4, 9)


@pytest.mark.parametrize(
    ("wrong", "how"),
    [
        (_torn, "is torn"),
        (_lost, "was committed, and is hidden"),
        (_aborted_read, "was aborted, and is visible"),
        (_never_asked, "never to be committed"),
        (_decided_twice, "as committed and as aborted"),
        (_changes, "is visible, and was hidden"),
        (_duplicated, "is at 1 and at 0"),
        (_elsewhere, "is in partition 1"),
        (_unknown, "never sent"),
        (_gap, "a gap"),
        (_another_batch, "was read before"),
        (_same_pair, "was given to one and two"),
        (_older_pair, "after"),
        (_fenced, "was taken at 5"),
        (_fenced_seen, "fenced before"),
        (_replaced_coordinator, "was replaced"),
        (_out_of_order, "comes after"),
        (_goes_back, "and was 5"),
        (_past_the_end, "not between"),
        (_has_gone, "was read up to"),
        (_start_goes_back, "was acknowledged"),
        (_deleted_unasked, "was asked"),
    ],
)
def test_a_wrong_history_is_found(
    wrong: Callable[[TransactionsModel, SentTransaction], None], how: str
) -> None:
    made, sent = model()
    with pytest.raises(Violation, match=how):
        wrong(made, sent)
