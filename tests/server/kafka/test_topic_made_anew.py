"""librdkafka's consumer, unchanged, over the deletion of its topic and another of the name."""

from __future__ import annotations

import asyncio

from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as LibrdkafkaPartition

from streamlog.model.partition import TopicPartition
from streamlog.testing.logs.log_conformance import append, encoded
from tests.support.log_insides import leadership_of
from tests.support.running_node import running_node

PARTITION = TopicPartition("t", 0)


def read(consumer: Consumer, count: int) -> list[bytes]:
    """Records until there are `count`; fewer when none comes for 5 s."""
    found: list[bytes] = []
    while len(found) < count:
        message = consumer.poll(5.0)
        if message is None:
            break
        assert message.error() is None, message.error()
        found.append(message.value())
    return found


def test_a_consumer_goes_on_where_leader_epochs_begin_anew() -> None:
    async def main() -> None:
        async with running_node(kafka_listen="127.0.0.1:0") as running:
            assert running.node.engine is not None
            logs = running.node.engine.logs
            leadership = leadership_of(logs)

            async def store(*values: bytes) -> None:
                await append(await logs.log(PARTITION), encoded(values))

            await logs.create_topic("t", 1)
            for _ in range(3):
                await store(b"old", b"old")
                await leadership.assign(PARTITION, 77)
                await leadership.assign(PARTITION, leadership.node_id)
            await store(b"old")
            listeners = running.banner.listeners
            consumer = Consumer(
                {
                    "bootstrap.servers": next(
                        one.advertised for one in listeners if one.protocol == "kafka"
                    ),
                    "group.id": "none: it is assigned its partitions",
                    "enable.auto.commit": False,
                    "auto.offset.reset": "earliest",
                    "fetch.error.backoff.ms": 50,
                    "log_level": 0,
                }
            )
            consumer.assign([LibrdkafkaPartition("t", 0, 0)])
            try:
                assert await asyncio.to_thread(read, consumer, 7) == [b"old"] * 7
                await logs.delete_topic("t")
                await logs.create_topic("t", 1)
                await store(b"new")
                assert await asyncio.to_thread(read, consumer, 1) == [b"new"]
            finally:
                await asyncio.to_thread(consumer.close)

    asyncio.run(main())
