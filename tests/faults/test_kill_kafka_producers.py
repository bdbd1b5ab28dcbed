"""`kill -9` of the node under idempotent producers of Kafka's own clients, again and again.

Each acknowledged record is there once, in order, at its acknowledged offset. KILL_ROUNDS sets how
often the node is killed (default 3).
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
from confluent_kafka import Producer

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


def wait_for_acks(writer: Writer) -> None:
    """Returns when something more was acknowledged."""
    before, ends_at = len(writer.acknowledged), time.monotonic() + PROGRESS_S
    while len(writer.acknowledged) == before:
        assert not writer.failures, writer.failures[0]
        assert writer.is_alive()
        assert time.monotonic() < ends_at, f"nothing was acknowledged for {PROGRESS_S} s"
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
@pytest.mark.parametrize("kind", [LibrdkafkaWriter, AiokafkaWriter])
def test_what_kafkas_clients_were_promised_is_there_once(
    tmp_path: Path, kind: type[Writer]
) -> None:
    choose = random.Random(20261123)
    kafka = f"127.0.0.1:{free_port()}"
    with NodeProcess(tmp_path / "data", arguments=("--kafka-listen", kafka)) as node:
        with Admin(node.server) as admin:
            admin.create_topic(TOPIC, PARTITIONS)
        writer = kind(kafka)
        writer.start()
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
    assert len(writer.acknowledged) == writer.sent > 0
    for value, place in writer.acknowledged.items():
        assert found[place] == value
    assert len(found) == writer.sent, "a record is there twice"
    for partition in range(PARTITIONS):
        stored = [value for place, value in sorted(found.items()) if place[0] == partition]
        numbers = [int(value) for value in stored]
        assert numbers == sorted(numbers)
