"""Read-committed consumers of librdkafka: one that reads on, and one that reads to the end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Self

from confluent_kafka import Consumer, TopicPartition

from tests.kafka_clients.kills.follower import PROGRESS_S
from tests.kafka_clients.kills.transactions.checks import Read

AT_ONCE = 1000
END = "_PARTITION_EOF"
"""What librdkafka says where nothing follows."""


def consumer(server: str, isolation: str = "read_committed") -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": server,
            "group.id": "none: it is assigned its partitions",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "isolation.level": isolation,
            "reconnect.backoff.ms": 20,
            "reconnect.backoff.max.ms": 100,
            "log_level": 0,
        }
    )


def record(message: Any) -> Read:
    headers = {name: value.decode() for name, value in message.headers() or ()}
    partition, _, offset = headers.get("in", "").partition(":")
    original = (int(partition), int(offset)) if offset else None
    return Read(
        message.partition(),
        message.offset(),
        message.value(),
        original,
        headers.get("by", ""),
        headers.get("txn", ""),
    )


def ends(server: str, topic: str, partitions: int) -> dict[int, tuple[int, int]]:
    """Last stable offset and high watermark of each partition."""
    found = []
    for isolation in ("read_committed", "read_uncommitted"):
        asking = consumer(server, isolation)
        places = [TopicPartition(topic, number) for number in range(partitions)]
        found.append([asking.get_watermark_offsets(one, PROGRESS_S)[1] for one in places])
        asking.close()
    return dict(enumerate(zip(*found, strict=True)))


class Reading(threading.Thread):
    """Reads all partitions from their starts until it is told to stop."""

    def __init__(self, server: str, topic: str, partitions: int) -> None:
        # A test that has failed ends without it.
        super().__init__(name=f"{type(self).__name__} {topic}", daemon=True)
        self.seen: list[Read] = []
        self.positions = dict.fromkeys(range(partitions), 0)
        """Where each partition's last end of what is stable was met."""
        self.failures: list[str] = []
        self._server, self._topic, self._partitions = server, topic, partitions
        self._stopping = threading.Event()

    def run(self) -> None:
        try:
            self._read()
        except BaseException as error:
            self.failures.append(repr(error))
            raise

    def _read(self) -> None:
        reading = consumer(self._server)
        reading.assign([TopicPartition(self._topic, one, 0) for one in range(self._partitions)])
        while not self._stopping.is_set():
            for message in reading.consume(AT_ONCE, 0.1):
                error = message.error()
                if error is None:
                    self.seen.append(record(message))
                elif error.name() == END:
                    self.positions[message.partition()] = message.offset()
                else:
                    self.failures.append(str(error))
        reading.close()

    def wait_to_the_end(self) -> None:
        """Returns when it has read all that is stable now."""
        wanted = {
            number: stable
            for number, (stable, _) in ends(self._server, self._topic, self._partitions).items()
        }
        self._wait(
            lambda: all(self.positions[number] >= end for number, end in wanted.items()),
            lambda: f"{self._topic} was read to {self.positions} of {wanted}",
        )

    def _wait(self, is_met: Callable[[], bool], missed: Callable[[], str]) -> None:
        ends_at = time.monotonic() + PROGRESS_S
        while not is_met():
            assert not self.failures, self.failures[0]
            assert time.monotonic() < ends_at, missed()
            time.sleep(0.005)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self.join(PROGRESS_S)
        assert not self.is_alive()


def read_all(server: str, topic: str, partitions: int) -> list[Read]:
    """All that a read-committed consumer is handed now."""
    with Reading(server, topic, partitions) as reading:
        reading.wait_to_the_end()
    assert not reading.failures, reading.failures[0]
    return reading.seen
