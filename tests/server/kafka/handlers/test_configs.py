"""Settings over Kafka's protocol, in every version: described, changed, refused, listed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from streamlog.kafka.messages import (
    alter_configs_request,
    describe_configs_request,
    incremental_alter_configs_request,
    list_config_resources_request,
)
from streamlog.kafka.protocol.apis import APIS, ApiKey
from streamlog.kafka.protocol.errors import KafkaError
from streamlog.log.api.topic_config import ConfigType
from streamlog.v1 import admin_pb2
from tests.server.kafka.handlers.kafka_topic_settings import KAFKA_TOPIC_SETTINGS
from tests.support.kafka_wire import WireClient, connect
from tests.support.running_node import RunningNode, running_node

TOPIC, BROKER, LOGGER, METRICS, GROUP = 2, 4, 8, 16, 32
SET, DELETE, APPEND, SUBTRACT = range(4)
OWN, NODE, ALL, STATIC, DEFAULT = range(1, 6)
"""Kafka's sources of values."""


@asynccontextmanager
async def kafka_node(**settings: Any) -> AsyncIterator[tuple[RunningNode, WireClient]]:
    """A node with the topic t, and a client of it."""
    async with running_node(kafka_listen="127.0.0.1:0", **settings) as node:
        new = admin_pb2.NewTopic(name="t", partitions=1)
        await node.admin.CreateTopics(admin_pb2.CreateTopicsRequest(topics=[new]))
        [endpoint] = [one for one in node.banner.listeners if one.name == "kafka"]
        client = await connect(int(endpoint.address.rsplit(":", 1)[1]))
        try:
            yield node, client
        finally:
            await client.close()


def versions(api: ApiKey) -> range:
    return range(APIS[api].first, APIS[api].last + 1)


async def describe(
    client: WireClient,
    kind: int,
    name: str,
    keys: list[str] | None = None,
    *,
    version: int = 4,
    **options: bool,
) -> Any:
    resource = describe_configs_request.DescribeConfigsResource(
        resource_type=kind, resource_name=name, configuration_keys=keys
    )
    request = describe_configs_request.DescribeConfigsRequest(resources=[resource], **options)
    answer = await client.ask(ApiKey.DESCRIBE_CONFIGS, version, request)
    [result] = answer.results
    assert (result.resource_type, result.resource_name) == (kind, name)
    return result


async def alter(
    client: WireClient,
    kind: int,
    name: str,
    *changes: tuple[str, int, str | None],
    validate_only: bool = False,
    version: int = 1,
) -> tuple[int, str | None]:
    message = incremental_alter_configs_request
    resource = message.AlterConfigsResource(
        resource_type=kind,
        resource_name=name,
        configs=[
            message.AlterableConfig(name=setting, config_operation=operation, value=value)
            for setting, operation, value in changes
        ],
    )
    request = message.IncrementalAlterConfigsRequest(
        resources=[resource], validate_only=validate_only
    )
    answer = await client.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, version, request)
    [result] = answer.responses
    assert (result.resource_type, result.resource_name) == (kind, name)
    return result.error_code, result.error_message


async def replace_all(
    client: WireClient, kind: int, name: str, version: int = 2, **configs: str | None
) -> int:
    message = alter_configs_request
    resource = message.AlterConfigsResource(
        resource_type=kind,
        resource_name=name,
        configs=[
            message.AlterableConfig(name=setting.replace("_", "."), value=value)
            for setting, value in configs.items()
        ],
    )
    request = message.AlterConfigsRequest(resources=[resource])
    answer = await client.ask(ApiKey.ALTER_CONFIGS, version, request)
    [result] = answer.responses
    return int(result.error_code)


async def value(client: WireClient, name: str, kind: int = TOPIC, resource: str = "t") -> Any:
    result = await describe(client, kind, resource, [name], include_synonyms=True)
    [config] = result.configs
    return config


