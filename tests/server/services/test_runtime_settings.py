"""Broker settings at run time over gRPC: in force at once, kept, shown with their sources."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from streamlog import errors
from streamlog.v1 import admin_pb2, kv_pb2, log_pb2
from streamlog.v1support.errors import from_proto, from_rpc_error
from tests.support.running_node import RunningNode, running_node
from tests.support.server_harness import batch

SET, DELETE = admin_pb2.CONFIG_OPERATION_SET, admin_pb2.CONFIG_OPERATION_DELETE
APPEND, SUBTRACT = admin_pb2.CONFIG_OPERATION_APPEND, admin_pb2.CONFIG_OPERATION_SUBTRACT
TOPIC = admin_pb2.ConfigResource(type=admin_pb2.CONFIG_RESOURCE_TYPE_TOPIC, name="t")
BROKER = admin_pb2.ConfigResource(type=admin_pb2.CONFIG_RESOURCE_TYPE_BROKER, name="1")
ALL = admin_pb2.ConfigResource(type=admin_pb2.CONFIG_RESOURCE_TYPE_BROKER_DEFAULT)


@pytest.fixture(autouse=True)
def _level() -> Iterator[None]:
    root = logging.getLogger()
    level = root.level
    yield
    root.setLevel(level)


async def alter(
    node: RunningNode,
    resource: admin_pb2.ConfigResource,
    name: str,
    value: str = "",
    operation: admin_pb2.ConfigOperation = SET,
    *,
    validate_only: bool = False,
) -> errors.StreamlogError | None:
    change = admin_pb2.ConfigChange(name=name, value=value, operation=operation)
    request = admin_pb2.IncrementalAlterConfigsRequest(
        resource=resource, changes=[change], validate_only=validate_only
    )
    try:
        await node.admin.IncrementalAlterConfigs(request)
    except grpc.aio.AioRpcError as error:
        return from_rpc_error(error, may_have_happened=True)
    return None


async def entry(node: RunningNode, resource: admin_pb2.ConfigResource, name: str) -> Any:
    response = await node.admin.DescribeConfigs(admin_pb2.DescribeConfigsRequest(resource=resource))
    [found] = [entry for entry in response.entries if entry.name == name]
    return found


async def create(node: RunningNode, name: str, **configs: str) -> int:
    given = {name.replace("_", "."): value for name, value in configs.items()}
    new = admin_pb2.NewTopic(name=name, configs=given)
    [made] = (await node.admin.CreateTopics(admin_pb2.CreateTopicsRequest(topics=[new]))).topics
    assert not made.HasField("error")
    return int(made.partitions)


async def produced(node: RunningNode, topic: str, size: int) -> errors.StreamlogError | None:
    part = log_pb2.ProducePartition(record_batches=batch(b"x" * size))
    request = log_pb2.ProduceRequest(topics=[log_pb2.ProduceTopic(topic=topic, partitions=[part])])
    [result] = (await node.log.Produce(request)).topics[0].partitions
    return from_proto(result.error) if result.HasField("error") else None


def test_what_counts_is_the_topics_then_this_nodes_then_all_nodes_then_the_files() -> None:
    async def main() -> None:
        flags: dict[str, Any] = {"broker.log.retention.hours": 5, "topic-defaults.segment.ms": "77"}
        async with running_node(**flags) as node:
            await create(node, "t")
            steps: list[tuple[admin_pb2.ConfigResource, str, str, str]] = [
                (ALL, "log.retention.ms", "1000", "all brokers at run time"),
                (BROKER, "log.retention.ms", "2000", "broker 1 at run time"),
                (TOPIC, "retention.ms", "3000", "topic"),
            ]
            seen = await entry(node, TOPIC, "retention.ms")
            assert (seen.value, seen.source) == ("18000000", "broker")
            for resource, name, value, source in steps:
                assert await alter(node, resource, name, value) is None
                seen = await entry(node, TOPIC, "retention.ms")
                assert (seen.value, seen.source) == (value, source)
            assert [(one.name, one.value, one.source) for one in seen.synonyms] == [
                ("retention.ms", "3000", admin_pb2.CONFIG_SOURCE_TOPIC),
                ("log.retention.ms", "2000", admin_pb2.CONFIG_SOURCE_BROKER),
                ("log.retention.ms", "1000", admin_pb2.CONFIG_SOURCE_ALL_BROKERS),
                ("log.retention.hours", "5", admin_pb2.CONFIG_SOURCE_STATIC_BROKER),
                ("log.retention.hours", "168", admin_pb2.CONFIG_SOURCE_DEFAULT),
            ]
            assert seen.type == "long"
            for resource, name, _, _ in reversed(steps):
                assert await alter(node, resource, name, operation=DELETE) is None
            assert (await entry(node, TOPIC, "retention.ms")).value == "18000000"
            own = await entry(node, TOPIC, "segment.ms")
            assert (own.value, own.source_kind) == ("77", admin_pb2.CONFIG_SOURCE_STATIC_BROKER)

    asyncio.run(main())


@pytest.mark.parametrize("is_raised", [False, True])
def test_each_call_of_a_burst_is_answered_or_refused_with_a_reason(is_raised: bool) -> None:
    """Whatever the bound was at the start."""

    async def main() -> None:
        async with running_node(limits__requests_max="10") as node:
            if is_raised:
                assert await alter(node, ALL, "limits.requests_max", "20000") is None

            async def outcome() -> str:
                request = kv_pb2.GetKvsRequest(keys=[kv_pb2.KvKey(name=b"x")])
                try:
                    await node.kv.GetKvs(request)
                except grpc.aio.AioRpcError as error:
                    return f"{error.code().name}: {error.details()}"
                return "answered"

            outcomes = set(await asyncio.gather(*(outcome() for _ in range(1000))))
            reason = "RESOURCE_EXHAUSTED: 10 requests are under way; retry with back-off"
            assert outcomes <= ({"answered"} if is_raised else {"answered", reason})

    asyncio.run(main())


def test_settings_at_run_time_take_effect_and_survive_a_restart(tmp_path: Path) -> None:
    async def main() -> None:
        data = str(tmp_path / "data")
        async with running_node("serve", data=data) as node:
            await create(node, "t")
            assert await produced(node, "t", 1000) is None
            assert isinstance(await produced(node, "new", 10), errors.UnknownTopicOrPartition)
            for name, value in (
                ("message.max.bytes", "500"),
                ("num.partitions", "3"),
                ("auto.create.topics.enable", "true"),
                ("limits.requests_max", "77"),
                ("node.log_level", "error"),
            ):
                assert await alter(node, ALL, name, value) is None
            assert isinstance(await produced(node, "t", 1000), errors.MessageTooLarge)
            assert await produced(node, "new", 10) is None
            assert await create(node, "three") == 3
            assert node.metric("streamlog_requests_bound") == 77
            assert logging.getLogger().level == logging.ERROR
        async with running_node("serve", data=data) as node:
            assert isinstance(await produced(node, "t", 1000), errors.MessageTooLarge)
            assert await produced(node, "newer", 10) is None
            assert node.metric("streamlog_requests_bound") == 77
            for name in ("message.max.bytes", "auto.create.topics.enable", "node.log_level"):
                assert await alter(node, ALL, name, operation=DELETE) is None
            assert await produced(node, "t", 1000) is None
            assert isinstance(await produced(node, "newest", 1), errors.UnknownTopicOrPartition)
            assert logging.getLogger().level == logging.INFO

    asyncio.run(main())


@pytest.mark.parametrize(
    ("name", "value", "kind", "says"),
    [
        ("node.listen", "x", errors.Invalid, "restart it"),
        ("log.retention.hours", "5", errors.Invalid, "restart it"),
        ("retention.ms", "5", errors.Invalid, "log.retention.ms instead"),
        ("log.retenton.ms", "5", errors.InvalidConfig, "did you mean log.retention.ms"),
        ("log.retention.ms", "soon", errors.InvalidConfig, "whole number"),
        ("log.cleanup.policy", "shred", errors.InvalidConfig, "must be of"),
        ("num.partitions", "0", errors.InvalidConfig, "1 to 10000"),
        ("num.partitions", "", errors.InvalidConfig, "delete it"),
        ("auto.create.topics.enable", "maybe", errors.InvalidConfig, "true or false"),
        ("message.max.bytes", str(32 << 20), errors.InvalidConfig, "cannot be sent"),
        ("node.log_level", "loud", errors.InvalidConfig, "one of"),
    ],
)
def test_what_cannot_change_at_run_time_and_wrong_values_are_refused(
    name: str, value: str, kind: type[errors.StreamlogError], says: str
) -> None:
    async def main() -> None:
        async with running_node() as node:
            for resource in (ALL, BROKER):
                for validate_only in (True, False):
                    error = await alter(node, resource, name, value, validate_only=validate_only)
                    assert type(error) is kind
                    assert says in error.message
            assert node.node.engine is not None
            assert node.node.engine.logs.broker_configs.in_force() == {}

    asyncio.run(main())


def test_a_nodes_settings_show_what_can_change_and_where_values_come_from() -> None:
    async def main() -> None:
        async with running_node(broker__num__partitions=2) as node:
            assert await alter(node, ALL, "broker.num.partitions", "4") is None
            assert await alter(node, ALL, "min.insync.replicas", "2") is None
            seen = await entry(node, BROKER, "broker.num.partitions")
            assert (seen.value, seen.read_only, seen.type) == ("4", False, "int")
            assert [one.value for one in seen.synonyms] == ["4", "2", "1"]
            assert (await entry(node, ALL, "broker.num.partitions")).value == "4"
            kept = await entry(node, BROKER, "broker.min.insync.replicas")
            assert (kept.value, kept.source) == ("2", "all brokers at run time")
            assert (await entry(node, BROKER, "node.listen")).read_only
            other = admin_pb2.ConfigResource(type=BROKER.type, name="9")
            error = await alter(node, other, "num.partitions", "1")
            assert isinstance(error, errors.Invalid)
            assert "ask node 9" in error.message

    asyncio.run(main())


def test_lists_are_appended_to_and_subtracted_from_and_a_name_counts_once() -> None:
    async def main() -> None:
        async with running_node() as node:
            await create(node, "t")
            name = "leader.replication.throttled.replicas"
            for value, operation, result in (
                ("0:1", APPEND, "0:1"),
                ("1:1,0:1", APPEND, "0:1,1:1"),
                ("0:1", SUBTRACT, "1:1"),
            ):
                assert await alter(node, TOPIC, name, value, operation) is None
                assert (await entry(node, TOPIC, name)).value == result
            assert await alter(node, ALL, "log.cleanup.policy", "delete", APPEND) is None
            policy = await entry(node, TOPIC, "cleanup.policy")
            assert (policy.value, policy.type) == ("delete", "list")
            for resource, single in ((ALL, "num.partitions"), (TOPIC, "retention.ms")):
                error = await alter(node, resource, single, "1", APPEND)
                assert isinstance(error, errors.InvalidConfig)
            change = admin_pb2.ConfigChange(name="num.partitions", value="1", operation=SET)
            request = admin_pb2.IncrementalAlterConfigsRequest(
                resource=ALL, changes=[change, change]
            )
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await node.admin.IncrementalAlterConfigs(request)
            assert "changed twice" in str(caught.value.details())

    asyncio.run(main())


def test_checking_alone_changes_nothing() -> None:
    async def main() -> None:
        async with running_node() as node:
            await create(node, "t")
            assert await alter(node, ALL, "num.partitions", "9", validate_only=True) is None
            assert await alter(node, TOPIC, "retention.ms", "9", validate_only=True) is None
            assert await create(node, "u") == 1
            assert (await entry(node, TOPIC, "retention.ms")).source == "broker"

    asyncio.run(main())


def test_a_value_that_another_version_stored_is_neither_shown_nor_in_force(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        async with running_node() as node:
            assert node.node.engine is not None
            logs = node.node.engine.logs
            stored = {"num.partitions": "many", "limits.requests_max": "1", "later.one": "1"}
            await logs.alter_broker_configs(None, lambda _: stored)
            for name in ("num.partitions", "limits.requests_max"):
                assert f"broker setting {name} is passed over" in caplog.text
            assert (await entry(node, BROKER, "broker.num.partitions")).value == "1"
            assert node.metric("streamlog_requests_bound") == 20_000
            assert await alter(node, ALL, "later.one", operation=DELETE) is None
            assert await create(node, "t") == 1

    asyncio.run(main())
