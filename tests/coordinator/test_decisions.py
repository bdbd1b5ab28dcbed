"""What each call makes of a transactional id, in each of its states; without a log."""

from __future__ import annotations

from dataclasses import replace

import pytest

from streamlog.coordinator.api import ProducerIdAndEpoch as Pair
from streamlog.coordinator.api import TransactionState as S
from streamlog.coordinator.transactions.decisions import (
    Decision,
    Init,
    NeedsProducerId,
    abort,
    add_partitions,
    fence,
    is_expired,
    verify_partitions,
)
from streamlog.coordinator.transactions.ends import End, complete
from streamlog.coordinator.transactions.state import EPOCH_LAST, NONE, Transaction, transition_to
from streamlog.errors import (
    ConcurrentTransactions,
    Internal,
    InvalidProducerIdMapping,
    InvalidTxnState,
    StreamlogError,
    TransactionAbortable,
    TransactionalIdFenced,
    TransactionalIdNotFound,
)
from streamlog.model.partition import TopicPartition

A, B = TopicPartition("a", 0), TopicPartition("b", 1)
T0, T1 = 1_000, 2_000
NEW = 99
"""A fresh producer id."""


def tx(state: S = S.EMPTY, epoch: int = 5, **more: object) -> Transaction:
    partitions = frozenset() if state not in (S.ONGOING, *PREPARED) else frozenset({A})
    start = NONE if state is S.EMPTY else T0
    known = Transaction("tx", 7, epoch, 60_000, T0, state, partitions, start)
    return replace(known, **more)  # type: ignore[arg-type]


PREPARED = (S.PREPARE_COMMIT, S.PREPARE_ABORT)
COMPLETE = (S.COMPLETE_COMMIT, S.COMPLETE_ABORT)


def init(
    known: Transaction | None, expected: tuple[int, int] | None = None, fresh: int | None = NEW
) -> Decision[Pair]:
    pair = None if expected is None else Pair(*expected)
    return Init("tx", 30_000, pair, fresh).decide(known, T1)


def end(
    known: Transaction | None,
    epoch: int,
    *,
    commit: bool = True,
    v2: bool = False,
    producer_id: int = 7,
    fresh: int | None = NEW,
    application: int | None = None,
) -> Decision[Pair]:
    return End(Pair(producer_id, epoch), commit, v2, fresh, application).decide(known, T1)


def refused(decision: Decision[object], error: type[StreamlogError]) -> None:
    assert type(decision.answer) is error, decision
    assert decision.after is None, decision


# ---- init_producer_id


def test_a_new_id_gets_a_fresh_producer_with_epoch_0() -> None:
    for expected in (None, (3, 4)):
        decision = init(None, expected)
        assert decision.answer == (NEW, 0)
        assert decision.after == Transaction("tx", NEW, 0, 30_000, T1)
    with pytest.raises(NeedsProducerId):
        init(None, fresh=None)


@pytest.mark.parametrize("state", [S.EMPTY, *COMPLETE])
def test_the_same_id_again_gets_the_next_epoch_and_forgets_the_last(state: S) -> None:
    decision = init(tx(state, last_producer_epoch=4))
    assert decision.answer == (7, 6)
    assert decision.after == Transaction("tx", 7, 6, 30_000, T1)


def test_with_the_pair_that_is_expected_it_bumps_and_answers_the_same_again() -> None:
    first = init(tx(), (7, 5))
    assert first.answer == (7, 6)
    assert first.after is not None
    assert first.after.last_producer_epoch == 5
    again = init(first.after, (7, 5))
    assert again.answer == (7, 6)
    assert again.after is None
    assert init(first.after, (7, 6)).answer == (7, 7)


@pytest.mark.parametrize("expected", [(7, 4), (7, 6), (8, 5), (8, EPOCH_LAST), (7, -1)])
def test_a_pair_that_is_not_the_newest_is_fenced(expected: tuple[int, int]) -> None:
    for state in (S.EMPTY, S.ONGOING, *COMPLETE):
        refused(init(tx(state), expected), TransactionalIdFenced)


@pytest.mark.parametrize("state", PREPARED)
def test_while_markers_are_written_it_has_to_ask_again(state: S) -> None:
    refused(init(tx(state)), ConcurrentTransactions)
    refused(init(tx(state), (7, 5)), ConcurrentTransactions)
    refused(init(tx(state), (8, 5)), TransactionalIdFenced)


