"""A client that others wrote consumes by partition: aiokafka, in its default settings."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from tests.support.running_node import RunningNode, running_node

TIMEOUT_MS = 20_000
FIRST, SECOND = TopicPartition("t", 0), TopicPartition("t", 1)


@asynccontextmanager
async def node_with_topic() -> AsyncIterator[tuple[RunningNode, str]]:
    """A node with topic t of two partitions, and the address of its Kafka listener."""
    async with running_node(kafka_listen="127.0.0.1:0") as node:
        assert node.node.engine is not None
        await node.node.engine.logs.create_topic("t", 2)
        [address] = [one.address for one in node.banner.listeners if one.protocol == "kafka"]
        yield node, address


@asynccontextmanager
async def assigned(
    address: str, *partitions: TopicPartition, **settings: Any
) -> AsyncIterator[AIOKafkaConsumer]:
    consumer = AIOKafkaConsumer(bootstrap_servers=address, **settings)
    await consumer.start()
    try:
        consumer.assign(list(partitions))
        yield consumer
    finally:
        await consumer.stop()


async def produce(address: str, *values: bytes, partition: int = 0, stamp: int = 1000) -> None:
    producer = AIOKafkaProducer(bootstrap_servers=address)
    await producer.start()
    try:
        for number, value in enumerate(values):
            await producer.send_and_wait(
                "t", value, partition=partition, timestamp_ms=stamp + number
            )
    finally:
        await producer.stop()


async def values(consumer: AIOKafkaConsumer, count: int) -> list[bytes]:
    async with asyncio.timeout(TIMEOUT_MS / 1000):
        return [(await consumer.getone()).value for _ in range(count)]


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
def test_a_consumer_reads_from_the_beginning_and_follows_the_end(isolation: str) -> None:
    async def main() -> None:
        async with node_with_topic() as (_, address):
            await produce(address, b"a", b"b")
            settings = {"auto_offset_reset": "earliest", "isolation_level": isolation}
            async with assigned(address, FIRST, SECOND, **settings) as consumer:
                assert await values(consumer, 2) == [b"a", b"b"]
                later = asyncio.create_task(values(consumer, 2))
                await produce(address, b"c", partition=1)
                await produce(address, b"d")
                assert sorted(await later) == [b"c", b"d"]
                assert consumer.highwater(FIRST) == 3

    asyncio.run(main())


def test_a_consumer_seeks_by_offset_and_by_time() -> None:
    async def main() -> None:
        async with node_with_topic() as (_, address):
            await produce(address, *(b"%d" % number for number in range(10)))
            async with assigned(address, FIRST) as consumer:
                assert await consumer.beginning_offsets([FIRST, SECOND]) == {FIRST: 0, SECOND: 0}
                assert await consumer.end_offsets([FIRST, SECOND]) == {FIRST: 10, SECOND: 0}
                found = await consumer.offsets_for_times({FIRST: 1004, SECOND: 1004})
                assert (found[FIRST].offset, found[FIRST].timestamp) == (4, 1004)
                assert found[SECOND] is None
                consumer.seek(FIRST, 7)
                assert await values(consumer, 3) == [b"7", b"8", b"9"]
                await consumer.seek_to_beginning(FIRST)
                assert await values(consumer, 1) == [b"0"]

    asyncio.run(main())


def test_a_consumer_whose_offset_is_gone_goes_on_at_the_start_of_the_log() -> None:
    async def main() -> None:
        async with node_with_topic() as (node, address):
            await produce(address, *(b"%d" % number for number in range(5)))
            assert node.node.engine is not None
            log = await node.node.engine.logs.log(FIRST)
            await log.delete_records(3)
            async with assigned(address, FIRST, auto_offset_reset="earliest") as consumer:
                consumer.seek(FIRST, 1)
                assert await values(consumer, 2) == [b"3", b"4"]

    asyncio.run(main())