def test_a_topic_shows_all_of_kafkas_settings_with_types_sources_and_synonyms() -> None:
    async def main() -> None:
        async with kafka_node() as (_, client):
            await alter(client, TOPIC, "t", ("retention.ms", SET, "5"))
            for version in versions(ApiKey.DESCRIBE_CONFIGS):
                result = await describe(client, TOPIC, "t", version=version, include_synonyms=True)
                assert result.error_code == 0
                shown = {config.name: config for config in result.configs}
                assert len(shown) == 36
                own = shown["retention.ms"]
                assert (own.value, own.config_source, own.read_only) == ("5", OWN, False)
                assert not own.is_sensitive
                assert [(one.name, one.value, one.source) for one in own.synonyms] == [
                    ("retention.ms", "5", OWN)
                ]
                size = shown["max.message.bytes"]
                assert [(one.name, one.source) for one in size.synonyms] == [
                    ("message.max.bytes", DEFAULT)
                ]
                assert shown["cleanup.policy"].value == "delete"
                assert shown["min.insync.replicas"].config_source == DEFAULT
                assert shown["leader.replication.throttled.replicas"].value == ""
                assert own.documentation is None or version < 3
                if version >= 3:
                    assert own.config_type == ConfigType.LONG.value
                    assert shown["cleanup.policy"].config_type == ConfigType.LIST.value
            assert len((await describe(client, TOPIC, "t", [])).configs) == 36
            plain = await describe(client, TOPIC, "t", ["retention.ms", "no.such"])
            [one] = plain.configs
            assert (one.name, list(one.synonyms)) == ("retention.ms", [])
            explained = await describe(client, TOPIC, "t", include_documentation=True)
            assert all(config.documentation for config in explained.configs)

    asyncio.run(main())


def test_a_topic_is_described_as_by_a_real_kafka() -> None:
    async def main() -> None:
        async with kafka_node() as (_, client):
            result = await describe(client, TOPIC, "t", include_synonyms=True)
            described = {
                config.name: (
                    config.value,
                    config.config_type,
                    config.synonyms[-1].name if config.synonyms else "",
                )
                for config in result.configs
            }
            assert described.pop("log.type") == ("shared", 2, ""), "the one that Kafka lacks"
            later = {name: described.pop(f"remote.copy.lag.{name}") for name in ("bytes", "ms")}
            assert later == {
                "bytes": ("-1", 5, "log.remote.copy.lag.bytes"),
                "ms": ("0", 5, "log.remote.copy.lag.ms"),
            }
            assert described == KAFKA_TOPIC_SETTINGS
            assert {config.config_source for config in result.configs} == {DEFAULT}

    asyncio.run(main())


def test_many_topics_are_described_in_one_request_each_with_its_own_settings() -> None:
    async def main() -> None:
        async with kafka_node() as (node, client):
            names = [f"t{number}" for number in range(60)]
            new = [
                admin_pb2.NewTopic(name=name, partitions=1, configs={"retention.ms": str(number)})
                for number, name in enumerate(names)
            ]
            await node.admin.CreateTopics(admin_pb2.CreateTopicsRequest(topics=new))
            message = describe_configs_request
            asked = [
                message.DescribeConfigsResource(
                    resource_type=TOPIC, resource_name=name, configuration_keys=None
                )
                for name in names
            ]
            request = message.DescribeConfigsRequest(resources=asked)
            answer = await client.ask(ApiKey.DESCRIBE_CONFIGS, 4, request)
            assert [result.resource_name for result in answer.results] == names
            for number, result in enumerate(answer.results):
                shown = {config.name: config.value for config in result.configs}
                assert len(shown) == 36
                assert (shown["retention.ms"], shown["segment.ms"]) == (str(number), "604800000")

    asyncio.run(main())


def test_a_request_of_too_many_resources_is_refused() -> None:
    async def main() -> None:
        async with kafka_node(limits__partitions_per_request_max=3) as (_, client):
            message = describe_configs_request
            one = message.DescribeConfigsResource(
                resource_type=TOPIC, resource_name="t", configuration_keys=None
            )
            for count, code in ((3, 0), (4, KafkaError.INVALID_REQUEST)):
                request = message.DescribeConfigsRequest(resources=[one] * count)
                answer = await client.ask(ApiKey.DESCRIBE_CONFIGS, 4, request)
                assert {result.error_code for result in answer.results} == {code}

    asyncio.run(main())


def test_what_is_asked_for_twice_is_answered_once() -> None:
    async def main() -> None:
        async with kafka_node() as (_, client):
            message = describe_configs_request
            whole, some, other = (
                message.DescribeConfigsResource(
                    resource_type=BROKER, resource_name="1", configuration_keys=keys
                )
                for keys in (None, ["log.segment.bytes"], ["log.retention.ms"])
            )
            asked = [whole, some, whole, other, some, whole]
            request = message.DescribeConfigsRequest(resources=asked)
            answer = await client.ask(ApiKey.DESCRIBE_CONFIGS, 4, request)
            first, second, third = answer.results
            assert len(first.configs) > 100
            assert [config.name for config in second.configs] == ["log.segment.bytes"]
            assert [config.name for config in third.configs] == ["log.retention.ms"]

    asyncio.run(main())


