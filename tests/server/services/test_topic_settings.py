"""Topic settings over gRPC: Kafka's least values, a node's caps, settings without effect."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from streamlog import errors
from streamlog.v1 import admin_pb2, log_pb2
from streamlog.v1support.errors import from_proto, from_rpc_error
from tests.support import command
from tests.support.running_node import RunningNode, running_node
from tests.support.server_harness import batch

MESSAGE_BYTES = "limits.message_bytes_max"
TOPIC = admin_pb2.ConfigResource(type=admin_pb2.CONFIG_RESOURCE_TYPE_TOPIC, name="t")


async def create(node: RunningNode, configs: dict[str, str]) -> errors.StreamlogError | None:
    new = admin_pb2.NewTopic(name="t", partitions=1, configs=configs)
    [made] = (await node.admin.CreateTopics(admin_pb2.CreateTopicsRequest(topics=[new]))).topics
    return from_proto(made.error) if made.HasField("error") else None


async def alter(node: RunningNode, name: str, value: str) -> errors.StreamlogError | None:
    change = admin_pb2.ConfigChange(
        name=name, value=value, operation=admin_pb2.CONFIG_OPERATION_SET
    )
    request = admin_pb2.IncrementalAlterConfigsRequest(resource=TOPIC, changes=[change])
    try:
        await node.admin.IncrementalAlterConfigs(request)
    except grpc.aio.AioRpcError as error:
        return from_rpc_error(error, may_have_happened=True)
    return None


async def entries(node: RunningNode) -> dict[str, Any]:
    response = await node.admin.DescribeConfigs(admin_pb2.DescribeConfigsRequest(resource=TOPIC))
    return {entry.name: entry for entry in response.entries}


async def produced(node: RunningNode, value_bytes: int) -> errors.StreamlogError | None:
    part = log_pb2.ProducePartition(record_batches=batch(b"x" * value_bytes))
    topic = log_pb2.ProduceTopic(topic="t", partitions=[part])
    response = await node.log.Produce(log_pb2.ProduceRequest(topics=[topic]))
    [result] = response.topics[0].partitions
    return from_proto(result.error) if result.HasField("error") else None


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("segment.bytes", "1048575", "must be 1048576 to"),
        ("cleanup.policy", "shred", "must be of"),
        ("remote.storage.enable", "true", "log.type=unified"),
    ],
)
def test_settings_that_kafka_refuses_or_that_promise_what_is_not_done_are_refused(
    name: str, value: str, says: str
) -> None:
    async def main() -> None:
        async with running_node() as node:
            error = await create(node, {name: value})
            assert isinstance(error, errors.InvalidConfig)
            assert says in error.message
            assert await create(node, {"segment.bytes": "1048576"}) is None
            error = await alter(node, name, value)
            assert isinstance(error, errors.InvalidConfig)
            assert says in error.message

    asyncio.run(main())


def test_a_setting_without_meaning_on_a_shared_store_is_kept_and_shown() -> None:
    async def main() -> None:
        async with running_node() as node:
            given = {"min.insync.replicas": "2", "flush.ms": "1", "cleanup.policy": "delete"}
            assert await create(node, given) is None
            assert await alter(node, "preallocate", "true") is None
            shown = await entries(node)
            for name, value in {**given, "preallocate": "true"}.items():
                assert (shown[name].value, shown[name].source) == (value, "topic")
            assert "log.type=unified" in shown["flush.ms"].documentation
            assert "without effect" in shown["preallocate"].documentation
            assert await produced(node, 100) is None

    asyncio.run(main())


def test_a_bound_above_what_a_message_carries_is_refused() -> None:
    async def main() -> None:
        async with running_node() as node:
            bound = (32 << 20) - 1024
            for error in (
                await create(node, {"max.message.bytes": str(bound + 1)}),
                await create(node, {"max.message.bytes": str(bound)})
                or await alter(node, "max.message.bytes", str(bound + 1)),
            ):
                assert isinstance(error, errors.InvalidConfig)
                assert error.fields["max_bytes"] == bound
            largest = bound - len(batch(b"")) - 6
            assert await produced(node, largest) is None

    asyncio.run(main())


def test_a_topic_that_has_a_larger_bound_already_is_open_and_capped(tmp_path: Path) -> None:
    async def main() -> None:
        data = str(tmp_path / "data")
        async with running_node(data=data) as node:
            assert await create(node, {"max.message.bytes": "100000"}) is None
        async with running_node(data=data, **{MESSAGE_BYTES: "65536"}) as node:
            assert await produced(node, 64_000) is None
            error = await produced(node, 65_000)
            assert type(error) is errors.MessageTooLarge
            assert error.fields["max_bytes"] == 64_512
            entry = (await entries(node))["max.message.bytes"]
            assert (entry.value, entry.configured_value) == ("64512", "100000")
            assert (await entries(node))["segment.bytes"].configured_value == ""
            request = admin_pb2.DescribeTopicsRequest(names=["t"])
            [topic] = (await node.admin.DescribeTopics(request)).topics
            assert dict(topic.configs) == {"max.message.bytes": "100000"}
            assert dict(topic.capped_configs) == {"max.message.bytes": "64512"}
            shown = await asyncio.to_thread(
                command.run, "topic", "describe", "t", server=node.banner.grpc
            )
            assert b"64512 (capped" in shown.stdout
            assert await alter(node, "retention.ms", "5") is None

    asyncio.run(main())


def test_both_errors_of_size_name_the_lesser_bound() -> None:
    async def main() -> None:
        async with running_node() as node:
            small = {"internal.segment.bytes": "2000", "max.message.bytes": "4000"}
            assert await create(node, small) is None
            for size, kind in ((3000, errors.RecordListTooLarge), (5000, errors.MessageTooLarge)):
                error = await produced(node, size)
                assert type(error) is kind
                assert isinstance(error, errors.MessageTooLarge)
                assert error.fields["max_bytes"] == 2000
            assert await produced(node, 1900) is None
            assert "internal.segment.bytes" not in await entries(node)

    asyncio.run(main())
