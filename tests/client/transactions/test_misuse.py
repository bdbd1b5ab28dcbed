"""Calls at the wrong moment: each says what to do instead, and nothing is left half done."""

from __future__ import annotations

import math
import os
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from streamlog.client import Producer
from streamlog.errors import Closed, Invalid, InvalidTxnState
from tests.client.fake_node import FakeNode
from tests.client.transactions.conftest import MakeProducer
from tests.client.transactions.producers import FAST, WAIT_S


def test_sending_outside_of_a_transaction(node: FakeNode, make: MakeProducer) -> None:
    node.create("t")
    producer = make()

    def refuses() -> None:
        sends: list[Callable[[], object]] = [
            lambda: producer.send("t", b"v"),
            lambda: producer.send_many("t", [b"v"]),
            lambda: producer.send("new", b"v"),
        ]
        for send in sends:
            with pytest.raises(InvalidTxnState, match="begin_transaction"):
                send()

    node.auto_create = True
    refuses()
    producer.init_transactions()
    refuses()
    with producer.transaction():
        producer.send("t", b"in")
    refuses()
    assert node.values("t") == [b"in"]
    assert "new" not in node.topics


def test_calls_out_of_order(node: FakeNode, make: MakeProducer) -> None:
    node.create("t")
    producer = make()
    for call in (producer.commit_transaction, producer.abort_transaction):
        with pytest.raises(InvalidTxnState, match="begin_transaction"):
            call()
    producer.init_transactions()
    producer.init_transactions()
    for call in (producer.commit_transaction, producer.abort_transaction):
        with pytest.raises(InvalidTxnState, match="begin_transaction"):
            call()
    producer.begin_transaction()
    for call in (producer.begin_transaction, producer.init_transactions):
        with pytest.raises(InvalidTxnState, match="ends it first"):
            call()
    producer.send("t", b"v")
    producer.commit_transaction()
    with pytest.raises(InvalidTxnState):
        producer.commit_transaction()
    assert node.committed_values("t") == [b"v"]
    assert node.transactions.calls == ["InitProducerId", "AddPartitions", "Commit"]


def test_a_block_inside_a_block_aborts_the_outer_one(node: FakeNode, make: MakeProducer) -> None:
    node.create("t")
    producer = make()

    def work() -> None:
        with producer.transaction():
            producer.send("t", b"v").result(WAIT_S)
            with producer.transaction():
                raise AssertionError("the inner block was entered")

    with pytest.raises(InvalidTxnState, match="ends it first"):
        work()
    assert node.transactions.calls[-1] == "Abort"


@pytest.mark.parametrize("timeout", ["1", b"1", object()], ids=["text", "bytes", "an object"])
def test_a_wrong_time_out_changes_nothing(
    node: FakeNode, make: MakeProducer, timeout: object
) -> None:
    node.create("t")
    producer = make()
    with pytest.raises(TypeError):
        producer.init_transactions(timeout)
    producer.begin_transaction()
    producer.send("t", b"v")
    for call in (producer.commit_transaction, producer.abort_transaction):
        with pytest.raises(TypeError):
            call(timeout)
    producer.commit_transaction(math.inf)
    assert node.committed_values("t") == [b"v"]


def test_calls_after_close(node: FakeNode, make: MakeProducer) -> None:
    node.create("t")
    producer = make()
    with producer.transaction():
        producer.send("t", b"v")
    producer.close()
    for call in (
        producer.init_transactions,
        producer.begin_transaction,
        producer.commit_transaction,
        producer.abort_transaction,
        lambda: producer.send("t", b"v"),
    ):
        with pytest.raises(Closed):
            call()
    with pytest.raises(Closed), producer.transaction():
        raise AssertionError("the block was entered")
    producer.close()


def test_close_aborts_an_open_transaction(node: FakeNode, make: MakeProducer) -> None:
    node.create("t")
    producer = make()
    producer.begin_transaction()
    producer.send("t", b"v").result(WAIT_S)
    producer.close()
    assert node.transactions.calls[-1] == "Abort"
    assert node.committed_values("t") == []


def test_close_within_the_block(node: FakeNode, make: MakeProducer) -> None:
    node.create("t")
    producer = make()

    def work() -> None:
        with producer.transaction():
            producer.send("t", b"v").result(WAIT_S)
            producer.close()

    with pytest.raises(Closed):
        work()
    assert node.transactions.calls[-1] == "Abort"


