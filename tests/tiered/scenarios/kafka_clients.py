"""librdkafka's producers, consumers and admin calls, from a test's event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from confluent_kafka import Consumer, IsolationLevel, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
)

WAIT_S = 60.0
LEVELS = {
    IsolationLevel.READ_COMMITTED: "read_committed",
    IsolationLevel.READ_UNCOMMITTED: "read_uncommitted",
}
QUIET = {"log_level": 2}
"""A client outlives the node of its test by a moment, which librdkafka would tell."""
VALUE_BYTES = 120_000
"""Eight of them fill a segment of 1 MiB."""


def value_of(number: int) -> bytes:
    return b"%06d" % number * (VALUE_BYTES // 6)


class Listed(NamedTuple):
    offset: int
    timestamp_ms: int


class KafkaClients:
    """All calls block in a thread. `server`: HOST:PORT of the Kafka listener."""

    def __init__(self, server: str) -> None:
        self._server = server
        self._admin = AdminClient({"bootstrap.servers": server, **QUIET})

    async def create(self, topic: str, configs: Mapping[str, str], partitions: int = 1) -> None:
        new = NewTopic(topic, partitions, 1, config=dict(configs))
        await self._all(self._admin.create_topics, [new])

    async def expand(self, topic: str, partitions: int) -> None:
        await self._all(self._admin.create_partitions, [NewPartitions(topic, partitions)])

    async def delete(self, topic: str) -> None:
        await self._all(self._admin.delete_topics, [topic])

    async def alter(self, topic: str, **configs: str) -> None:
        """Names with _ for their dots."""
        entries = [
            ConfigEntry(name.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET)
            for name, value in configs.items()
        ]
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=entries)
        await self._all(self._admin.incremental_alter_configs, [resource])

    async def delete_records(self, topic: str, before: int) -> int:
        """The new log start."""
        asked = TopicPartition(topic, 0, before)
        (done,) = (await self._all(self._admin.delete_records, [asked])).values()
        return int(done.low_watermark)

    async def offset_of(self, topic: str, spec: OffsetSpec | int, partition: int = 0) -> Listed:
        """`spec`: a special offset, or a time in ms."""
        wanted = OffsetSpec.for_timestamp(spec) if isinstance(spec, int) else spec
        asked = {TopicPartition(topic, partition): wanted}
        (found,) = (await self._all(self._admin.list_offsets, asked)).values()
        return Listed(found.offset, found.timestamp)

    async def produce(
        self,
        topic: str,
        numbers: Sequence[int],
        *,
        partition: int = 0,
        at_ms: Mapping[int, int] | None = None,
    ) -> None:
        """One batch for each."""

        def run() -> None:
            producer = Producer({"bootstrap.servers": self._server, "linger.ms": 0, **QUIET})
            for number in numbers:
                at = {} if at_ms is None else {"timestamp": at_ms[number]}
                producer.produce(topic, value_of(number), partition=partition, **at)
                assert producer.flush(WAIT_S) == 0

        await asyncio.to_thread(run)

    async def transaction(
        self, topic: str, numbers: Sequence[int], *, name: str, is_aborted: bool = False
    ) -> None:
        def run() -> None:
            settings = {"transactional.id": name, "linger.ms": 0, **QUIET}
            producer = Producer({"bootstrap.servers": self._server, **settings})
            producer.init_transactions(WAIT_S)
            producer.begin_transaction()
            for number in numbers:
                producer.produce(topic, value_of(number), partition=0)
                assert producer.flush(WAIT_S) == 0
            if is_aborted:
                producer.abort_transaction(WAIT_S)
            else:
                producer.commit_transaction(WAIT_S)

        await asyncio.to_thread(run)

    async def consume(
        self,
        topic: str,
        count: int,
        *,
        first: int = 0,
        partition: int = 0,
        isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
    ) -> list[tuple[int, bytes]]:
        """(offset, value) from `first` on; the next records must be so many, and no more."""
        return await asyncio.to_thread(
            self._consume,
            topic,
            count,
            first,
            partition,
            LEVELS[isolation],
        )

    def _consume(
        self, topic: str, count: int, first: int, partition: int, level: str
    ) -> list[tuple[int, bytes]]:
        consumer = Consumer(
            {
                "bootstrap.servers": self._server,
                "group.id": "none: it is assigned its partitions",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "isolation.level": level,
            }
        )
        consumer.assign([TopicPartition(topic, partition, first)])
        found: list[tuple[int, bytes]] = []
        deadline = time.monotonic() + WAIT_S
        try:
            while True:
                message = consumer.poll(1)
                assert time.monotonic() < deadline, f"{len(found)} of {count} records came"
                if message is None:
                    continue
                if message.error() is not None:
                    # The end of the partition.
                    assert message.error().code() == -191, message.error()
                    assert len(found) == count
                    return found
                found.append((message.offset(), message.value()))
        finally:
            consumer.close()

    @staticmethod
    async def _all(call: Any, asked: Any) -> dict[Any, Any]:
        """The results of what an admin call has to do. Errors: KafkaException."""

        def run() -> dict[Any, Any]:
            return {key: done.result(WAIT_S) for key, done in call(asked).items()}

        return await asyncio.to_thread(run)
