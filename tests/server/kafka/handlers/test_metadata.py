"""Metadata and DescribeTopicPartitions over a real engine, in every version."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from streamlog.errors import Invalid, NotLeader
from streamlog.kafka.messages.describe_topic_partitions_request import (
    Cursor,
    DescribeTopicPartitionsRequest,
    TopicRequest,
)
from streamlog.kafka.messages.describe_topic_partitions_response import (
    DescribeTopicPartitionsResponse,
)
from streamlog.kafka.messages.metadata_request import MetadataRequest, MetadataRequestTopic
from streamlog.kafka.messages.metadata_response import MetadataResponse
from streamlog.kafka.protocol.apis import APIS, ApiKey
from streamlog.kafka.protocol.errors import KafkaError
from streamlog.kafka.protocol.primitives import ZERO_UUID
from streamlog.model.partition import TopicPartition
from streamlog.server.context import Authorize, Operation, allow_all
from streamlog.settings import Settings
from tests.support.kafka_handlers import (
    ADVERTISED,
    NODE_ID,
    KafkaHandlers,
    all_but,
    kafka_handlers,
)
from tests.support.server_harness import with_limits

NEWEST = 13
NOT_ASKED = -(1 << 31)
VERSIONS = range(APIS[ApiKey.METADATA].first, APIS[ApiKey.METADATA].last + 1)
Test = Callable[[KafkaHandlers], Awaitable[None]]


def run(test: Test, *, auto_create: bool = False, authorize: Authorize = allow_all) -> None:
    async def body() -> None:
        async with kafka_handlers(creating(auto_create), authorize, num_partitions=4) as kafka:
            await test(kafka)

    asyncio.run(body())


def creating(is_on: bool) -> Settings:
    settings = with_limits()
    broker = replace(settings.broker, auto_create_topics_enable=is_on)
    return replace(settings, broker=broker)


async def metadata(
    kafka: KafkaHandlers,
    names: Sequence[str] | None = None,
    *,
    version: int = NEWEST,
    ids: Sequence[bytes] | None = None,
    **fields: Any,
) -> MetadataResponse:
    topics = None
    if names is not None:
        topics = [MetadataRequestTopic(name=name) for name in names]
    if ids is not None:
        topics = [MetadataRequestTopic(name=None, topic_id=topic_id) for topic_id in ids]
    request = MetadataRequest(topics=topics, **fields)
    response = await kafka.ask(ApiKey.METADATA, version, request)
    assert isinstance(response, MetadataResponse)
    return response


def names_of(response: MetadataResponse) -> list[str | None]:
    return [topic.name for topic in response.topics]


def errors_of(response: MetadataResponse) -> dict[str | None, int]:
    return {topic.name: topic.error_code for topic in response.topics}


@pytest.mark.parametrize("version", VERSIONS)
def test_every_version_tells_nodes_topics_and_leaders(version: int) -> None:
    async def test(kafka: KafkaHandlers) -> None:
        await kafka.logs.create_topic("b", 2)
        await kafka.logs.create_topic("a", 1)
        for asked in (None if version else [], ["b", "a", "b"]):
            response = await metadata(kafka, asked, version=version)
            (broker,) = response.brokers
            assert (broker.node_id, broker.host, broker.port) == (NODE_ID, *ADVERTISED)
            assert broker.rack is None
            assert response.controller_id == (NODE_ID if version >= 1 else -1)
            assert response.cluster_id == ("cluster" if version >= 2 else None)
            assert response.cluster_authorized_operations == NOT_ASKED
            assert response.error_code == response.throttle_time_ms == 0
            assert names_of(response) == ["a", "b"]
            first, second = response.topics
            assert [one.partition_index for one in second.partitions] == [0, 1]
            assert first.topic_id == (kafka.topic_id("a") if version >= 10 else ZERO_UUID)
            for topic in (first, second):
                assert (topic.error_code, topic.is_internal) == (0, False)
                assert topic.topic_authorized_operations == NOT_ASKED
                for partition in topic.partitions:
                    assert (partition.error_code, partition.leader_id) == (0, NODE_ID)
                    assert list(partition.replica_nodes) == [NODE_ID]
                    assert list(partition.isr_nodes) == [NODE_ID]
                    assert list(partition.offline_replicas) == []

    run(test)


def test_no_topics_are_all_of_them_in_version_0_alone() -> None:
    async def test(kafka: KafkaHandlers) -> None:
        await kafka.logs.create_topic("a", 1)
        assert names_of(await metadata(kafka, [], version=0)) == ["a"]
        for version in VERSIONS[1:]:
            assert names_of(await metadata(kafka, [], version=version)) == []
            assert names_of(await metadata(kafka, None, version=version)) == ["a"]

    run(test)


def test_topics_are_found_by_their_ids() -> None:
    async def test(kafka: KafkaHandlers) -> None:
        await kafka.logs.create_topic("a", 2)
        for version in (12, 13):
            unknown = b"?" * 16
            response = await metadata(kafka, version=version, ids=[unknown, kafka.topic_id("a")])
            by_id = {topic.topic_id: topic for topic in response.topics}
            assert by_id[unknown].error_code == KafkaError.UNKNOWN_TOPIC_ID
            assert by_id[unknown].name is None
            found = by_id[kafka.topic_id("a")]
            assert (found.name, found.error_code, len(found.partitions)) == ("a", 0, 2)
        for version in (10, 11):
            with pytest.raises(Invalid, match="by name alone"):
                await metadata(kafka, version=version, ids=[kafka.topic_id("a")])
        with pytest.raises(Invalid, match="neither name nor id"):
            await metadata(kafka, ids=[ZERO_UUID])

    run(test)


def test_a_topic_made_anew_has_another_id() -> None:
    async def test(kafka: KafkaHandlers) -> None:
        await kafka.logs.create_topic("a", 1)
        old = kafka.topic_id("a")
        assert (await metadata(kafka, ["a"])).topics[0].topic_id == old
        await kafka.logs.delete_topic("a")
        assert names_of(await metadata(kafka)) == []
        await kafka.logs.create_topic("a", 3)
        for asked in (["a"], None):
            (topic,) = (await metadata(kafka, asked)).topics
            assert topic.topic_id == kafka.topic_id("a") != old
            assert len(topic.partitions) == 3
        assert errors_of(await metadata(kafka, ids=[old])) == {None: KafkaError.UNKNOWN_TOPIC_ID}

    run(test)


def test_new_partitions_are_told_at_once() -> None:
    async def test(kafka: KafkaHandlers) -> None:
        await kafka.logs.create_topic("a", 1)
        await metadata(kafka)
        await kafka.logs.create_partitions("a", 3)
        for asked in (["a"], None):
            assert len((await metadata(kafka, asked)).topics[0].partitions) == 3

    run(test)


def test_authorised_operations_are_bits_where_they_are_asked_for() -> None:
    async def test(kafka: KafkaHandlers) -> None:
        await kafka.logs.create_topic("a", 1)
        for asked in (["a"], None):
            for version in VERSIONS[8:]:
                response = await metadata(
                    kafka, asked, version=version, include_topic_authorized_operations=True
                )
                # READ 3, CREATE 5, DELETE 6, ALTER 7, DESCRIBE 8, and of settings 10 and 11.
                bits = sum(1 << code for code in (3, 5, 6, 7, 8, 10, 11))
                assert response.topics[0].topic_authorized_operations == bits
            plain = await metadata(kafka, asked)
            assert plain.topics[0].topic_authorized_operations == NOT_ASKED
        for version in (8, 9, 10):
            response = await metadata(
                kafka, [], version=version, include_cluster_authorized_operations=True
            )
            # CREATE 5, ALTER 7, DESCRIBE 8, of settings 10 and 11, IDEMPOTENT_WRITE 12.
            bits = sum(1 << code for code in (5, 7, 8, 10, 11, 12))
            assert response.cluster_authorized_operations == bits

    run(test, authorize=all_but((Operation.WRITE, "a")))


def test_a_topic_is_made_where_client_and_broker_allow_it() -> None:
    async def test(kafka: KafkaHandlers) -> None:
        for version in VERSIONS:
            name = f"new{version}"
            unknown = KafkaError.UNKNOWN_TOPIC_OR_PARTITION
            if version >= 4:
                response = await metadata(
                    kafka, [name], version=version, allow_auto_topic_creation=False
                )
                assert errors_of(response) == {name: unknown}
                assert kafka.logs.topic(name) is None
            response = await metadata(kafka, [name], version=version)
            assert errors_of(response) == {name: unknown}
            assert response.topics[0].topic_id == ZERO_UUID
            await kafka.until_made(name)
            (topic,) = (await metadata(kafka, [name], version=version)).topics
            assert (topic.error_code, len(topic.partitions)) == (0, 4)

    run(test, auto_create=True)


def test_no_topic_is_made_that_has_a_bad_name_or_is_kafkas_own() -> None:
    async def test(kafka: KafkaHandlers) -> None:
        asked = ["a b", "..", "", "x" * 250, "__consumer_offsets"]
        response = await metadata(kafka, asked)
        wrong = KafkaError.INVALID_TOPIC_EXCEPTION
        assert errors_of(response) == {
            **dict.fromkeys(asked[:4], wrong),
            "__consumer_offsets": KafkaError.UNKNOWN_TOPIC_OR_PARTITION,
        }
        internal = {topic.name for topic in response.topics if topic.is_internal}
        assert internal == {"__consumer_offsets"}
        assert names_of(await metadata(kafka)) == []

    run(test, auto_create=True)


def test_no_topic_is_made_where_the_broker_or_the_principal_may_not() -> None:
    async def without_the_right(kafka: KafkaHandlers) -> None:
        response = await metadata(kafka, ["a", "b"])
        assert errors_of(response) == {
            "a": KafkaError.TOPIC_AUTHORIZATION_FAILED,
            "b": KafkaError.UNKNOWN_TOPIC_OR_PARTITION,
        }
        await kafka.until_made("b")
        assert kafka.logs.topic("a") is None

    async def switched_off(kafka: KafkaHandlers) -> None:
        assert errors_of(await metadata(kafka, ["a"])) == {
            "a": KafkaError.UNKNOWN_TOPIC_OR_PARTITION
        }
        assert names_of(await metadata(kafka)) == []

    refused = all_but((Operation.CREATE, ""), (Operation.CREATE, "a"))
    run(without_the_right, auto_create=True, authorize=refused)
    run(switched_off)


def test_topics_without_the_right_to_describe_them_are_hidden() -> None:
    async def test(kafka: KafkaHandlers) -> None:
        for name in ("a", "b"):
            await kafka.logs.create_topic(name, 1)
        assert names_of(await metadata(kafka)) == ["a"]
        assert names_of(await metadata(kafka, [], version=0)) == ["a"]
        # The same answer for a topic that is there and one that is not.
        refused = (await metadata(kafka, ["b", "c"])).topics
        assert [(topic.name, topic.error_code) for topic in refused] == [
            ("b", KafkaError.TOPIC_AUTHORIZATION_FAILED),
            ("c", KafkaError.TOPIC_AUTHORIZATION_FAILED),
        ]
        assert {topic.topic_id for topic in refused} == {ZERO_UUID}
        (by_id,) = (await metadata(kafka, ids=[kafka.topic_id("b")])).topics
        assert (by_id.name, by_id.error_code) == (None, KafkaError.TOPIC_AUTHORIZATION_FAILED)
        assert kafka.logs.topic("c") is None

    hidden = all_but((Operation.DESCRIBE, "b"), (Operation.DESCRIBE, "c"))
    run(test, auto_create=True, authorize=hidden)


def test_a_partition_of_a_node_that_is_not_there_has_no_leader() -> None:
    async def test(kafka: KafkaHandlers) -> None:
        await kafka.logs.create_topic("a", 3)
        await metadata(kafka)
        await kafka.leadership.assign(TopicPartition("a", 1), 77)
        await kafka.leadership.assign(TopicPartition("a", 2), None)
        for asked in (["a"], None):
            first, second, third = (await metadata(kafka, asked)).topics[0].partitions
            assert (first.error_code, first.leader_id) == (0, NODE_ID)
            for partition, replicas in ((second, [77]), (third, [])):
                assert partition.error_code == KafkaError.LEADER_NOT_AVAILABLE
                assert partition.leader_id == -1
                assert partition.replica_nodes == partition.isr_nodes == replicas
                assert partition.offline_replicas == replicas
        with pytest.raises(NotLeader):
            await kafka.logs.log(TopicPartition("a", 1))
        # The partition comes back, and clients that ask again see it.
        await kafka.leadership.assign(TopicPartition("a", 1), NODE_ID)
        assert [one.leader_id for one in (await metadata(kafka)).topics[0].partitions] == [1, 1, -1]

    run(test)


def test_leader_epochs_are_those_of_open_logs_and_never_fall() -> None:
    async def epochs(kafka: KafkaHandlers) -> list[int]:
        by_name = [one.leader_epoch for one in (await metadata(kafka, ["a"])).topics[0].partitions]
        (of_all,) = (await metadata(kafka)).topics
        assert [one.leader_epoch for one in of_all.partitions] == by_name
        return by_name

    async def test(kafka: KafkaHandlers) -> None:
        await kafka.logs.create_topic("a", 2)
        assert await epochs(kafka) == [-1, -1]
        partition = TopicPartition("a", 1)
        first = (await kafka.logs.log(partition)).leader_epoch
        assert await epochs(kafka) == [-1, first]
        await kafka.leadership.assign(partition, 77)
        assert await epochs(kafka) == [-1, first]
        await kafka.leadership.assign(partition, NODE_ID)
        assert await epochs(kafka) == [-1, first]
        second = (await kafka.logs.log(partition)).leader_epoch
        assert second > first
        assert await epochs(kafka) == [-1, second]
        assert kafka.logs.open_log(TopicPartition("a", 0)) is None
        # Another topic of the name begins anew.
        await kafka.logs.delete_topic("a")
        await kafka.logs.create_topic("a", 2)
        assert await epochs(kafka) == [-1, -1]

    run(test)


async def described(
    kafka: KafkaHandlers,
    names: Sequence[str] = (),
    *,
    limit: int = 2000,
    cursor: tuple[str, int] | None = None,
) -> DescribeTopicPartitionsResponse:
    request = DescribeTopicPartitionsRequest(
        topics=[TopicRequest(name=name) for name in names],
        response_partition_limit=limit,
        cursor=cursor and Cursor(topic_name=cursor[0], partition_index=cursor[1]),
    )
    response = await kafka.ask(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, request)
    assert isinstance(response, DescribeTopicPartitionsResponse)
    return response


def test_partitions_are_described_page_by_page() -> None:
    async def pages(kafka: KafkaHandlers, names: Sequence[str], limit: int) -> list[list[str]]:
        found: list[list[str]] = []
        cursor: tuple[str, int] | None = None
        while True:
            response = await described(kafka, names, limit=limit, cursor=cursor)
            found.append(
                [
                    f"{topic.name}-{partition.partition_index}"
                    for topic in response.topics
                    for partition in topic.partitions
                ]
            )
            if response.next_cursor is None:
                return found
            cursor = response.next_cursor.topic_name, response.next_cursor.partition_index

    async def test(kafka: KafkaHandlers) -> None:
        for name, partitions in (("a", 3), ("b", 1), ("c", 2)):
            await kafka.logs.create_topic(name, partitions)
        every = ["a-0", "a-1", "a-2", "b-0", "c-0", "c-1"]
        for limit in (-1, 0, 1, 2, 3, 4, 5, 6, 7):
            size = max(1, limit)
            expected = [every[start : start + size] for start in range(0, len(every), size)]
            assert await pages(kafka, (), limit) == expected
            assert await pages(kafka, ("c", "a", "b", "a"), limit) == expected
        assert await pages(kafka, ("c", "a"), 4) == [["a-0", "a-1", "a-2", "c-0"], ["c-1"]]
        with pytest.raises(Invalid, match="cursor"):
            await described(kafka, cursor=("a", -1))
        with pytest.raises(Invalid, match="cursor"):
            await described(kafka, ("a", "b"), cursor=("c", 0))

    run(test)


def test_described_topics_have_errors_of_their_own() -> None:
    async def test(kafka: KafkaHandlers) -> None:
        for name in ("a", "hidden"):
            await kafka.logs.create_topic(name, 1)
        response = await described(kafka, ["nope", "a", "hidden", "a b"])
        errors = {topic.name: topic.error_code for topic in response.topics}
        assert errors == {
            "a": 0,
            "a b": KafkaError.INVALID_TOPIC_EXCEPTION,
            "hidden": KafkaError.TOPIC_AUTHORIZATION_FAILED,
            "nope": KafkaError.UNKNOWN_TOPIC_OR_PARTITION,
        }
        assert kafka.logs.topic("nope") is None
        (topic,) = (await described(kafka)).topics
        assert (topic.name, topic.topic_id) == ("a", kafka.topic_id("a"))
        assert topic.topic_authorized_operations == 3576
        (partition,) = topic.partitions
        assert list(partition.replica_nodes) == list(partition.isr_nodes) == [NODE_ID]
        assert partition.eligible_leader_replicas == partition.last_known_elr == []

    run(test, auto_create=True, authorize=all_but((Operation.DESCRIBE, "hidden")))
