"""The servers that take turns: bare, this node, Apache Kafka as it comes, and with fsync."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType

import psutil

from benchmarks.kafka.bare import bare_server
from benchmarks.kafka.wire import KafkaConnection
from benchmarks.node import RunningNode, cpu_s_of, running_node
from benchmarks.report import Report
from benchmarks.spark.kafka import Kafka
from streamlog.errors import Internal, Unavailable

BARE, NODE, KAFKA, FSYNCED = "bare", "node", "kafka", "fsynced kafka"
PARTITIONS = 4
WAL_BYTES_MAX = 64 << 20
SETTINGS = {
    "engine.wal.wal_bytes_max": str(WAL_BYTES_MAX),
    "engine.collector.deletion_delay_ms": "10000",
}
"""A run writes more than most disks hold: what is deleted has to go soon."""
TOPICS_KEPT = 3
"""Producers of three kinds write to one each."""
FSYNC_EACH_REQUEST = {"flush.messages": "1"}
NEVER_FLUSHED = dict.fromkeys(("flush.messages", "flush.ms"), str((1 << 63) - 1))
"""Kafka's default. A topic of this node has it too, and is synced before each answer."""
NOTHING: Mapping[str, str] = MappingProxyType({})


@dataclass
class Server:
    """One of them. `address` speaks Kafka's protocol."""

    name: str
    address: str
    process: psutil.Process
    started_in_s: float
    topic_settings: dict[str, str]
    node: RunningNode | None = None
    topics: int = 0
    kept: list[str] = field(default_factory=list)
    """The newest topics; those before them are deleted."""

    def cpu_s(self) -> float:
        return cpu_s_of(self.process)

    def rss_bytes(self) -> int:
        return sum(
            one.memory_info().rss for one in (self.process, *self.process.children(recursive=True))
        )

    def wait_until_idle(self) -> None:
        """Returns after 0.2 s in which the server took less than 20 ms of CPU.

        By then all that any server has written is on the disk: what one leaves in the page cache
        would be written in the turn of the next, whose syncs would wait for it.
        """
        os.sync()
        before = self.cpu_s()
        while True:
            time.sleep(0.2)
            now = self.cpu_s()
            if now - before <= 0.02:
                return
            before = now

    def new_topic(self, label: str) -> str:
        """A topic of PARTITIONS partitions that has leaders.

        Its name is of no other server, because several may be one process: a topic that is there
        already has the settings of whoever made it. Errors: Internal, where it was there, or has
        not the settings that its figures are said to be of.
        """
        self.topics += 1
        name = f"{label}-{self.name}-{self.topics}".replace(" ", "-")
        with KafkaConnection(self.address) as connection:
            if not connection.make_topic(name, PARTITIONS, self.topic_settings):
                raise Internal(f"the topic {name} was there before {self.name} made it")
            if self.name != BARE:
                self._check_settings(connection, name)
            self.kept.append(name)
            while len(self.kept) > TOPICS_KEPT and self.name != BARE:
                connection.delete_topic(self.kept.pop(0))
        return name

    def _check_settings(self, connection: KafkaConnection, topic: str) -> None:
        meant = {**NEVER_FLUSHED, **self.topic_settings}
        if self.node is not None:
            meant = {"log.type": "shared", **meant}
        found = connection.topic_settings(topic, list(meant))
        if found != meant:
            raise Internal(f"the topic {topic} of {self.name} has {found} instead of {meant}")


@contextmanager
def servers(report: Report, folder: Path, *, with_kafka: bool) -> Iterator[dict[str, Server]]:
    """By name. Apache Kafka is left out, with a note, where it cannot be had."""
    with ExitStack() as stack:
        found: dict[str, Server] = {}
        began = time.perf_counter()
        address, process = stack.enter_context(bare_server(folder / "bare"))
        found[BARE] = Server(BARE, address, process, time.perf_counter() - began, {})
        found[NODE] = stack.enter_context(node_server(folder / "node"))
        if with_kafka:
            try:
                kafka = stack.enter_context(kafka_server(folder / "kafka"))
                found[KAFKA] = kafka
                found[FSYNCED] = replace(
                    kafka, name=FSYNCED, topic_settings=dict(FSYNC_EACH_REQUEST), kept=[]
                )
            except (Unavailable, OSError) as error:
                report.note(f"Apache Kafka is left out: {error}")
        yield found


@contextmanager
def node_server(folder: Path, environment: Mapping[str, str] = NOTHING) -> Iterator[Server]:
    running = running_node(folder, wal="disk", settings=SETTINGS, environment=environment)
    with running as node:
        yield Server(NODE, node.kafka, node.process, node.started_in_s, {}, node)


@contextmanager
def kafka_server(folder: Path, environment: Mapping[str, str] = NOTHING) -> Iterator[Server]:
    """Errors: Unavailable, OSError."""
    kafka = Kafka(folder, environment=environment)
    began = time.perf_counter()
    with kafka.running() as process:
        yield Server(KAFKA, kafka.server, process, time.perf_counter() - began, {})
