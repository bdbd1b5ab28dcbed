"""Transactions against a real node, which is killed and started again: whole or nothing."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from streamlog.client import Admin, Consumer, Producer
from streamlog.client.calls.topic import TopicPartition
from streamlog.errors import (
    OutcomeUnknown,
    StreamlogError,
    TransactionAbortable,
    TransactionalIdFenced,
    TransactionalIdNotFound,
)
from tests.client.transactions.producers import FAST, KINDS, WAIT_S
from tests.support.node import NodeProcess

MakeProducer = Callable[..., Any]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    with NodeProcess(tmp_path_factory.mktemp("node") / "data") as node:
        yield node


@pytest.fixture(params=KINDS)
def make(request: pytest.FixtureRequest, node: NodeProcess) -> Iterator[MakeProducer]:
    with ExitStack() as stack:

        def make_one(transactional_id: str, **settings: Any) -> Any:
            given = {**FAST, "transactional_id": transactional_id, **settings}
            return stack.enter_context(KINDS[request.param](node.server, **given))

        yield make_one


def create(server: str, topic: str, partitions: int = 1) -> None:
    with Admin(server) as admin:
        admin.create_topic(topic, partitions)


def read(server: str, topic: str, level: str = "read_committed") -> dict[int, list[bytes | None]]:
    """By partition, the values up to the log's end, once no transaction is open."""
    values: dict[int, list[bytes | None]] = {}
    with Consumer(server, isolation_level=level, fetch_max_wait_ms=50) as consumer:
        with Admin(server) as admin:
            count = len(admin.describe_topic(topic).partitions)
        partitions = [(topic, partition) for partition in range(count)]
        consumer.assign(partitions)
        ends = ends_of(server, partitions)
        while any(consumer.position(*tp) < end for tp, end in ends.items()):
            for record in consumer.poll(0.2):
                values.setdefault(record.partition, []).append(record.value)
    return values


