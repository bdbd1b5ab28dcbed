"""Answers lost, connections broken, errors in bursts, a node that hangs or restarts: exactly once,
in order."""

from __future__ import annotations

import random
import threading
from typing import Any

import pytest

from streamlog.client import Producer
from streamlog.errors import (
    Internal,
    MessageTooLarge,
    OutcomeUnknown,
    StoreUnavailable,
    StreamlogError,
    Unauthorized,
    Unavailable,
    UnknownTopicOrPartition,
)
from tests.client.fake_node import FakeNode, Fault

WAIT_S = 30


def produce_through(node: FakeNode, faults: list[Fault | None], **settings: Any) -> None:
    """Sends numbered records while the faults happen; checks what is stored."""
    node.create("t", 2)
    values = [b"%06d" % number for number in range(6000)]
    with Producer(
        node.server,
        batch_size_bytes=1024,
        batch_size_max_bytes=1024,
        retry_backoff_ms=5,
        retry_backoff_max_ms=20,
        **settings,
    ) as producer:
        producer.send("t", b"warm", partition=0).result(WAIT_S)
        node.faults.extend(faults)
        views = [
            producer.send("t", value, partition=number % 2) for number, value in enumerate(values)
        ]
        producer.flush(WAIT_S)
        metadata = [view.result(WAIT_S) for view in views]
        metrics = producer.metrics()
    stored = [node.values("t", 0), node.values("t", 1)]
    assert stored[0] == [b"warm", *values[0::2]]
    assert stored[1] == values[1::2]
    for value, place in zip(values, metadata, strict=True):
        assert stored[place.partition][place.offset] == value
    assert not node.faults
    assert metrics["records_failed"] == 0
    assert metrics["messages_in_flight"] == metrics["buffered_bytes"] == 0


@pytest.mark.parametrize(
    "faults",
    [
        [Fault.LOSE_ANSWER] * 3,
        [Fault.BREAK] * 3,
        [Fault.REFUSE] * 5,
        [Fault.REFUSE_WHOLE] * 5,
        [None, Fault.REFUSE, Fault.LOSE_ANSWER, None, Fault.BREAK, Fault.REFUSE_WHOLE],
    ],
    ids=lambda faults: "-".join(fault.name if fault else "ok" for fault in faults),
)
def test_retries_neither_lose_nor_double_nor_reorder(
    node: FakeNode, faults: list[Fault | None]
) -> None:
    produce_through(node, faults)
    assert node.id_requests == [(None, None)]


@pytest.mark.parametrize("seed", range(6))
def test_random_faults(node: FakeNode, seed: int) -> None:
    choose = random.Random(seed)
    kinds = [None, None, Fault.LOSE_ANSWER, Fault.BREAK, Fault.REFUSE, Fault.REFUSE_WHOLE]
    produce_through(node, [choose.choice(kinds) for _ in range(25)])


@pytest.mark.parametrize("fault", [Fault.HANG, Fault.STORE_AND_HANG])
def test_an_answer_that_does_not_come_is_asked_for_again(node: FakeNode, fault: Fault) -> None:
    produce_through(node, [None, fault], request_timeout_ms=300)


def test_restarts_of_the_node(node: FakeNode) -> None:
    node.create("t")
    values = [b"%06d" % number for number in range(4000)]
    with Producer(
        node.server, batch_size_bytes=512, batch_size_max_bytes=512, retry_backoff_ms=5
    ) as producer:
        views = []
        for number, value in enumerate(values):
            views.append(producer.send("t", value))
            if number % 1000 == 500:
                node.stop()
                node.start()
        producer.flush(WAIT_S)
        offsets = [view.result(WAIT_S).offset for view in views]
    assert offsets == list(range(len(values)))
    assert node.values("t") == values


def test_a_stored_batch_without_an_answer_is_outcome_unknown(node: FakeNode) -> None:
    """Later records go on under a new epoch, in order, behind whatever was stored."""
    node.create("t")
    with Producer(
        node.server, linger_ms=0, delivery_timeout_ms=2_000, request_timeout_ms=10_000
    ) as producer:
        producer.send("t", b"first").result(WAIT_S)
        node.faults.append(Fault.STORE_AND_HANG)
        lost = producer.send("t", b"stored")
        with pytest.raises(OutcomeUnknown, match="may be stored") as caught:
            lost.result(WAIT_S)
        assert not caught.value.has_no_side_effects
        node.stop()
        node.start()
        after = [producer.send("t", b"%d" % number) for number in range(50)]
        producer.flush(WAIT_S)
        assert [view.exception() for view in after] == [None] * 50
    assert node.values("t") == [b"first", b"stored", *(b"%d" % number for number in range(50))]
    assert node.id_requests == [(None, None), (1001, 0)]


