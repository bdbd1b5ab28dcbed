"""Shared by all Spark benchmarks: one session, one node, one Kafka, and data frames on them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from benchmarks.node import RunningNode, running_node
from benchmarks.report import Report
from benchmarks.s3 import s3_server
from benchmarks.spark.jars import connector_jars
from benchmarks.spark.kafka import PARTITIONS, Kafka
from benchmarks.spark.meter import Meter
from streamlog.client import Admin
from streamlog.demo.s3_server import S3Server
from streamlog.errors import Unavailable
from streamlog.spark.local import session

CORES = 2
MASTER = f"local[{CORES}]"
BATCH_BYTES = 64 << 10
"""Of record batches, ours and Kafka's."""


@dataclass
class World:
    report: Report
    folder: Path
    scale: float
    spark: Any
    node: RunningNode
    kafka: Kafka | None
    """None: Kafka, or Spark's source for it, could not be downloaded."""
    s3: S3Server | None
    """None: it could not be downloaded."""
    meter: Meter

    def read(
        self, topic: str, mode: str, schema: str | None = None, *, min_partitions: int = PARTITIONS
    ) -> Any:
        """A frame of our source, all of a topic; by default in as many tasks as Kafka's makes."""
        reader = self.spark.read.format("streamlog").option("server", self.node.server)
        reader = reader.option("minPartitions", str(min_partitions))
        if schema is not None:
            reader = reader.schema(schema)
        return reader.option("subscribe", topic).option("readMode", mode).load()

    def read_kafka(self, topic: str) -> Any:
        assert self.kafka is not None
        reader = self.spark.read.format("kafka").option("subscribe", topic)
        return reader.option("kafka.bootstrap.servers", self.kafka.server).load()

    def make_topic(self, name: str) -> None:
        """Creates a topic on our node, and in Kafka if it runs."""
        with Admin(self.node.server) as admin:
            admin.create_topic(name, PARTITIONS)
        if self.kafka is not None:
            self.kafka.make_topic(name)

    def write(self, frame: Any, topic: str, compression: str) -> None:
        writer = frame.write.format("streamlog").mode("append").option("server", self.node.server)
        writer = writer.option("batchBytes", str(BATCH_BYTES)).option("compression", compression)
        writer.option("topic", topic).save()

    def write_kafka(self, frame: Any, topic: str, compression: str) -> None:
        assert self.kafka is not None
        settings = {
            "bootstrap.servers": self.kafka.server,
            "acks": "all",
            "batch.size": str(BATCH_BYTES),
            "linger.ms": "5",
            "compression.type": compression,
        }
        writer = frame.write.format("kafka").option("topic", topic)
        for name, value in settings.items():
            writer = writer.option(f"kafka.{name}", value)
        writer.save()


def deliver(frame: Any) -> None:
    """Writes all rows and columns to a sink that discards them."""
    frame.write.format("noop").mode("overwrite").save()


@contextmanager
def world(report: Report, folder: Path, scale: float) -> Iterator[World]:
    """Errors: JavaMissing."""
    with ExitStack() as stack:
        conf = {
            "spark.driver.memory": "2g",
            "spark.sql.warehouse.dir": str(folder / "warehouse"),
            # 40 ms a task, as docs/spark.md says.
            "spark.python.unix.domain.socket.enabled": "true",
            # Spark logs an error for a query that is stopped in a batch.
            "spark.log.level": "FATAL",
        }
        servers: list[psutil.Process] = []
        kafka: Kafka | None = None
        try:
            connector = connector_jars()
            kafka = Kafka(folder / "kafka")
            servers.append(stack.enter_context(kafka.running()))
        except Unavailable as error:
            kafka = None
            report.note(f"no rows of Kafka: {error.message}")
        else:
            conf["spark.jars"] = ",".join(map(str, connector.paths))
        s3: S3Server | None = None
        try:
            # Before the session: Python workers take its credentials from their environment.
            s3 = stack.enter_context(s3_server(folder))
        except Unavailable as error:
            report.note(f"no rows of compaction: {error.message}")
        node = stack.enter_context(running_node(folder / "node", wal="object"))
        servers.append(node.process)
        spark = stack.enter_context(session("benchmarks", MASTER, conf))
        jvm = psutil.Process(spark.sparkContext._gateway.proc.pid)
        report.note(
            f"Spark {spark.version} {MASTER}"
            + (f", its Kafka source {connector.version}, Kafka on this machine" if kafka else "")
        )
        meter = Meter(jvm, servers)
        yield World(report, folder, scale, spark, node, kafka, s3, meter)