def test_a_delivery_callback_cannot_wait_for_a_transaction(node: FakeNode) -> None:
    node.create("t")
    caught: list[BaseException] = []
    with Producer(node.server, transactional_id="x", **FAST) as producer:

        def on_delivery(*_: object) -> None:
            for call in (
                producer.commit_transaction,
                producer.abort_transaction,
                producer.init_transactions,
            ):
                try:
                    call()
                except Invalid as error:
                    caught.append(error)

        with producer.transaction():
            producer.send("t", b"v", on_delivery=on_delivery).result(WAIT_S)
    assert len(caught) == 3
    assert all("callback" in str(error) for error in caught)
    assert node.committed_values("t") == [b"v"]


def test_a_callback_that_raises_does_not_touch_the_transaction(
    node: FakeNode, make: MakeProducer
) -> None:
    node.create("t")
    producer = make()

    def on_delivery(*_: object) -> None:
        raise ZeroDivisionError

    with producer.transaction():
        producer.send("t", b"v", on_delivery=on_delivery)
    assert node.committed_values("t") == [b"v"]


def test_a_send_that_raises_keeps_the_transaction(node: FakeNode, make: MakeProducer) -> None:
    node.create("t")
    producer = make()
    with producer.transaction():
        producer.send("t", b"one")
        for wrong in ("text", 7):
            with pytest.raises((TypeError, Invalid)):
                producer.send("t", wrong)
        producer.send("t", b"two")
    assert node.committed_values("t") == [b"one", b"two"]


def test_threads_that_send_while_another_one_commits(node: FakeNode) -> None:
    """Each record is refused, or is committed."""
    node.create("t", 2)
    taken: list[bytes] = []
    with Producer(node.server, transactional_id="x", **FAST) as producer:
        producer.begin_transaction()
        go = threading.Event()

        def send(name: int) -> None:
            for number in range(100_000):
                value = b"%d-%d" % (name, number)
                try:
                    producer.send("t", value, partition=number % 2)
                except InvalidTxnState:
                    return
                taken.append(value)
                if number == 100:
                    go.set()

        threads = [threading.Thread(target=send, args=(name,)) for name in range(3)]
        for thread in threads:
            thread.start()
        assert go.wait(WAIT_S)
        producer.commit_transaction()
        for thread in threads:
            thread.join(WAIT_S)
    stored = node.committed_values("t", 0) + node.committed_values("t", 1)
    assert Counter(stored) == Counter(taken)


def test_two_threads_that_commit_wait_for_the_same_end(node: FakeNode) -> None:
    node.create("t")
    with Producer(node.server, transactional_id="x", **FAST) as producer:
        producer.begin_transaction()
        node.hold.clear()
        producer.send("t", b"v")
        ended: list[Any] = []

        def commit() -> None:
            try:
                producer.commit_transaction(WAIT_S)
                ended.append(None)
            except BaseException as error:  # noqa: BLE001 - asserted below
                ended.append(error)

        threads = [threading.Thread(target=commit) for _ in range(2)]
        for thread in threads:
            thread.start()
        with pytest.raises(TimeoutError):
            producer.commit_transaction(0)
        node.hold.set()
        for thread in threads:
            thread.join(WAIT_S)
    # The one that came when the result was taken finds no transaction.
    assert ended.count(None) >= 1
    assert all(one is None or isinstance(one, InvalidTxnState) for one in ended)
    assert node.transactions.calls.count("Commit") == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_the_transaction_belongs_to_the_process_that_began_it(node: FakeNode) -> None:
    node.create("t")
    with Producer(node.server, transactional_id="x", **FAST) as producer:
        producer.begin_transaction()
        producer.send("t", b"v").result(WAIT_S)
        child = os.fork()
        if child == 0:
            codes = 0
            for call in (
                producer.commit_transaction,
                producer.abort_transaction,
                producer.begin_transaction,
                lambda: producer.send("t", b"child"),
            ):
                try:
                    call()
                except Invalid:
                    codes += 1
            producer.close()
            os._exit(codes)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 4
        producer.commit_transaction()
    assert node.committed_values("t") == [b"v"]
