"""Clients that others wrote describe and change settings: librdkafka's admin, aiokafka's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource as AiokafkaResource
from confluent_kafka import KafkaException
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    ResourceType,
)

from streamlog.v1 import admin_pb2
from tests.support.running_node import running_node

WAIT_S = 10
RETENTION, BROKER_RETENTION = "retention.ms", "log.retention.ms"


@asynccontextmanager
async def kafka_node() -> AsyncIterator[str]:
    """A node with the topic t; its address for Kafka's clients."""
    async with running_node(kafka_listen="127.0.0.1:0") as node:
        new = admin_pb2.NewTopic(name="t", partitions=1)
        await node.admin.CreateTopics(admin_pb2.CreateTopicsRequest(topics=[new]))
        [endpoint] = [one for one in node.banner.listeners if one.name == "kafka"]
        yield endpoint.address


def test_librdkafkas_admin_describes_and_changes_settings() -> None:
    async def main() -> None:
        async with kafka_node() as address:
            await asyncio.to_thread(_with_librdkafka, address)

    asyncio.run(main())


def _with_librdkafka(address: str) -> None:
    client = AdminClient({"bootstrap.servers": address})

    def result(futures: dict[ConfigResource, Any]) -> Any:
        [future] = futures.values()
        return future.result(WAIT_S)

    def described(kind: ResourceType, name: str, setting: str) -> ConfigEntry:
        entries = result(client.describe_configs([ConfigResource(kind, name)]))
        entry: ConfigEntry = entries[setting]
        return entry

    def altered(
        kind: ResourceType, name: str, setting: str, value: str | None, how: AlterConfigOpType
    ) -> None:
        entry = ConfigEntry(setting, value, incremental_operation=how)
        resource = ConfigResource(kind, name, incremental_configs=[entry])
        result(client.incremental_alter_configs([resource]))

    topic, broker = ResourceType.TOPIC, ResourceType.BROKER
    set_, delete = AlterConfigOpType.SET, AlterConfigOpType.DELETE
    entry = described(topic, "t", RETENTION)
    assert entry.value == "604800000"
    assert entry.source == ConfigSource.DEFAULT_CONFIG.value
    altered(broker, "1", BROKER_RETENTION, "5000", set_)
    entry = described(topic, "t", RETENTION)
    assert entry.value == "5000"
    assert entry.source == ConfigSource.DYNAMIC_BROKER_CONFIG.value
    altered(topic, "t", RETENTION, "6000", set_)
    entry = described(topic, "t", RETENTION)
    assert entry.value == "6000"
    assert entry.source == ConfigSource.DYNAMIC_TOPIC_CONFIG.value
    assert not entry.is_read_only
    assert {RETENTION, BROKER_RETENTION} <= entry.synonyms.keys()
    altered(topic, "t", RETENTION, None, delete)
    altered(broker, "1", BROKER_RETENTION, None, delete)
    assert described(topic, "t", RETENTION).value == "604800000"
    replicas = "leader.replication.throttled.replicas"
    altered(topic, "t", replicas, "0:1,1:1", AlterConfigOpType.APPEND)
    altered(topic, "t", replicas, "0:1", AlterConfigOpType.SUBTRACT)
    assert described(topic, "t", replicas).value == "1:1"
    with pytest.warns(DeprecationWarning, match="alter_configs"):
        futures = client.alter_configs([ConfigResource(topic, "t", set_config={"segment.ms": "7"})])
    result(futures)
    assert described(topic, "t", "segment.ms").value == "7"
    assert described(topic, "t", replicas).value == ""
    assert described(broker, "1", "node.listen").is_read_only
    for kind, name, setting, says in (
        (topic, "t", "cleanup.policy", "INVALID_CONFIG"),
        (topic, "none", RETENTION, "UNKNOWN_TOPIC_OR_PART"),
        (broker, "1", "node.listen", "INVALID_REQUEST"),
    ):
        with pytest.raises(KafkaException) as caught:
            altered(kind, name, setting, "shred", set_)
        assert says in str(caught.value.args[0].name())


def test_aiokafkas_admin_describes_and_changes_settings() -> None:
    async def main() -> None:
        async with kafka_node() as address:
            client = AIOKafkaAdminClient(bootstrap_servers=address)
            await client.start()
            try:
                resource = AiokafkaResource("TOPIC", "t", {RETENTION: "5000"})
                [changed] = await client.alter_configs([resource])
                assert changed.resources[0][0] == 0
                [answer] = await client.describe_configs([resource], include_synonyms=True)
                [(code, _, _, name, [config])] = answer.resources
                assert (code, name) == (0, "t")
                assert config[:2] == (RETENTION, "5000")
                broker = AiokafkaResource("BROKER", "1")
                [answer] = await client.describe_configs([broker])
                names = {config[0] for config in answer.resources[0][4]}
                assert {BROKER_RETENTION, "num.partitions", "node.listen"} <= names
            finally:
                await client.close()

    asyncio.run(main())
