"""Apache Kafka on this machine, for comparison, as it comes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from benchmarks.kafka_server import KafkaServer

PARTITIONS = 4
"""Of every topic."""


class Kafka(KafkaServer):
    @contextmanager
    def running(self) -> Iterator[psutil.Process]:
        """Errors: Unavailable."""
        with self:
            yield psutil.Process(self.pid)

    def make_topic(self, name: str) -> None:
        """Creates a topic and returns when its leaders answer. Until then an idempotent producer
        may get out of sequence: its first batch is refused and the second accepted."""
        asyncio.run(_make_topic(self.server, name))


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
