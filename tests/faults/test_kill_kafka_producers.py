"""`kill -9` of the node under idempotent producers and a consumer of Kafka's own, again and again.

Each acknowledged record is there once, in order, at its acknowledged offset; the consumer goes on
by itself, and what it was handed is what stays. KILL_ROUNDS sets how often the node is killed
(default 3).
"""

from __future__ import annotations

import asyncio
import os
import random
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from confluent_kafka import Consumer as LibrdkafkaConsumer
from confluent_kafka import Producer
from confluent_kafka import TopicPartition as LibrdkafkaPartition

from streamlog.client import Admin, Consumer
from streamlog.demo.ports import free_port
from tests.support.node import NodeProcess

ROUNDS = int(os.environ.get("KILL_ROUNDS", "3"))
PARTITIONS = 2
TOPIC = "killed"
FLUSH_S = 60.0
PROGRESS_S = 60.0
UNANSWERED_MAX = 2000

Place = tuple[int, int]
"""Partition, offset."""


class Writer(threading.Thread):
    """Sends numbered records to all partitions in turn until it is told to stop."""

    def __init__(self, server: str) -> None:
        # A test that has failed ends without it.
        super().__init__(name=type(self).__name__, daemon=True)
        self.server = server
        self.stopping = threading.Event()
        self.sent = 0
        self.acknowledged: dict[bytes, Place] = {}
        self.failures: list[BaseException | str] = []

    def run(self) -> None:
        try:
            self.send_all()
        except BaseException as error:
            self.failures.append(error)
            raise

    def send_all(self) -> None:
        raise NotImplementedError

    def next_value(self) -> tuple[bytes, int]:
        """A record and its partition."""
        self.sent += 1
        return b"%d" % self.sent, self.sent % PARTITIONS

    @property
    def is_far_ahead(self) -> bool:
        return self.sent - len(self.acknowledged) > UNANSWERED_MAX


class LibrdkafkaWriter(Writer):
    def send_all(self) -> None:
        producer = Producer(
            {
                "bootstrap.servers": self.server,
                "enable.idempotence": True,
                "linger.ms": 2,
                "batch.size": 4096,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 100,
                "retry.backoff.ms": 20,
                "retry.backoff.max.ms": 100,
                "log_level": 0,
            }
        )
        while not self.stopping.is_set():
            if not self.is_far_ahead:
                for _ in range(20):
                    value, partition = self.next_value()
                    producer.produce(TOPIC, value, partition=partition, on_delivery=self._delivered)
            producer.poll(0.005)
        assert producer.flush(FLUSH_S) == 0

    def _delivered(self, error: Any, message: Any) -> None:
        if error is not None:
            self.failures.append(str(error))
        else:
            self.acknowledged[message.value()] = message.partition(), message.offset()


class AiokafkaWriter(Writer):
    def send_all(self) -> None:
        asyncio.run(self._send_all())

    async def _send_all(self) -> None:
        async with AIOKafkaProducer(
            bootstrap_servers=self.server,
            enable_idempotence=True,
            linger_ms=2,
            retry_backoff_ms=20,
            request_timeout_ms=10_000,
        ) as producer:
            while not self.stopping.is_set():
                if not self.is_far_ahead:
                    for _ in range(20):
                        value, partition = self.next_value()
                        future = await producer.send(TOPIC, value, partition=partition)
                        future.add_done_callback(lambda done, value=value: self._done(value, done))
                await asyncio.sleep(0.005)
            async with asyncio.timeout(FLUSH_S):
                await producer.flush()

    def _done(self, value: bytes, done: asyncio.Future[Any]) -> None:
        error = done.exception()
        if error is not None:
            self.failures.append(error)
        else:
            self.acknowledged[value] = done.result().partition, done.result().offset


