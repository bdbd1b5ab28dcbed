"""Answers lost, a coordinator that hangs, refuses or is away, at every call of a transaction."""

from __future__ import annotations

import threading
import time

import pytest

from streamlog.client import Producer
from streamlog.errors import (
    ConcurrentTransactions,
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    InvalidProducerIdMapping,
    InvalidTransactionTimeout,
    InvalidTxnState,
    NotCoordinator,
    OutcomeUnknown,
    StreamlogError,
    TransactionAbortable,
    TransactionalIdFenced,
    Unauthorized,
    Unavailable,
)
from tests.client.fake_node import FakeNode, Fault
from tests.client.fake_transactions import CoordinatorFault
from tests.client.transactions.conftest import MakeProducer
from tests.client.transactions.producers import FAST, WAIT_S

LOSE, BREAK, HANG = CoordinatorFault
RETRYABLE = (
    NotCoordinator("moved"),
    CoordinatorLoadInProgress("replaying"),
    CoordinatorNotAvailable("away"),
    ConcurrentTransactions("ending"),
)


@pytest.mark.parametrize("fault", [LOSE, BREAK, *RETRYABLE], ids=str)
@pytest.mark.parametrize("call", range(3), ids=["init", "add", "commit"])
def test_each_call_is_repeated(
    node: FakeNode, make: MakeProducer, call: int, fault: CoordinatorFault | StreamlogError
) -> None:
    node.create("t")
    node.transactions.faults.extend([*[None] * call, fault, fault])
    producer = make()
    with producer.transaction():
        producer.send("t", b"v")
    assert not node.transactions.faults
    assert node.committed_values("t") == [b"v"]
    assert len(node.transactions.committed) == 1
    with producer.transaction():
        producer.send("t", b"w")
    assert node.committed_values("t") == [b"v", b"w"]


@pytest.mark.parametrize("fault", [LOSE, BREAK, *RETRYABLE], ids=str)
def test_an_abort_is_repeated(
    node: FakeNode, make: MakeProducer, fault: CoordinatorFault | StreamlogError
) -> None:
    node.create("t")
    producer = make()
    producer.begin_transaction()
    producer.send("t", b"v").result(WAIT_S)
    node.transactions.faults.extend([fault, fault])
    producer.abort_transaction()
    assert len(node.transactions.aborted) == 1
    with producer.transaction():
        producer.send("t", b"w")
    assert node.committed_values("t") == [b"w"]


@pytest.mark.parametrize("call", range(3), ids=["init", "add", "commit"])
def test_a_call_that_hangs_is_given_up_and_repeated(
    node: FakeNode, make: MakeProducer, call: int
) -> None:
    node.create("t")
    node.transactions.faults.extend([*[None] * call, HANG])
    producer = make(request_timeout_ms=200)
    with producer.transaction():
        producer.send("t", b"v")
    assert node.committed_values("t") == [b"v"]


def test_a_commit_without_an_answer_is_unknown_and_can_be_asked_again(
    node: FakeNode, make: MakeProducer
) -> None:
    node.create("t")
    producer = make(delivery_timeout_ms=1_000, request_timeout_ms=100)
    producer.begin_transaction()
    producer.send("t", b"v").result(WAIT_S)
    node.transactions.faults.extend([LOSE, *[HANG] * 20])
    with pytest.raises(OutcomeUnknown, match="commit_transaction\\(\\) again"):
        producer.commit_transaction()
    for call in (producer.abort_transaction, producer.begin_transaction):
        with pytest.raises(InvalidTxnState, match="commit_transaction\\(\\) again"):
            call()
    with pytest.raises(InvalidTxnState):
        producer.send("t", b"late")
    # What is surely not decided now may have been before.
    node.transactions.faults.clear()
    node.transactions.faults.extend([CoordinatorLoadInProgress("replaying")] * 1000)
    with pytest.raises(OutcomeUnknown):
        producer.commit_transaction()
    node.transactions.faults.clear()
    producer.commit_transaction()
    assert node.committed_values("t") == [b"v"]
    assert len(node.transactions.committed) == 1
    with producer.transaction():
        producer.send("t", b"w")
    assert node.committed_values("t") == [b"v", b"w"]


def test_a_commit_that_surely_was_not_decided_leaves_the_abort(
    node: FakeNode, make: MakeProducer
) -> None:
    node.create("t")
    producer = make(delivery_timeout_ms=4000)
    producer.begin_transaction()
    producer.send("t", b"v").result(WAIT_S)
    node.transactions.faults.extend([CoordinatorLoadInProgress("replaying")] * 1000)
    began = time.monotonic()
    with pytest.raises(TransactionAbortable, match="took no commit"):
        producer.commit_transaction()
    assert time.monotonic() - began >= 4
    # 5, 10, then 20 ms lie between the attempts, and none is in the last second.
    assert 3 <= node.transactions.calls.count("Commit") <= 155
    node.transactions.faults.clear()
    producer.abort_transaction()
    assert node.committed_values("t") == []