def test_an_open_transaction_is_aborted_under_the_next_epoch() -> None:
    for expected in (None, (7, 5)):
        decision = init(tx(S.ONGOING), expected)
        assert isinstance(decision.answer, ConcurrentTransactions)
        after = decision.after
        assert after is not None
        assert (after.state, after.producer_epoch) == (S.PREPARE_ABORT, 6)
        assert (after.partitions, after.start_ms) == (frozenset({A}), T0)
        assert init(complete(after, T1)).answer == (7, 7)


def test_an_instance_that_aborts_its_own_transaction_by_init_gets_the_next_epoch() -> None:
    """It asks with its pair until the markers are written: it is not fenced by its own abort."""
    after = init(tx(S.ONGOING), (7, 5)).after
    assert after is not None
    refused(init(after, (7, 5)), ConcurrentTransactions)
    again = init(complete(after, T1), (7, 5))
    assert again.answer == (7, 6)
    assert again.after is not None
    assert (again.after.state, again.after.producer_epoch) == (S.EMPTY, 6)
    assert init(again.after, (7, 5)).answer == (7, 6)
    by_another = init(tx(S.ONGOING)).after
    assert by_another is not None
    refused(init(complete(by_another, T1), (7, 5)), TransactionalIdFenced)


def test_a_repeated_init_aborts_nothing_that_was_begun_since() -> None:
    again = init(tx(S.ONGOING, last_producer_epoch=4), (7, 4))
    assert again.answer == (7, 5)
    assert again.after is None


def test_used_up_epochs_bring_a_new_producer_id() -> None:
    assert init(tx(epoch=EPOCH_LAST - 1)).answer == (7, EPOCH_LAST)
    for expected, last in ((None, NONE), ((7, EPOCH_LAST), EPOCH_LAST)):
        decision = init(tx(epoch=EPOCH_LAST), expected)
        after = decision.after
        assert decision.answer == (NEW, 0)
        assert after is not None
        assert (after.previous_producer_id, after.last_producer_epoch) == (7, last)
    again = init(after, (7, EPOCH_LAST))
    assert again.answer == (NEW, 0)
    assert again.after is None
    refused(init(after, (7, EPOCH_LAST - 1)), TransactionalIdFenced)
    with pytest.raises(NeedsProducerId):
        init(tx(epoch=EPOCH_LAST), fresh=None)


def test_the_last_epoch_can_be_fenced_and_is_never_given_out() -> None:
    fenced = fence(tx(S.ONGOING, epoch=EPOCH_LAST), T1)
    assert fenced.producer_epoch == EPOCH_LAST + 1
    done = complete(fenced, T1)
    refused(init(done, (7, EPOCH_LAST)), TransactionalIdFenced)
    refused(end(done, EPOCH_LAST, commit=False, v2=True), TransactionalIdFenced)
    refused(add_partitions(done, done.pair, [A], T1), TransactionalIdFenced)
    assert init(done).answer == (NEW, 0)


# ---- add_partitions and verify_partitions


def test_partitions_begin_a_transaction_or_join_it() -> None:
    for state in (S.EMPTY, *COMPLETE):
        after = add_partitions(tx(state), Pair(7, 5), [A, A], T1).after
        assert after is not None
        assert (after.state, after.partitions, after.start_ms) == (S.ONGOING, frozenset({A}), T1)
    after = add_partitions(tx(S.ONGOING), Pair(7, 5), [B], T1).after
    assert after is not None
    assert (after.partitions, after.start_ms, after.updated_ms) == (frozenset({A, B}), T0, T1)
    assert add_partitions(tx(S.ONGOING), Pair(7, 5), [A], T1) == Decision(None)


def test_only_the_newest_producer_adds_and_verifies() -> None:
    for known, pair, error in (
        (None, Pair(7, 5), InvalidProducerIdMapping),
        (tx(S.ONGOING), Pair(8, 5), InvalidProducerIdMapping),
        (tx(S.ONGOING), Pair(7, 4), TransactionalIdFenced),
        (tx(S.ONGOING), Pair(7, 6), TransactionalIdFenced),
        (tx(S.PREPARE_COMMIT), Pair(7, 5), ConcurrentTransactions),
        (tx(S.PREPARE_ABORT), Pair(7, 5), ConcurrentTransactions),
    ):
        refused(add_partitions(known, pair, [A], T1), error)
        refused(verify_partitions(known, pair, [A]), error)