class Follower(threading.Thread):
    """Reads all partitions through the kills, offset by offset, until it is told to stop."""

    def __init__(self, server: str) -> None:
        super().__init__(name=type(self).__name__, daemon=True)
        self.server = server
        self.stopping = threading.Event()
        self.seen: dict[Place, bytes] = {}
        self.failures: list[str] = []

    def run(self) -> None:
        consumer = LibrdkafkaConsumer(
            {
                "bootstrap.servers": self.server,
                "group.id": "none: it is assigned its partitions",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 100,
                "log_level": 0,
            }
        )
        expected = dict.fromkeys(range(PARTITIONS), 0)
        consumer.assign([LibrdkafkaPartition(TOPIC, number, 0) for number in expected])
        while not self.stopping.is_set():
            for message in consumer.consume(1000, 0.1):
                place = message.partition(), message.offset()
                if message.error() is not None:
                    self.failures.append(str(message.error()))
                elif place[1] != expected[place[0]]:
                    self.failures.append(f"{place} came in place of {expected[place[0]]}")
                else:
                    self.seen[place] = message.value()
                    expected[place[0]] += 1
        consumer.close()

    def finish(self, count: int) -> None:
        """Stops it when it has seen `count` records."""
        ends_at = time.monotonic() + PROGRESS_S
        while len(self.seen) < count and not self.failures and self.is_alive():
            assert time.monotonic() < ends_at, f"{len(self.seen)} of {count} records were read"
            time.sleep(0.005)
        self.stopping.set()
        self.join(PROGRESS_S)
        assert not self.is_alive()


def wait_for_acks(writer: Writer) -> None:
    """Returns when something more was acknowledged."""
    before, ends_at = len(writer.acknowledged), time.monotonic() + PROGRESS_S
    while len(writer.acknowledged) == before:
        assert not writer.failures, writer.failures[0]
        assert writer.is_alive()
        assert time.monotonic() < ends_at, f"nothing was acknowledged for {PROGRESS_S} s"
        time.sleep(0.005)


def wait_for_no_request(node: NodeProcess) -> None:
    """The node notices a moment later that its clients have closed their connections."""
    ends_at = time.monotonic() + PROGRESS_S
    while node.metric("streamlog_requests_active"):
        assert time.monotonic() < ends_at, "a request is under way that no client waits for"
        time.sleep(0.005)


def read_everything(server: str) -> dict[Place, bytes]:
    """What stands where, from the start to the end of every partition."""
    found: dict[Place, bytes] = {}
    with Consumer(server, auto_offset_reset="earliest") as consumer:
        partitions = [(TOPIC, partition) for partition in range(PARTITIONS)]
        ends = consumer.end_offsets(partitions)
        consumer.assign(partitions)
        while any(consumer.position(*key) < end for key, end in ends.items()):
            for record in consumer.poll(5.0, max_records=100_000):
                found[record.partition, record.offset] = record.value or b""
    return found


@pytest.mark.slow
@pytest.mark.timeout(120 + 20 * ROUNDS)
@pytest.mark.parametrize(("kind", "wal"), [(LibrdkafkaWriter, "disk"), (AiokafkaWriter, "object")])
def test_what_kafkas_clients_were_promised_is_there_once(
    tmp_path: Path, kind: type[Writer], wal: str
) -> None:
    choose = random.Random(20261123)
    kafka = f"127.0.0.1:{free_port()}"
    with NodeProcess(tmp_path / "data", wal, arguments=("--kafka-listen", kafka)) as node:
        with Admin(node.server) as admin:
            admin.create_topic(TOPIC, PARTITIONS)
        writer = kind(kafka)
        follower = Follower(kafka)
        writer.start()
        follower.start()
        pause = threading.Event()
        for _ in range(ROUNDS):
            wait_for_acks(writer)
            pause.wait(0.1 * choose.random())
            node.kill()
            node.start()
        wait_for_acks(writer)
        writer.stopping.set()
        writer.join(2 * FLUSH_S)
        assert not writer.is_alive()
        assert not writer.failures, writer.failures[0]
        found = read_everything(node.server)
        follower.finish(len(found))
        wait_for_no_request(node)
    assert not follower.failures, follower.failures[0]
    assert follower.seen == found
    assert len(writer.acknowledged) == writer.sent > 0
    for value, place in writer.acknowledged.items():
        assert found[place] == value
    assert len(found) == writer.sent, "a record is there twice"
    for partition in range(PARTITIONS):
        stored = [value for place, value in sorted(found.items()) if place[0] == partition]
        numbers = [int(value) for value in stored]
        assert numbers == sorted(numbers)
