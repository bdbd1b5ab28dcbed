"""What is killed: a node, or, for comparison, a real Kafka. Port and data stay over the kills."""

from __future__ import annotations

import os
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

from confluent_kafka import Consumer as LibrdkafkaConsumer
from confluent_kafka import TopicPartition

from streamlog.demo.ports import free_port
from tests.kafka_clients.kills.follower import PROGRESS_S, Follower
from tests.kafka_clients.kills.history import Place
from tests.support.kafka_server import KafkaServer
from tests.support.node import NodeProcess
from tests.support.s3 import S3Tests
from tests.support.s3 import start as start_s3
from tests.support.stored_records import stored_records


class Victim(Protocol):
    @property
    def kafka(self) -> str:
        """The address of Kafka's clients."""
        ...

    def start(self) -> None:
        """Returns when clients are served, or, with a real Kafka, soon will be."""
        ...

    def kill(self) -> None:
        """By SIGKILL."""
        ...

    def stop(self) -> None: ...

    def duplicates(self) -> int:
        """How many retries were answered with their originals' offsets since the last start."""
        ...

    def stored(self, topic: str, partitions: int) -> dict[Place, bytes]:
        """All records, read back by a client that wrote none of them."""
        ...

    def assert_idle(self) -> None:
        """No request is left under way when all clients have left."""
        ...


class KilledNode:
    """`places`: where objects and metadata lie; under `folder` where empty."""

    def __init__(self, folder: Path, wal: str, places: tuple[str, ...] = ()) -> None:
        self.kafka = f"127.0.0.1:{free_port()}"
        listening = ("--kafka-listen", self.kafka)
        self._node = NodeProcess(folder / "data", wal, arguments=listening, places=places)

    def start(self) -> None:
        self._node.start()

    def kill(self) -> None:
        self._node.kill()

    def stop(self) -> None:
        if self._node.process is not None:
            self._node.stop()

    def duplicates(self) -> int:
        return int(self._node.metric("streamlog_log_duplicates_total"))

    def stored(self, topic: str, partitions: int) -> dict[Place, bytes]:
        """By gRPC."""
        return stored_records(self._node.server, topic, partitions)

    def assert_idle(self) -> None:
        """The node notices a moment later that its clients have closed their connections."""
        ends_at = time.monotonic() + PROGRESS_S
        while self._node.metric("streamlog_requests_active"):
            assert time.monotonic() < ends_at, "a request is under way that no client waits for"
            time.sleep(0.005)


class KilledKafka:
    """Apache Kafka, whose page cache outlives the process."""

    def __init__(self, folder: Path) -> None:
        self._server = KafkaServer(folder)
        self.kafka = self._server.server

    def start(self) -> None:
        self._server.start()

    def kill(self) -> None:
        self._server.kill()

    def stop(self) -> None:
        # The data goes with its folder: nothing has to be closed well.
        self._server.kill()

    def duplicates(self) -> int:
        """Kafka does not count them."""
        return 0

    def stored(self, topic: str, partitions: int) -> dict[Place, bytes]:
        consumer = LibrdkafkaConsumer({"bootstrap.servers": self.kafka, "group.id": "none"})
        count = 0
        for partition in range(partitions):
            place = TopicPartition(topic, partition)
            low, high = consumer.get_watermark_offsets(place, PROGRESS_S)
            count += high - low
        consumer.close()
        with Follower(self.kafka, topic, partitions) as reading:
            reading.wait_for(count)
        assert not reading.failures, reading.failures[0]
        return reading.seen

    def assert_idle(self) -> None:
        """Kafka is not what is tested."""


def s3_server(folder: Path, stack: ExitStack) -> S3Tests:
    """An S3 server that nodes of this process find, until the stack ends."""
    place = folder / "s3"
    place.mkdir()
    server = start_s3(place)
    stack.callback(server.stop)
    os.environ.update(server.environment)
    return S3Tests(server)


def s3_places(s3: S3Tests, wal: str, folder: Path) -> tuple[str, ...]:
    """Where a node with objects on that server has its data."""
    places = ("--store", s3.new_url(), "--meta", f"rocksdb://{folder}/meta")
    return (*places, "--wal-dir", str(folder / "wal")) if wal == "disk" else places