def test_verification_names_what_is_not_part_of_the_transaction() -> None:
    answer = verify_partitions(tx(S.ONGOING), Pair(7, 5), [A, B]).answer
    assert not isinstance(answer, StreamlogError)
    assert {one: type(error) for one, error in answer.items()} == {B: TransactionAbortable}
    answer = verify_partitions(tx(S.COMPLETE_COMMIT), Pair(7, 5), [A]).answer
    assert not isinstance(answer, StreamlogError)
    assert list(answer) == [A]


# ---- end, version 1


@pytest.mark.parametrize("commit", [True, False])
def test_version_1_decides_what_is_open_and_answers_the_same_again(commit: bool) -> None:
    prepared, completed = (S.PREPARE_COMMIT, S.COMPLETE_COMMIT) if commit else (
        S.PREPARE_ABORT, S.COMPLETE_ABORT,
    )  # fmt: skip
    decision = end(tx(S.ONGOING), 5, commit=commit)
    after = decision.after
    assert decision.answer == (7, 5)
    assert after is not None
    assert (after.state, after.pair, after.partitions) == (prepared, Pair(7, 5), frozenset({A}))
    refused(end(after, 5, commit=commit), ConcurrentTransactions)
    refused(end(after, 5, commit=not commit), InvalidTxnState)
    done = complete(after, T1)
    assert (done.state, done.pair, done.partitions) == (completed, (7, 5), frozenset())
    assert end(done, 5, commit=commit) == Decision(Pair(7, 5))
    refused(end(done, 5, commit=not commit), InvalidTxnState)


def test_version_1_refuses_what_is_not_open_or_not_its_own() -> None:
    refused(end(tx(), 5), InvalidTxnState)
    refused(end(tx(), 5, commit=False), InvalidTxnState)
    refused(end(None, 5), InvalidProducerIdMapping)
    refused(end(tx(S.ONGOING), 5, producer_id=8), InvalidProducerIdMapping)
    for epoch in (4, 6):
        refused(end(tx(S.ONGOING), epoch), TransactionalIdFenced)


# ---- end, version 2


@pytest.mark.parametrize("commit", [True, False])
def test_version_2_bumps_the_epoch_and_answers_the_same_again(commit: bool) -> None:
    decision = end(tx(S.ONGOING), 5, commit=commit, v2=True)
    after = decision.after
    assert decision.answer == (7, 6)
    assert after is not None
    assert (after.pair, after.last_producer_epoch, after.client_version) == ((7, 6), 5, 2)
    for known in (after, complete(after, T1)):
        assert end(known, 5, commit=commit, v2=True) == Decision(Pair(7, 6))
        refused(end(known, 5, commit=not commit, v2=True), InvalidTxnState)
        refused(end(known, 4, commit=commit, v2=True), TransactionalIdFenced)
        again = init(known, (7, 5))
        assert again.after is None or again.after.state is S.EMPTY
    refused(end(after, 6, commit=commit, v2=True), TransactionalIdFenced)


V2 = {"client_version": 2, "last_producer_epoch": 4}


@pytest.mark.parametrize(
    ("state", "commit", "again", "anew"),
    [
        # Kafka's table: a repeated call has the epoch before, another one that of the id.
        (S.EMPTY, False, TransactionalIdFenced, None),
        (S.EMPTY, True, TransactionalIdFenced, InvalidTxnState),
        (S.COMPLETE_ABORT, False, None, None),
        (S.COMPLETE_ABORT, True, InvalidTxnState, InvalidTxnState),
        (S.COMPLETE_COMMIT, False, InvalidTxnState, None),
        (S.COMPLETE_COMMIT, True, None, InvalidTxnState),
    ],
)
def test_version_2_of_what_is_not_open(
    state: S, commit: bool, again: type[StreamlogError] | None, anew: type[StreamlogError] | None
) -> None:
    repeated = end(tx(state, **V2), 4, commit=commit, v2=True)
    if again is None:
        assert repeated == Decision(Pair(7, 5))
    else:
        refused(repeated, again)
    other = end(tx(state, **V2), 5, commit=commit, v2=True)
    if anew is not None:
        refused(other, anew)
        return
    after = other.after
    assert other.answer == (7, 6)
    assert after is not None
    assert (after.state, after.partitions, after.start_ms) == (S.PREPARE_ABORT, frozenset(), T1)


