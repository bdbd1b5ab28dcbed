"""Apache Kafka on this machine, for comparison: a KRaft node on free ports."""

from __future__ import annotations

import asyncio
import base64
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from benchmarks.spark.jars import kafka_jars
from streamlog.demo.ports import free_port
from streamlog.errors import Unavailable

START_TIMEOUT_S = 180.0
PARTITIONS = 4
"""Of every topic."""


class Kafka:
    """A running server; its log lies in `folder`."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self._folder = folder
        self._class_path = os.pathsep.join(map(str, kafka_jars().paths))
        self._log = folder / "server.log"
        self.server = f"127.0.0.1:{free_port()}"
        self._properties = folder / "server.properties"
        self._properties.write_text(_properties(folder / "data", self.server, free_port()))

    @contextmanager
    def running(self) -> Iterator[psutil.Process]:
        """Errors: Unavailable."""
        cluster_id = base64.urlsafe_b64encode(os.urandom(16)).decode().rstrip("=")
        self._java(
            "256m",
            *("kafka.tools.StorageTool", "format", "--standalone"),
            *("-t", cluster_id, "-c", str(self._properties)),
        ).wait(START_TIMEOUT_S)
        child = self._java("1g", "kafka.Kafka", str(self._properties))
        try:
            self._await(child)
            yield psutil.Process(child.pid)
        finally:
            child.terminate()
            try:
                child.wait(30)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()

    def make_topic(self, name: str) -> None:
        """Creates a topic and returns when its leaders answer. Until then an idempotent producer
        may get out of sequence: its first batch is refused and the second accepted."""
        asyncio.run(_make_topic(self.server, name))

    def _java(self, heap: str, *arguments: str) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as log:
            return subprocess.Popen(
                ["java", f"-Xmx{heap}", "-cp", self._class_path, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _await(self, child: subprocess.Popen[bytes]) -> None:
        host, _, port = self.server.partition(":")
        give_up_at = time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                socket.create_connection((host, int(port)), timeout=1).close()
                return
            except OSError as error:
                if child.poll() is None and time.monotonic() < give_up_at:
                    time.sleep(0.1)
                    continue
                output = self._log.read_text(errors="replace")[-1000:]
                raise Unavailable(
                    f"Kafka did not start: {error}; its log ends: {output}"
                ) from error


async def _make_topic(server: str, name: str) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=server)
    await admin.start()
    try:
        await admin.create_topics([NewTopic(name, PARTITIONS, 1)])
    finally:
        await admin.close()
    consumer = AIOKafkaConsumer(bootstrap_servers=server, request_timeout_ms=120_000)
    await consumer.start()
    try:
        await consumer.end_offsets([TopicPartition(name, n) for n in range(PARTITIONS)])
    finally:
        await consumer.stop()


def _properties(data: Path, server: str, controller_port: int) -> str:
    controller = f"127.0.0.1:{controller_port}"
    return "\n".join(
        f"{name}={value}"
        for name, value in {
            "process.roles": "broker,controller",
            "node.id": 1,
            "controller.quorum.bootstrap.servers": controller,
            "listeners": f"PLAINTEXT://{server},CONTROLLER://{controller}",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": data,
            "offsets.topic.replication.factor": 1,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.min.isr": 1,
        }.items()
    )