def test_a_broker_shows_what_can_change_and_all_brokers_what_was_set_for_them() -> None:
    async def main() -> None:
        async with kafka_node(**{"broker.num.partitions": 2}) as (_, client):
            assert (await describe(client, BROKER, "")).configs == []
            for name, text in (("num.partitions", "4"), ("min.insync.replicas", "2")):
                assert (await alter(client, BROKER, "", (name, SET, text)))[0] == 0
            assert (await alter(client, BROKER, "1", ("num.partitions", SET, "3")))[0] == 0
            partitions = await value(client, "num.partitions", BROKER, "1")
            assert (partitions.value, partitions.config_source) == ("3", NODE)
            assert [(one.value, one.source) for one in partitions.synonyms] == [
                ("3", NODE),
                ("4", ALL),
                ("2", STATIC),
                ("1", DEFAULT),
            ]
            listen = await value(client, "node.listen", BROKER, "1")
            assert (listen.read_only, listen.config_source) == (True, STATIC)
            retention = await value(client, "log.retention.ms", BROKER, "1")
            assert (retention.value, retention.config_source) == (None, DEFAULT)
            assert retention.synonyms == []
            everywhere = await describe(client, BROKER, "")
            assert {(one.name, one.value, one.config_source) for one in everywhere.configs} == {
                ("num.partitions", "4", ALL),
                ("min.insync.replicas", "2", ALL),
            }
            names = [config.name for config in (await describe(client, BROKER, "1")).configs]
            assert len(names) == len(set(names))
            assert {"log.retention.ms", "log.retention.hours", "message.max.bytes"} <= set(names)

    asyncio.run(main())


def test_resources_that_do_not_exist_are_answered_each_with_its_error() -> None:
    async def main() -> None:
        async with kafka_node() as (_, client):
            for kind, name, code in (
                (TOPIC, "none", KafkaError.UNKNOWN_TOPIC_OR_PARTITION),
                (TOPIC, "a/b", KafkaError.INVALID_TOPIC_EXCEPTION),
                (BROKER, "9", KafkaError.INVALID_REQUEST),
                (BROKER, "one", KafkaError.INVALID_REQUEST),
                (LOGGER, "1", KafkaError.INVALID_REQUEST),
                (METRICS, "m", KafkaError.INVALID_REQUEST),
                (GROUP, "g", KafkaError.INVALID_REQUEST),
                (77, "x", KafkaError.INVALID_REQUEST),
            ):
                described = await describe(client, kind, name)
                assert (described.error_code, described.configs) == (code, [])
                assert described.error_message
                altered = await alter(client, kind, name, ("retention.ms", SET, "5"))
                assert altered[0] == code
                assert await replace_all(client, kind, name, retention_ms="5") == code
            assert await client.is_served()

    asyncio.run(main())


@pytest.mark.parametrize("version", versions(ApiKey.INCREMENTAL_ALTER_CONFIGS))
def test_values_are_set_deleted_appended_and_subtracted(version: int) -> None:
    async def main() -> None:
        async with kafka_node() as (_, client):
            replicas = "follower.replication.throttled.replicas"
            steps = (
                (("retention.ms", SET, "5"), ("retention.ms", "5")),
                (("retention.ms", DELETE, None), ("retention.ms", "604800000")),
                ((replicas, APPEND, "0:1,1:1"), (replicas, "0:1,1:1")),
                ((replicas, SUBTRACT, "0:1"), (replicas, "1:1")),
                (("cleanup.policy", APPEND, "delete"), ("cleanup.policy", "delete")),
            )
            for change, (name, expected) in steps:
                assert await alter(client, TOPIC, "t", change, version=version) == (0, None)
                assert (await value(client, name)).value == expected
            checked = ("retention.ms", SET, "7")
            assert (await alter(client, TOPIC, "t", checked, validate_only=True))[0] == 0
            assert (await value(client, "retention.ms")).config_source == DEFAULT

    asyncio.run(main())


