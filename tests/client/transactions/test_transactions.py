"""Transactions of a producer as the application sees them: whole or nothing, one by one."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from streamlog.errors import (
    InvalidConfig,
    InvalidTxnState,
    MessageTooLarge,
    StreamlogError,
    TransactionAbortable,
    TransactionalIdFenced,
    Unauthorized,
    UnknownTopicOrPartition,
)
from tests.client.fake_node import FakeNode
from tests.client.transactions.conftest import MakeProducer
from tests.client.transactions.producers import WAIT_S


def test_a_commit_covers_several_partitions_and_topics(node: FakeNode, make: MakeProducer) -> None:
    node.create("t", 3)
    node.create("u", 1)
    producer = make()
    producer.init_transactions()
    producer.begin_transaction()
    sent = [producer.send("t", b"%d" % number, partition=number) for number in range(3)]
    sent.append(producer.send("u", b"u"))
    producer.commit_transaction()
    assert all(one.exception() is None for one in sent)
    assert [node.committed_values("t", number) for number in range(3)] == [[b"0"], [b"1"], [b"2"]]
    assert node.committed_values("u") == [b"u"]
    assert node.transactions.calls[0] == "InitProducerId"
    assert node.transactions.calls[-1] == "Commit"


def test_a_commit_sends_what_lingers(node: FakeNode, make: MakeProducer) -> None:
    node.create("t")
    producer = make(linger_ms=60_000, delivery_timeout_ms=120_000)
    with producer.transaction():
        for number in range(10):
            producer.send("t", b"%d" % number)
    assert node.committed_values("t") == [b"%d" % number for number in range(10)]


def test_an_abort_leaves_nothing(node: FakeNode, make: MakeProducer) -> None:
    node.create("t")
    producer = make()
    producer.begin_transaction()
    producer.send("t", b"stored").result(WAIT_S)
    node.hold.clear()
    waiting = producer.send("t", b"under way")
    producer.abort_transaction()
    assert isinstance(waiting.exception(WAIT_S), TransactionAbortable)
    node.hold.set()
    assert node.committed_values("t") == []
    with producer.transaction():
        producer.send("t", b"next")
    assert node.committed_values("t") == [b"next"]
    assert producer.metrics()["messages_in_flight"] == 0


def test_each_transaction_has_its_own_epoch(node: FakeNode, make: MakeProducer) -> None:
    node.create("t", 2)
    producer = make()
    for number in range(6):
        producer.begin_transaction()
        producer.send("t", b"%d" % number, partition=number % 2)
        if number % 3:
            producer.commit_transaction()
        else:
            producer.abort_transaction()
    assert node.committed_values("t", 0) == [b"2", b"4"]
    assert node.committed_values("t", 1) == [b"1", b"5"]


def test_a_transaction_without_records_asks_the_coordinator_nothing(
    node: FakeNode, make: MakeProducer
) -> None:
    producer = make()
    for _ in range(3):
        with producer.transaction():
            pass
        producer.begin_transaction()
        producer.abort_transaction()
    assert node.transactions.calls == ["InitProducerId"]


def test_partitions_are_added_together_and_once(node: FakeNode, make: MakeProducer) -> None:
    node.create("t", 20)
    producer = make(linger_ms=60_000, delivery_timeout_ms=120_000)
    with producer.transaction():
        for number in range(200):
            producer.send("t", b"v", partition=number % 20)
    assert node.transactions.calls.count("AddPartitions") <= 20
    assert len(node.transactions.ids["x"].partitions) == 0
    assert sum(len(node.committed_values("t", number)) for number in range(20)) == 200


def test_send_many_is_part_of_the_transaction(node: FakeNode, make: MakeProducer) -> None:
    node.create("t", 4)
    values = [b"%04d" % number for number in range(5000)]
    producer = make(batch_size_bytes=2048, batch_size_max_bytes=2048)
    with producer.transaction():
        producer.send_many("t", values, values)
    stored = [value for number in range(4) for value in node.committed_values("t", number)]
    assert Counter(stored) == Counter(values)


def test_a_batch_that_is_split_stays_in_the_transaction(node: FakeNode, make: MakeProducer) -> None:
    node.create("t", batch_bytes_max=4000)
    producer = make(batch_size_bytes=1000)
    with producer.transaction():
        producer.send("t", b"first").result(WAIT_S)
        node.topics["t"].batch_bytes_max = 600
        for number in range(9):
            producer.send("t", b"%d" % number * 100)
    assert node.committed_values("t") == [b"first", *(b"%d" % n * 100 for n in range(9))]


def test_an_exception_in_the_block_aborts(node: FakeNode, make: MakeProducer) -> None:
    node.create("t")
    producer = make()

    def work() -> None:
        with producer.transaction():
            producer.send("t", b"no").result(WAIT_S)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work()
    assert node.transactions.calls[-1] == "Abort"
    with producer.transaction():
        producer.send("t", b"yes")
    assert node.committed_values("t") == [b"yes"]


def test_a_block_that_ended_its_transaction_is_left_quietly(
    node: FakeNode, make: MakeProducer
) -> None:
    node.create("t")
    producer = make()
    with producer.transaction():
        producer.send("t", b"no").result(WAIT_S)
        producer.abort_transaction()
    with producer.transaction():
        producer.send("t", b"yes")
        producer.commit_transaction()
    assert node.committed_values("t") == [b"yes"]


def test_a_record_that_fails_leaves_only_the_abort(node: FakeNode, make: MakeProducer) -> None:
    node.create("t", 2)
    producer = make()
    producer.begin_transaction()
    producer.send("t", b"good", partition=0).result(WAIT_S)
    node.refusal = lambda _, partition: MessageTooLarge("no") if partition == 1 else None
    failed = producer.send("t", b"bad", partition=1)
    assert isinstance(failed.exception(WAIT_S), MessageTooLarge)
    for call in (
        producer.commit_transaction,
        producer.begin_transaction,
        lambda: producer.send("t", b"late", partition=0),
        lambda: producer.send_many("t", [b"late"]),
    ):
        with pytest.raises(TransactionAbortable, match="abort_transaction"):
            call()
    producer.abort_transaction()
    node.refusal = lambda _topic, _partition: None
    with producer.transaction():
        producer.send("t", b"next", partition=1)
    assert node.committed_values("t", 0) == []
    assert node.committed_values("t", 1) == [b"next"]


def test_a_commit_fails_where_a_record_fails_meanwhile(node: FakeNode, make: MakeProducer) -> None:
    node.create("t", 2)
    producer = make()
    node.refusal = lambda _, partition: MessageTooLarge("no") if partition == 1 else None

    def work() -> None:
        with producer.transaction():
            producer.send("t", b"good", partition=0)
            producer.send("t", b"bad", partition=1)

    with pytest.raises(TransactionAbortable) as caught:
        work()
    assert isinstance(caught.value.__cause__, MessageTooLarge)
    assert "Commit" not in node.transactions.calls
    assert node.committed_values("t", 0) == []


def test_a_second_producer_fences_the_first(node: FakeNode, make: MakeProducer) -> None:
    node.create("t")
    first, second = make(), make()
    first.begin_transaction()
    first.send("t", b"first").result(WAIT_S)
    second.begin_transaction()
    late = first.send("t", b"late")
    assert isinstance(late.exception(WAIT_S), TransactionalIdFenced)
    for call in (
        first.commit_transaction,
        first.abort_transaction,
        first.begin_transaction,
        first.init_transactions,
        lambda: first.send("t", b"later"),
    ):
        with pytest.raises(TransactionalIdFenced, match="another producer"):
            call()
    second.send("t", b"second")
    second.commit_transaction()
    assert node.committed_values("t") == [b"second"]


def test_the_coordinator_says_that_a_producer_is_fenced(node: FakeNode, make: MakeProducer) -> None:
    node.create("t")
    first, second = make(), make()
    first.begin_transaction()
    first.send("t", b"first").result(WAIT_S)
    second.init_transactions()
    with pytest.raises(TransactionalIdFenced):
        first.commit_transaction()
    with pytest.raises(TransactionalIdFenced):
        first.begin_transaction()


def test_a_transaction_that_timed_out_ends_the_producer(node: FakeNode, make: MakeProducer) -> None:
    node.create("t")
    producer = make(transaction_timeout_ms=1234)
    producer.begin_transaction()
    producer.send("t", b"v").result(WAIT_S)
    node.transactions.expire("x")
    with pytest.raises(TransactionalIdFenced, match="transaction_timeout_ms"):
        producer.commit_transaction()


@pytest.mark.parametrize(
    "refusal",
    [UnknownTopicOrPartition("gone"), TransactionAbortable("abort it"), Unauthorized("not you")],
    ids=lambda error: type(error).__name__,
)
def test_a_partition_that_cannot_be_added_leaves_only_the_abort(
    node: FakeNode, make: MakeProducer, refusal: StreamlogError
) -> None:
    node.create("t", 2)
    producer = make()
    node.transactions.refused["t", 1] = refusal
    producer.begin_transaction()
    sent = producer.send("t", b"v", partition=1)
    with pytest.raises(TransactionAbortable):
        producer.commit_transaction()
    assert sent.exception(WAIT_S) is not None
    producer.abort_transaction()
    node.transactions.refused.clear()
    with producer.transaction():
        producer.send("t", b"v", partition=1)
    assert node.committed_values("t", 1) == [b"v"]


@pytest.mark.parametrize(
    "settings",
    [
        dict(transactional_id=""),
        dict(transactional_id=7),
        dict(transactional_id="x" * 32_768),
        dict(transactional_id="\ud800"),
        dict(acks=0),
        dict(acks=1),
        dict(idempotence=False),
        dict(transaction_timeout_ms=0),
        dict(transaction_timeout_ms=2**31),
        dict(transaction_timeout_ms="1"),
    ],
    ids=str,
)
def test_settings_that_cannot_be(make: MakeProducer, settings: dict[str, Any]) -> None:
    with pytest.raises(InvalidConfig):
        make(**settings)


def test_a_producer_without_an_id_has_no_transactions(node: FakeNode, make: MakeProducer) -> None:
    node.create("t")
    producer = make(transactional_id=None)
    for call in (
        producer.init_transactions,
        producer.begin_transaction,
        producer.commit_transaction,
        producer.abort_transaction,
    ):
        with pytest.raises(InvalidTxnState, match="transactional_id"):
            call()
    with pytest.raises(InvalidTxnState, match="transactional_id"), producer.transaction():
        raise AssertionError("the block was entered")
    producer.send("t", b"v").result(WAIT_S)