def test_batches_behind_one_of_unknown_outcome_are_unknown_too(node: FakeNode) -> None:
    node.create("t")
    with Producer(
        node.server, batch_size_bytes=128, batch_size_max_bytes=128, delivery_timeout_ms=2_000
    ) as producer:
        producer.send("t", b"first").result(WAIT_S)
        node.hold.clear()
        views = [producer.send("t", b"%06d" % number) for number in range(100)]
        errors = [view.exception(WAIT_S) for view in views]
        assert all(isinstance(error, OutcomeUnknown | Unavailable) for error in errors)
        assert isinstance(errors[0], OutcomeUnknown)
        unknown = sum(isinstance(error, OutcomeUnknown) for error in errors)
        node.hold.set()
        node.stop()
        node.start()
        assert producer.send("t", b"after").result(WAIT_S).offset >= 1
    stored = node.values("t")
    assert stored[0] == b"first"
    assert stored[1:-1] == sorted(stored[1:-1])
    assert stored[-1] == b"after"
    assert len(stored) <= unknown + 2


def test_a_refusal_until_the_end_keeps_its_type(node: FakeNode) -> None:
    node.create("t")
    node.refusal = lambda _topic, _partition: StoreUnavailable("the store is away")
    with Producer(node.server, delivery_timeout_ms=1_000, retry_backoff_max_ms=20) as producer:
        refused = producer.send("t", b"refused")
        with pytest.raises(StoreUnavailable, match="the store is away"):
            refused.result(WAIT_S)
        node.refusal = lambda _topic, _partition: None
        assert producer.send("t", b"stored").result(WAIT_S).offset == 0
    assert node.values("t") == [b"stored"]


def test_never_sent_is_unavailable(node: FakeNode) -> None:
    node.create("t")
    with Producer(node.server, delivery_timeout_ms=1_000) as producer:
        producer.send("t", b"v").result(WAIT_S)
        node.stop()
        producer_error = producer.send("t", b"lost").exception(WAIT_S)
    assert isinstance(producer_error, StreamlogError)
    assert isinstance(producer_error, Unavailable | OutcomeUnknown)


def test_no_id_is_an_error_at_once(node: FakeNode) -> None:
    node.create("t")
    node.id_error = Unauthorized("no idempotent writes for you")
    with Producer(node.server) as producer, pytest.raises(Unauthorized):
        producer.send("t", b"v").result(WAIT_S)


@pytest.mark.parametrize(
    "refusal", [Internal("broken off on command"), MessageTooLarge("RESOURCE_EXHAUSTED")], ids=repr
)
def test_an_id_that_is_not_raised_is_asked_for_again(
    node: FakeNode, refusal: StreamlogError
) -> None:
    """A new id would not fence what is still on its way under the old one."""
    node.create("t")
    with Producer(node.server, linger_ms=0, retry_backoff_ms=1) as producer:
        producer.send("t", b"first").result(WAIT_S)
        node.refusal = lambda _topic, _partition: Unauthorized("refused on command")
        node.id_error = refusal
        assert isinstance(producer.send("t", b"refused").exception(WAIT_S), Unauthorized)
        node.refusal = lambda _topic, _partition: None
        after = producer.send("t", b"after")
        pause = threading.Event()
        while len(node.id_requests) < 3:
            pause.wait(0.001)
        node.id_error = None
        after.result(WAIT_S)
    assert {producer_id for producer_id, _ in node.id_requests[1:]} == {1001}
    assert node.values("t") == [b"first", b"after"]


def test_a_deleted_topic_is_not_retried_for_long(node: FakeNode) -> None:
    node.create("t")
    with Producer(node.server, retry_backoff_ms=1, retry_backoff_max_ms=5) as producer:
        producer.send("t", b"v").result(WAIT_S)
        del node.topics["t"]
        with pytest.raises(UnknownTopicOrPartition):
            producer.send("t", b"v").result(WAIT_S)


def test_closing_gives_up_what_is_left(node: FakeNode) -> None:
    node.create("t")
    node.hold.clear()
    producer = Producer(node.server)
    view = producer.send("t", b"v")
    producer.close(timeout=0.2)
    assert isinstance(view.exception(), StreamlogError)
    producer.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "streamlog-producer"]
    node.hold.set()