@pytest.mark.parametrize(
    ("kind", "name", "changes", "code"),
    [
        (TOPIC, "t", [("retention.ms", SET, "soon")], KafkaError.INVALID_CONFIG),
        (TOPIC, "t", [("no.such", SET, "1")], KafkaError.INVALID_CONFIG),
        (TOPIC, "t", [("cleanup.policy", SET, "shred")], KafkaError.INVALID_CONFIG),
        (TOPIC, "t", [("retention.ms", APPEND, "1")], KafkaError.INVALID_CONFIG),
        (TOPIC, "t", [("retention.ms", SET, None)], KafkaError.INVALID_REQUEST),
        (TOPIC, "t", [("retention.ms", 9, "1")], KafkaError.INVALID_REQUEST),
        (
            TOPIC,
            "t",
            [("retention.ms", SET, "1"), ("retention.ms", DELETE, None)],
            KafkaError.INVALID_REQUEST,
        ),
        (
            TOPIC,
            "t",
            [("flush.ms", SET, "1"), ("segment.ms", SET, "0")],
            KafkaError.INVALID_CONFIG,
        ),
        (BROKER, "1", [("node.listen", SET, "x")], KafkaError.INVALID_REQUEST),
        (BROKER, "", [("log.retention.hours", SET, "1")], KafkaError.INVALID_REQUEST),
        (BROKER, "", [("num.partitions", SET, "-1")], KafkaError.INVALID_CONFIG),
        (BROKER, "", [("no.such", SET, "1")], KafkaError.INVALID_CONFIG),
    ],
)
def test_what_is_wrong_is_refused_with_kafkas_code_and_nothing_is_changed(
    kind: int, name: str, changes: list[tuple[str, int, str | None]], code: KafkaError
) -> None:
    async def main() -> None:
        async with kafka_node() as (_, client):
            for validate_only in (True, False):
                answer = await alter(client, kind, name, *changes, validate_only=validate_only)
                assert answer[0] == code
                assert answer[1]
            shown = (await describe(client, kind, name)).configs
            assert {config.config_source for config in shown} <= {STATIC, DEFAULT}

    asyncio.run(main())


@pytest.mark.parametrize("version", versions(ApiKey.ALTER_CONFIGS))
def test_the_older_call_replaces_all_settings_of_its_resource(version: int) -> None:
    async def main() -> None:
        async with kafka_node() as (_, client):
            for kind, name, first, second in (
                (TOPIC, "t", "retention_ms", "segment_ms"),
                (BROKER, "1", "log_retention_ms", "log_roll_ms"),
                (BROKER, "", "log_retention_ms", "log_roll_ms"),
            ):
                assert await replace_all(client, kind, name, version, **{first: "5"}) == 0
                assert await replace_all(client, kind, name, version, **{second: "6"}) == 0
                wrong = await replace_all(client, kind, name, version, **{first: "x"})
                assert wrong == KafkaError.INVALID_CONFIG
                nothing = await replace_all(client, kind, name, version, **{first: None})
                assert nothing == KafkaError.INVALID_REQUEST
                dynamic = {OWN, NODE, ALL}
                shown = (await describe(client, kind, name)).configs
                assert {
                    one.name: one.value
                    for one in shown
                    if one.config_source in dynamic and one.name == second.replace("_", ".")
                } == {second.replace("_", "."): "6"}
                assert await replace_all(client, kind, name, version) == 0

    asyncio.run(main())


def test_a_resource_that_is_named_twice_is_changed_by_neither() -> None:
    async def main() -> None:
        async with kafka_node() as (_, client):
            message = incremental_alter_configs_request
            change = message.AlterableConfig(name="retention.ms", config_operation=SET, value="5")
            one = message.AlterConfigsResource(
                resource_type=TOPIC, resource_name="t", configs=[change]
            )
            request = message.IncrementalAlterConfigsRequest(resources=[one, one])
            answer = await client.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, request)
            assert [result.error_code for result in answer.responses] == [42, 42]
            assert (await value(client, "retention.ms")).config_source == DEFAULT

    asyncio.run(main())


def test_a_change_is_seen_by_the_next_request_of_another_client() -> None:
    async def main() -> None:
        async with kafka_node() as (node, client):
            [endpoint] = [one for one in node.banner.listeners if one.name == "kafka"]
            other = await connect(int(endpoint.address.rsplit(":", 1)[1]))
            try:
                for number in range(5):
                    name = "log.retention.ms"
                    assert (await alter(client, BROKER, "", (name, SET, str(number))))[0] == 0
                    assert (await value(other, "retention.ms")).value == str(number)
            finally:
                await other.close()

    asyncio.run(main())


def test_resources_are_listed_by_type() -> None:
    async def main() -> None:
        async with kafka_node() as (_, client):

            async def listed(version: int, *kinds: int) -> tuple[int, set[tuple[int, str]]]:
                request = list_config_resources_request.ListConfigResourcesRequest(
                    resource_types=list(kinds) if version else []
                )
                answer = await client.ask(ApiKey.LIST_CONFIG_RESOURCES, version, request)
                return answer.error_code, {
                    (one.resource_type, one.resource_name) for one in answer.config_resources
                }

            assert await listed(0) == (0, set())
            assert await listed(1) == (0, {(TOPIC, "t"), (BROKER, "1")})
            assert await listed(1, TOPIC) == (0, {(TOPIC, "t")})
            assert await listed(1, GROUP, METRICS) == (0, set())
            assert await listed(1, 77) == (KafkaError.UNSUPPORTED_VERSION, set())

    asyncio.run(main())