def test_fenced_after_a_commit_without_an_answer(node: FakeNode, make: MakeProducer) -> None:
    node.create("t")
    producer = make()
    producer.begin_transaction()
    producer.send("t", b"v").result(WAIT_S)
    node.transactions.faults.extend([LOSE, TransactionalIdFenced("another instance")])
    with pytest.raises(OutcomeUnknown, match="read_committed"):
        producer.commit_transaction()
    with pytest.raises(TransactionalIdFenced):
        producer.begin_transaction()
    assert node.committed_values("t") == [b"v"]


def test_an_abort_without_an_answer_can_be_tried_again(node: FakeNode, make: MakeProducer) -> None:
    node.create("t")
    producer = make(delivery_timeout_ms=1_000, request_timeout_ms=100)
    producer.begin_transaction()
    producer.send("t", b"v").result(WAIT_S)
    node.transactions.faults.extend([HANG] * 20)
    with pytest.raises(Unavailable, match="abort_transaction\\(\\) again"):
        producer.abort_transaction()
    node.transactions.faults.clear()
    producer.abort_transaction()
    with producer.transaction():
        producer.send("t", b"w")
    assert node.committed_values("t") == [b"w"]


def test_a_caller_that_stops_waiting_may_wait_again(node: FakeNode, make: MakeProducer) -> None:
    node.create("t")
    producer = make(request_timeout_ms=300)
    producer.begin_transaction()
    producer.send("t", b"v").result(WAIT_S)
    node.transactions.faults.append(HANG)
    with pytest.raises(TimeoutError, match="goes on"):
        producer.commit_transaction(0.01)
    with pytest.raises(InvalidTxnState, match="wait for commit_transaction"):
        producer.abort_transaction()
    producer.commit_transaction(WAIT_S)
    assert node.committed_values("t") == [b"v"]


def test_a_result_that_nobody_took_is_not_the_next_transaction_s(
    node: FakeNode, make: MakeProducer
) -> None:
    node.create("t")
    producer = make(request_timeout_ms=100)
    producer.begin_transaction()
    producer.send("t", b"v").result(WAIT_S)
    node.transactions.faults.append(HANG)
    with pytest.raises(TimeoutError):
        producer.commit_transaction(0.01)
    while True:
        try:
            producer.begin_transaction()
            break
        except InvalidTxnState:
            # Polls a state that nothing else tells of.
            threading.Event().wait(0.01)
    producer.send("t", b"w")
    producer.commit_transaction()
    assert len(node.transactions.committed) == 2


def test_an_abort_ends_what_an_add_without_an_answer_has_begun(
    node: FakeNode, make: MakeProducer
) -> None:
    """Left open at the coordinator, it would fence the producer when its time-out comes."""
    node.create("t")
    producer = make(delivery_timeout_ms=1_000, request_timeout_ms=100)
    producer.begin_transaction()
    node.transactions.faults.extend([LOSE] * 50)
    with pytest.raises(StreamlogError):
        producer.send("t", b"v").result(WAIT_S)
    assert node.transactions.ids["x"].is_open
    node.transactions.faults.clear()
    producer.abort_transaction()
    assert not node.transactions.ids["x"].is_open
    assert len(node.transactions.aborted) == 1
    with producer.transaction():
        producer.send("t", b"w")
    assert node.committed_values("t") == [b"w"]


@pytest.mark.parametrize("error", [InvalidTxnState("nothing"), InvalidProducerIdMapping("no")])
def test_an_abort_of_what_the_coordinator_does_not_know_starts_anew(
    node: FakeNode, make: MakeProducer, error: StreamlogError
) -> None:
    node.create("t")
    producer = make()
    producer.begin_transaction()
    producer.send("t", b"v").result(WAIT_S)
    node.transactions.faults.append(error)
    producer.abort_transaction()
    assert node.transactions.calls[-2:] == ["Abort", "InitProducerId"]
    with producer.transaction():
        producer.send("t", b"w")
    assert node.committed_values("t") == [b"w"]


@pytest.mark.parametrize("error", [InvalidTxnState("nothing"), InvalidProducerIdMapping("no")])
def test_a_commit_of_what_the_coordinator_does_not_know_is_aborted(
    node: FakeNode, make: MakeProducer, error: StreamlogError
) -> None:
    node.create("t")
    producer = make()

    def work() -> None:
        with producer.transaction():
            producer.send("t", b"v").result(WAIT_S)
            node.transactions.faults.append(error)

    with pytest.raises(TransactionAbortable):
        work()
    assert node.committed_values("t") == []
    with producer.transaction():
        producer.send("t", b"w")
    assert node.committed_values("t") == [b"w"]


def test_no_permission_ends_the_producer(node: FakeNode, make: MakeProducer) -> None:
    node.create("t")
    producer = make()
    producer.begin_transaction()
    node.transactions.faults.append(Unauthorized("not you"))
    sent = producer.send("t", b"v")
    assert isinstance(sent.exception(WAIT_S), Unauthorized)
    with pytest.raises(Unauthorized):
        producer.abort_transaction()


