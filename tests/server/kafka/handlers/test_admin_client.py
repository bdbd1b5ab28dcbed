"""aiokafka's clients, unchanged, on a whole node: topics made, described, changed and deleted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic

from streamlog.kafka.messages.metadata_request import MetadataRequest
from streamlog.kafka.protocol.apis import APIS, ApiKey
from streamlog.kafka.protocol.headers import encode_request_header
from streamlog.model.partition import TopicPartition
from tests.support.kafka_wire import connect, sized
from tests.support.log_insides import leadership_of
from tests.support.running_node import RunningNode, running_node

Test = Callable[[RunningNode, AIOKafkaAdminClient], Awaitable[None]]


def kafka_address(running: RunningNode) -> str:
    return next(one.advertised for one in running.banner.listeners if one.protocol == "kafka")


@asynccontextmanager
async def admin_client(running: RunningNode) -> AsyncIterator[AIOKafkaAdminClient]:
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka_address(running))
    await admin.start()
    try:
        yield admin
    finally:
        await admin.close()


def run(test: Test) -> None:
    async def body() -> None:
        async with running_node(kafka_listen="127.0.0.1:0") as running, admin_client(running) as it:
            await test(running, it)

    asyncio.run(body())


def test_topics_live_and_die_by_an_admin_client() -> None:
    async def test(running: RunningNode, admin: AIOKafkaAdminClient) -> None:
        topics = [NewTopic("a", 2, 3, topic_configs={"retention.ms": "1000"}), NewTopic("b", 1, 1)]
        made = await admin.create_topics(topics)
        assert [(name, error) for name, error, *_ in made.topic_errors] == [("a", 0), ("b", 0)]
        ((name, error, message),) = (await admin.create_topics(topics[:1])).topic_errors
        assert (name, error) == ("a", 36)
        assert "exists" in message
        assert sorted(await admin.list_topics()) == ["a", "b"]
        grown = await admin.create_partitions({"a": NewPartitions(total_count=5)})
        assert [(name, error) for name, error, _ in grown.topic_errors] == [("a", 0)]
        described = await admin.describe_topics(["a"])
        by_name = {topic["topic"]: topic for topic in described}
        assert len(by_name["a"]["partitions"]) == 5
        assert {one["leader"] for one in by_name["a"]["partitions"]} == {1}
        cluster = await admin.describe_cluster()
        (broker,) = cluster["brokers"]
        assert f"{broker['host']}:{broker['port']}" == kafka_address(running)
        assert (cluster["controller_id"], cluster["cluster_id"]) == (1, running.banner.cluster_id)
        gone = await admin.delete_topics(["a"])
        assert list(gone.topic_error_codes) == [("a", 0)]
        assert await admin.list_topics() == ["b"]

    run(test)


def test_clients_are_told_the_address_of_the_listener_that_they_reached() -> None:
    async def body() -> None:
        listen = "inside=127.0.0.1:0,outside=127.0.0.1:0"
        advertised = "outside=broker.example:9999"
        async with running_node(kafka_listen=listen, kafka_advertised=advertised) as running:
            told = {}
            for one in running.banner.listeners:
                if one.protocol == "kafka":
                    client = await connect(int(one.address.rpartition(":")[2]))
                    response = await client.ask(ApiKey.METADATA, 12, MetadataRequest(topics=[]))
                    (broker,) = response.brokers
                    told[one.name] = f"{broker.host}:{broker.port}"
                    assert told[one.name] == one.advertised
                    await client.close()
            assert told["inside"].startswith("127.0.0.1:")
            assert told["outside"] == "broker.example:9999"

    asyncio.run(body())


def test_librdkafkas_request_for_all_topics_is_answered() -> None:
    """As librdkafka 2.16 sends it: an array's count of 4 bytes where one is right."""

    async def test(running: RunningNode, admin: AIOKafkaAdminClient) -> None:
        await admin.create_topics([NewTopic("a", 1, 1)])
        client = await connect(int(kafka_address(running).rpartition(":")[2]))
        header = encode_request_header(APIS[ApiKey.METADATA], 13, 5, "rdkafka")
        client.send(sized(header + bytes.fromhex("00000000010000")))
        correlation_id, response = await client.answer(ApiKey.METADATA, 13)
        assert (correlation_id, [topic.name for topic in response.topics]) == (5, ["a"])
        assert await client.is_served()
        await client.close()

    run(test)


def test_a_client_asks_again_until_a_partition_has_a_live_leader() -> None:
    async def test(running: RunningNode, admin: AIOKafkaAdminClient) -> None:
        assert running.node.engine is not None
        await admin.create_topics([NewTopic("a", 1, 1)])
        leadership = leadership_of(running.node.engine.logs)
        producer = AIOKafkaProducer(
            bootstrap_servers=kafka_address(running), retry_backoff_ms=20, metadata_max_age_ms=50
        )
        await producer.start()
        try:
            first = await producer.send_and_wait("a", b"1", partition=0)
            for leader in (77, None):
                await leadership.assign(TopicPartition("a", 0), leader)
                sent = await producer.send("a", b"2", partition=0)
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(asyncio.shield(sent), 0.3)
                await leadership.assign(TopicPartition("a", 0), 1)
                second = await asyncio.wait_for(sent, 20)
                assert second.offset == first.offset + 1
                first = second
        finally:
            await producer.stop()

    run(test)
