"""The core and the manager by themselves, in virtual time: what is sent when, who is woken when."""

from __future__ import annotations

import threading

import pytest

from streamlog.client.calls.topic import TopicPartition
from streamlog.client.produce.accumulator import TopicMetadata, TopicQueues
from streamlog.client.produce.core import ProducerCore
from streamlog.client.produce.options import producer_settings
from streamlog.client.producer_identity import ProducerIdentity
from streamlog.client.transactions.requests import NEVER, RequestKind
from streamlog.client.transactions.state import TRANSITIONS, TransactionPhase
from streamlog.codec.batch import scan
from streamlog.errors import OutOfOrderSequence, StoreUnavailable, TransactionAbortable
from streamlog.v1 import log_pb2
from streamlog.v1support.errors import to_proto

IDENTITY = ProducerIdentity(7, 0)


class World:
    """A core in a transaction, and what a coordinator and a node answer."""

    def __init__(self, partitions: int = 1) -> None:
        self.core = ProducerCore(producer_settings(transactional_id="x", linger_ms=0))
        assert self.core.transactions is not None
        self.manager = self.core.transactions
        metadata = TopicMetadata(partitions, topic_id="id")
        self.topic: TopicQueues = self.core.accumulator.update_topic("t", metadata, 0.0)
        self.manager.initialise(threading.Event(), 0.0)
        self.answer(RequestKind.INIT_PRODUCER_ID, IDENTITY)
        self.manager.begin()

    def answer(self, kind: RequestKind, identity: ProducerIdentity | None = None) -> None:
        """Answers the request that is made now."""
        request = self.core.transaction_request(0.0)
        assert request is not None
        assert request.kind is kind
        self.manager.answered(request, {} if identity is None else identity, 0.0)

    def append(self, partition: int = 0) -> None:
        assert self.core.append(self.topic, partition, (1, None, b"v", []), 0.0) is not None

    def refuse(self, error: Exception) -> None:
        """The node refuses everything of the message that goes out now."""
        message = self.core.next_message(1.0)
        assert message is not None
        response = log_pb2.ProduceStreamAnswer(correlation_id=message.correlation_id)
        out = response.response.topics.add(topic="t")
        for queue, _, _ in message.parts:
            result = out.partitions.add(partition=queue.partition)
            result.error.CopyFrom(to_proto(error))  # type: ignore[arg-type]
        self.core.answered([response], 1.0)


def test_a_batch_waits_for_its_partition_and_nobody_wakes_up_for_it_before() -> None:
    world = World()
    world.append()
    assert world.core.next_message(1.0) is None
    assert world.core.wake_at(1.0, can_send=True) > 100
    world.answer(RequestKind.ADD_PARTITIONS)
    message = world.core.next_message(1.0)
    assert message is not None
    (batch,) = scan(message.pieces[0][2])
    assert batch.header.is_transactional
    assert (batch.header.producer_id, batch.header.producer_epoch) == IDENTITY


def test_one_call_is_under_way_at_a_time() -> None:
    world = World(3)
    for partition in range(2):
        world.append(partition)
    request = world.core.transaction_request(0.0)
    assert request is not None
    assert request.partitions == (("t", 0), ("t", 1))
    world.append(2)
    assert world.core.transaction_request(0.0) is None
    assert world.core.transaction_wake_at(0.0) == NEVER
    world.manager.answered(request, {}, 0.0)
    request = world.core.transaction_request(0.0)
    assert request is not None
    assert request.partitions == (("t", 2),)


def test_an_answer_to_a_call_that_was_given_up_changes_nothing() -> None:
    world = World()
    world.append()
    request = world.core.transaction_request(0.0)
    assert request is not None
    world.core.abandon(StoreUnavailable("over"))
    world.manager.answered(request, {}, 0.0)
    world.manager.refused(request, StoreUnavailable("late"), 0.0)
    assert world.manager.state is TransactionPhase.FATAL_ERROR
    assert not world.manager.may_send_to(("t", 0))


def test_a_sequence_that_is_lost_leaves_only_the_abort() -> None:
    """The next epoch, which would mend it, comes with the next transaction."""
    world = World()
    world.append()
    world.answer(RequestKind.ADD_PARTITIONS)
    world.refuse(OutOfOrderSequence("a gap", expected=0, actual=0))
    world.core.take_done()
    world.core.transaction_request(1.0)
    assert world.manager.state is TransactionPhase.ABORTABLE_ERROR
    (batch,) = world.core.take_done()
    assert isinstance(batch.error, TransactionAbortable)
    with pytest.raises(TransactionAbortable):
        world.manager.check_sending()


def test_the_limit_of_a_call_is_what_is_left_of_the_operation() -> None:
    world = World()
    world.append()
    world.answer(RequestKind.ADD_PARTITIONS)
    operation = world.manager.abort(threading.Event(), 0.0)
    world.core.take_done()
    request = world.core.transaction_request(115.0)
    assert request is not None
    assert request.kind is RequestKind.END_TRANSACTION
    assert request.timeout_s == pytest.approx(5.0)
    world.manager.refused(request, StoreUnavailable("away"), 119.999)
    world.core.expire(119.9999)
    assert not operation.done
    assert world.core.transaction_wake_at(119.9999) == pytest.approx(120.0)
    world.core.expire(120.0)
    assert operation.done
    assert world.manager.state is TransactionPhase.ABORTABLE_ERROR


def test_every_state_can_be_left_and_ends_for_good() -> None:
    assert TRANSITIONS.keys() == set(TransactionPhase)
    for state, following in TRANSITIONS.items():
        is_final = state is TransactionPhase.FATAL_ERROR
        assert (TransactionPhase.FATAL_ERROR in following) is not is_final
    reached = {TransactionPhase.UNINITIALIZED}
    while more := {to for state in reached for to in TRANSITIONS[state]} - reached:
        reached |= more
    assert reached == set(TransactionPhase)


def test_a_partition_belongs_to_its_topic_s_name() -> None:
    world = World(2)
    partition: TopicPartition = ("t", 1)
    world.append(1)
    world.answer(RequestKind.ADD_PARTITIONS)
    assert world.manager.may_send_to(partition)
    assert not world.manager.may_send_to(("t", 0))
    assert not world.manager.may_send_to(("u", 1))