@pytest.mark.parametrize("error", [InvalidTransactionTimeout("too long"), Unauthorized("not you")])
def test_a_refused_start_may_be_tried_again(
    node: FakeNode, make: MakeProducer, error: StreamlogError
) -> None:
    producer = make()
    node.transactions.faults.append(error)
    with pytest.raises(type(error)):
        producer.init_transactions()
    producer.begin_transaction()


def test_a_node_that_is_away_at_the_start(node: FakeNode, make: MakeProducer) -> None:
    node.create("t")
    producer = make(max_block_ms=300)
    node.stop()
    with pytest.raises(Unavailable, match="max_block_ms"):
        producer.begin_transaction()
    node.start()
    send_when_there(producer)
    assert node.committed_values("t") == [b"v"]


def send_when_there(producer: Producer) -> None:
    """One transaction. On a busy machine the first tries may take more than `max_block_ms`, too."""
    end_s = time.monotonic() + WAIT_S
    while True:
        try:
            with producer.transaction():
                producer.send("t", b"v")
            return
        except Unavailable:
            if time.monotonic() > end_s:
                raise


def test_a_node_that_is_away_for_a_moment(node: FakeNode, make: MakeProducer) -> None:
    node.create("t")
    producer = make()
    producer.begin_transaction()
    producer.send("t", b"one").result(WAIT_S)
    node.stop()
    producer.send("t", b"two")
    with pytest.raises(TimeoutError):
        producer.commit_transaction(0.2)
    node.start()
    producer.commit_transaction(WAIT_S)
    assert node.committed_values("t") == [b"one", b"two"]


def test_a_node_that_stays_away_ends_every_wait(node: FakeNode, make: MakeProducer) -> None:
    node.create("t")
    producer = make(delivery_timeout_ms=1_000)
    producer.begin_transaction()
    producer.send("t", b"one").result(WAIT_S)
    node.stop()
    sent = producer.send("t", b"two")
    with pytest.raises(TransactionAbortable):
        producer.commit_transaction()
    assert sent.exception(WAIT_S) is not None
    with pytest.raises(Unavailable, match="did not confirm the abort"):
        producer.abort_transaction()
    producer.close()
    node.start()


def test_closing_while_a_commit_hangs_says_that_its_outcome_is_unknown(node: FakeNode) -> None:
    node.create("t")
    ended: list[BaseException] = []
    producer = Producer(node.server, transactional_id="x", **FAST)
    producer.begin_transaction()
    producer.send("t", b"v").result(WAIT_S)
    node.transactions.faults.append(HANG)

    def commit() -> None:
        try:
            producer.commit_transaction()
        except OutcomeUnknown as error:
            ended.append(error)

    thread = threading.Thread(target=commit)
    thread.start()
    while "Commit" not in node.transactions.calls:
        threading.Event().wait(0.001)
    producer.close(0)
    thread.join(WAIT_S)
    assert len(ended) == 1


@pytest.mark.parametrize("fault", [Fault.LOSE_ANSWER, Fault.BREAK, Fault.REFUSE])
def test_a_broken_produce_stream_loses_and_doubles_nothing(
    node: FakeNode, make: MakeProducer, fault: Fault
) -> None:
    node.create("t", 2)
    producer = make(batch_size_bytes=512, batch_size_max_bytes=512)
    expected: list[list[bytes]] = [[], []]
    for turn in range(5):
        node.faults.extend([None, fault])
        with producer.transaction():
            for number in range(200):
                value = b"%d-%03d" % (turn, number)
                producer.send("t", value, partition=number % 2)
                expected[number % 2].append(value)
    assert [node.committed_values("t", number) for number in range(2)] == expected


def test_records_that_get_no_answer_are_aborted_and_the_next_transaction_is_clean(
    node: FakeNode, make: MakeProducer
) -> None:
    node.create("t")
    producer = make(delivery_timeout_ms=4_000, request_timeout_ms=500)
    producer.begin_transaction()
    producer.send("t", b"first").result(WAIT_S)
    node.faults.extend([Fault.STORE_AND_HANG] * 20)
    sent = producer.send("t", b"unknown")
    with pytest.raises(TransactionAbortable):
        producer.commit_transaction()
    assert sent.exception(WAIT_S) is not None
    node.faults.clear()
    producer.abort_transaction()
    with producer.transaction():
        producer.send("t", b"next")
    assert node.committed_values("t") == [b"next"]


def test_closing_a_fenced_producer_says_that_its_transaction_is_aborted_already(
    node: FakeNode, make: MakeProducer, caplog: pytest.LogCaptureFixture
) -> None:
    node.create("t")
    producer = make()
    producer.begin_transaction()
    producer.send("t", b"v").result(WAIT_S)
    node.transactions.expire("x")
    producer.close()
    assert "the transaction is aborted already" in caplog.text
    assert "after transaction_timeout_ms" not in caplog.text