def test_version_2_goes_on_with_a_new_producer_id_when_epochs_are_used_up() -> None:
    with pytest.raises(NeedsProducerId):
        end(tx(S.ONGOING, epoch=EPOCH_LAST), EPOCH_LAST, v2=True, fresh=None)
    decision = end(tx(S.ONGOING, epoch=EPOCH_LAST), EPOCH_LAST, v2=True)
    after = decision.after
    assert decision.answer == (NEW, 0)
    assert after is not None
    assert (after.pair, after.next_producer_id) == ((7, EPOCH_LAST + 1), NEW)
    done = complete(after, T1)
    assert (done.pair, done.previous_producer_id, done.next_producer_id) == ((NEW, 0), 7, NONE)
    for known in (after, done):
        assert end(known, EPOCH_LAST, v2=True) == Decision(Pair(NEW, 0))
    again = init(done, (7, EPOCH_LAST))
    assert again.answer == (NEW, 0)
    assert again.after is not None
    assert again.after.state is S.EMPTY
    begun = add_partitions(done, Pair(NEW, 0), [A], T1).after
    assert begun is not None
    assert begun.previous_producer_id == NONE
    refused(end(begun, EPOCH_LAST, v2=True), InvalidProducerIdMapping)


def test_a_producer_of_version_2_goes_on_after_its_time_out() -> None:
    aborted = complete(fence(tx(S.ONGOING), T1), T1)
    assert end(aborted, 5, commit=False, v2=True) == Decision(Pair(7, 6))
    refused(end(aborted, 5, commit=True, v2=True), InvalidTxnState)
    refused(end(aborted, 5, commit=False), TransactionalIdFenced)


def test_an_epoch_that_no_end_has_given_out_is_no_repetition() -> None:
    """An older instance, whose epoch is the one before, must not get the newest pair."""
    refused(end(tx(S.COMPLETE_ABORT), 4, commit=False, v2=True), TransactionalIdFenced)


# ---- abort, expiry, the table


def test_an_operators_abort_fences_whoever_has_the_id() -> None:
    answer = abort(None, "tx", NEW, T1)
    refused(answer, TransactionalIdNotFound)
    for state in PREPARED:
        refused(abort(tx(state), "tx", NEW, T1), ConcurrentTransactions)
    decision = abort(tx(S.ONGOING), "tx", None, T1)
    assert decision.after == fence(tx(S.ONGOING), T1)
    assert not isinstance(decision.answer, StreamlogError)
    assert (decision.answer.state, decision.answer.producer_epoch) == (S.ONGOING, 5)
    for state in (S.EMPTY, *COMPLETE):
        after = abort(tx(state), "tx", None, T1).after
        assert after is not None
        assert (after.pair, after.timeout_ms) == ((7, 6), 60_000)


def test_only_idle_ids_expire() -> None:
    for state in S:
        idle = state in (S.EMPTY, *COMPLETE)
        assert is_expired(tx(state), T1 - T0, T1) == idle
        assert not is_expired(tx(state), T1 - T0 + 1, T1)


@pytest.mark.parametrize("v2", [True, False])
def test_an_applications_epoch_rises_with_what_is_committed(v2: bool) -> None:
    first = end(tx(S.ONGOING), 5, v2=v2, application=3).after
    assert first is not None
    assert first.application_epoch == 3
    assert complete(first, T1).described().application_epoch == 3
    known = tx(S.ONGOING, application_epoch=3)
    for passed in (2, 3):
        refused(end(known, 5, v2=v2, application=passed), InvalidTxnState)
        aborted = end(known, 5, commit=False, v2=v2, application=passed).after
        assert aborted is not None
        assert aborted.application_epoch == 3
    for given, kept in ((4, 4), (None, 3)):
        after = end(known, 5, v2=v2, application=given).after
        assert after is not None
        assert after.application_epoch == kept
    # Whoever takes the id over, or aborts what is open, leaves it.
    for taken in (init(tx(application_epoch=3)), init(known)):
        assert taken.after is not None
        assert taken.after.application_epoch == 3


def test_the_end_that_is_repeated_has_its_epoch_already() -> None:
    decided = end(tx(S.ONGOING), 5, application=3).after
    assert decided is not None
    refused(end(decided, 5, application=3), ConcurrentTransactions)
    assert end(complete(decided, T1), 5, application=3) == Decision(Pair(7, 5))


def test_a_transition_outside_the_table_is_a_bug() -> None:
    with pytest.raises(Internal):
        transition_to(tx(S.PREPARE_COMMIT), S.COMPLETE_ABORT, T1)
    with pytest.raises(Internal):
        transition_to(tx(), S.EMPTY, T1, producer_epoch=EPOCH_LAST + 2)


def test_a_clock_that_goes_back_moves_no_time_back() -> None:
    assert fence(tx(S.ONGOING, updated_ms=T1 + 1), T1).updated_ms == T1 + 1