def ends_of(server: str, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
    with Consumer(server) as consumer:
        return consumer.end_offsets(partitions)


def unique(name: str, request: pytest.FixtureRequest) -> str:
    return f"{name}-{request.node.callspec.id}"


def test_a_commit_is_seen_in_every_partition_and_an_abort_in_none(
    node: NodeProcess, make: MakeProducer, request: pytest.FixtureRequest
) -> None:
    topic = unique("commits", request)
    create(node.server, topic, 3)
    producer = make(topic)
    expected: list[bytes] = []
    for turn in range(8):
        producer.begin_transaction()
        for partition in range(3):
            producer.send(topic, b"%d" % turn, partition=partition)
        if turn % 3 == 1:
            producer.abort_transaction()
        else:
            producer.commit_transaction()
            expected.append(b"%d" % turn)
    assert read(node.server, topic) == dict.fromkeys(range(3), expected)


def test_records_of_an_open_transaction_are_hidden_and_hold_back_the_rest(
    node: NodeProcess, make: MakeProducer, request: pytest.FixtureRequest
) -> None:
    topic = unique("open", request)
    create(node.server, topic)
    producer = make(topic)
    producer.begin_transaction()
    producer.send(topic, b"in it").result(WAIT_S)
    with Producer(node.server) as other:
        other.send(topic, b"behind").result(WAIT_S)
    with Consumer(node.server, isolation_level="read_committed") as consumer:
        consumer.assign([(topic, 0)])
        assert consumer.end_offsets([(topic, 0)]) == {(topic, 0): 0}
        assert consumer.poll(0.3) == []
        producer.commit_transaction()
        assert consumer.poll(WAIT_S)[0].value == b"in it"
    assert read(node.server, topic) == {0: [b"in it", b"behind"]}


def test_a_second_producer_fences_the_first(
    node: NodeProcess, make: MakeProducer, request: pytest.FixtureRequest
) -> None:
    topic = unique("fenced", request)
    create(node.server, topic)
    first, second = make(topic), make(topic)
    first.begin_transaction()
    first.send(topic, b"first").result(WAIT_S)
    second.begin_transaction()
    with pytest.raises(TransactionalIdFenced):
        first.commit_transaction()
    second.send(topic, b"second")
    second.commit_transaction()
    assert read(node.server, topic) == {0: [b"second"]}


def test_a_zombie_s_records_are_refused(
    node: NodeProcess, make: MakeProducer, request: pytest.FixtureRequest
) -> None:
    topic = unique("zombie", request)
    create(node.server, topic)
    first, second = make(topic), make(topic)
    first.begin_transaction()
    first.send(topic, b"first").result(WAIT_S)
    with second.transaction():
        second.send(topic, b"second")
    late = first.send(topic, b"late")
    assert late.exception(WAIT_S) is not None
    with pytest.raises(StreamlogError):
        first.commit_transaction()
    assert read(node.server, topic) == {0: [b"second"]}


def test_an_operator_aborts_a_transaction(
    node: NodeProcess, make: MakeProducer, request: pytest.FixtureRequest
) -> None:
    topic = unique("operator", request)
    create(node.server, topic)
    producer = make(topic)
    producer.begin_transaction()
    producer.send(topic, b"v").result(WAIT_S)
    with Admin(node.server) as admin:
        (open_one,) = admin.list_transactions(states=["ongoing"], transactional_id_pattern=topic)
        assert (open_one.transactional_id, open_one.coordinator_node) == (topic, 1)
        found = admin.abort_transaction(topic)
        assert [(one.topic, one.partition) for one in found.partitions] == [(topic, 0)]
        (described,) = admin.describe_transactions([topic])
        assert not isinstance(described, StreamlogError)
        (unknown,) = admin.describe_transactions(["no such id"])
        assert isinstance(unknown, TransactionalIdNotFound)
    with pytest.raises(TransactionAbortable):
        producer.commit_transaction()
    with pytest.raises(TransactionalIdFenced, match="operator"):
        producer.abort_transaction()
    assert read(node.server, topic) == {}


CLIENT = """
import sys
from streamlog.client import Producer
server, topic = sys.argv[1:]
producer = Producer(server, transactional_id=topic, transaction_timeout_ms=1500, linger_ms=0)
producer.begin_transaction()
producer.send(topic, b"of the killed client").result(30)
print("sent", flush=True)
sys.stdin.read()
"""


def test_a_killed_client_s_transaction_is_aborted_after_its_time_limit(node: NodeProcess) -> None:
    create(node.server, "killed-client")
    client = subprocess.Popen(
        [sys.executable, "-c", CLIENT, node.server, "killed-client"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert client.stdout is not None
    assert client.stdin is not None
    assert client.stdout.readline() == "sent\n"
    client.send_signal(signal.SIGKILL)
    client.wait(WAIT_S)
    client.stdout.close()
    client.stdin.close()
    with Producer(node.server) as other:
        other.send("killed-client", b"behind").result(WAIT_S)
    assert read(node.server, "killed-client") == {0: [b"behind"]}


# -- a node that dies


class Transfers:
    """Writes each number to every partition of a topic, one transaction for each number."""

    def __init__(self, producer: Any, topic: str, partitions: int, seed: int) -> None:
        self._producer = producer
        self._topic = topic
        self._partitions = partitions
        self._random = random.Random(seed)
        self.committed: set[int] = set()
        self.aborted: set[int] = set()
        self.unknown: set[int] = set()
        self.number = 0
        self.moved = threading.Condition()
        self.is_ending = False
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            while not self.is_ending:
                self._one(self.number)
                with self.moved:
                    self.number += 1
                    self.moved.notify_all()
        except BaseException as error:
            self.failure = error
            raise
        finally:
            with self.moved:
                self.moved.notify_all()

    def _one(self, number: int) -> None:
        wants_abort = self._random.random() < 0.2
        self._producer.begin_transaction()
        for partition in range(self._partitions):
            self._producer.send(self._topic, b"%d" % number, partition=partition)
        if wants_abort:
            self._producer.abort_transaction()
            self.aborted.add(number)
            return
        try:
            self._producer.commit_transaction()
        except OutcomeUnknown:
            self.unknown.add(number)
            self._producer.commit_transaction()
        self.committed.add(number)

    def wait_for(self, number: int) -> None:
        with self.moved:
            arrived = self.moved.wait_for(lambda: self.number >= number or self.failure, 120)
        assert arrived
        assert self.failure is None


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("kind", "wal"), [("threads", "disk"), ("asyncio", "object")])
def test_a_node_that_is_killed_again_and_again(tmp_path: Path, kind: str, wal: str) -> None:
    choose = random.Random(f"{kind}-{wal}")
    with NodeProcess(tmp_path / "data", wal=wal) as node:
        create(node.server, "t", 3)
        with KINDS[kind](node.server, transactional_id="x", **FAST) as producer:
            transfers = Transfers(producer, "t", 3, seed=1)
            thread = threading.Thread(target=transfers.run)
            thread.start()
            for _ in range(2):
                transfers.wait_for(transfers.number + choose.randint(1, 8))
                threading.Event().wait(choose.random() * 0.02)
                node.kill()
                node.start()
            transfers.wait_for(transfers.number + 3)
            transfers.is_ending = True
            thread.join(120)
            assert not thread.is_alive()
        assert transfers.failure is None
        seen = read(node.server, "t")
        expected = Counter(b"%d" % number for number in transfers.committed)
        for partition in range(3):
            assert Counter(seen[partition]) == expected
            numbers = [int(value or b"") for value in seen[partition]]
            assert numbers == sorted(numbers)
        assert transfers.aborted


@pytest.mark.timeout(300)
def test_a_node_that_is_killed_in_the_middle_of_a_transaction(tmp_path: Path) -> None:
    with NodeProcess(tmp_path / "data") as node:
        create(node.server, "t", 2)
        with Producer(node.server, transactional_id="x", **FAST) as producer:
            producer.begin_transaction()
            producer.send("t", b"before", partition=0).result(WAIT_S)
            node.kill()
            node.start()
            producer.send("t", b"behind", partition=0)
            producer.send("t", b"new", partition=1)
            producer.commit_transaction()
        assert read(node.server, "t") == {0: [b"before", b"behind"], 1: [b"new"]}


@pytest.mark.timeout(300)
def test_a_new_producer_takes_over_after_both_died(tmp_path: Path) -> None:
    with NodeProcess(tmp_path / "data") as node:
        create(node.server, "t")
        old = Producer(node.server, transactional_id="x", **FAST)
        old.begin_transaction()
        old.send("t", b"open").result(WAIT_S)
        node.kill()
        old.close(0)
        node.start()
        with Producer(node.server, transactional_id="x", **FAST) as new, new.transaction():
            new.send("t", b"new")
        assert read(node.server, "t") == {0: [b"new"]}
