"""A consumer that reads all partitions through the kills, offset by offset."""

from __future__ import annotations

import threading
import time
from typing import Self

from confluent_kafka import Consumer, TopicPartition

from tests.kafka_clients.kills.history import Place

PROGRESS_S = 240.0
"""A machine may be busy with other things; who waits for so long waits in vain."""


class Follower(threading.Thread):
    """Reads from the start of every partition until it is told to stop."""

    def __init__(self, server: str, topic: str, partitions: int) -> None:
        # A test that has failed ends without it.
        super().__init__(name=type(self).__name__, daemon=True)
        self.seen: dict[Place, bytes] = {}
        self.failures: list[str] = []
        self._server = server
        self._places = [TopicPartition(topic, number, 0) for number in range(partitions)]
        self._stopping = threading.Event()

    def run(self) -> None:
        try:
            self._read()
        except BaseException as error:
            self.failures.append(repr(error))
            raise

    def _read(self) -> None:
        consumer = Consumer(
            {
                "bootstrap.servers": self._server,
                "group.id": "none: it is assigned its partitions",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 100,
                "log_level": 0,
            }
        )
        expected = [0] * len(self._places)
        consumer.assign(self._places)
        while not self._stopping.is_set():
            for message in consumer.consume(1000, 0.1):
                partition, offset = message.partition(), message.offset()
                if message.error() is not None:
                    self.failures.append(str(message.error()))
                elif offset != expected[partition]:
                    self.failures.append(f"{offset} came in place of {expected[partition]}")
                else:
                    self.seen[partition, offset] = message.value()
                    expected[partition] += 1
        consumer.close()

    def wait_for(self, count: int) -> None:
        """Returns when it has seen `count` records, or has failed."""
        ends_at = time.monotonic() + PROGRESS_S
        while len(self.seen) < count and not self.failures:
            assert time.monotonic() < ends_at, f"{len(self.seen)} of {count} records were read"
            time.sleep(0.005)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self.join(PROGRESS_S)
        assert not self.is_alive()
