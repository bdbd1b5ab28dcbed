"""DescribeCluster, ListPartitionReassignments and DescribeLogDirs over a real engine."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence

import pytest

from streamlog.codec.records import encode_values
from streamlog.kafka.messages.describe_cluster_request import DescribeClusterRequest
from streamlog.kafka.messages.describe_cluster_response import DescribeClusterResponse
from streamlog.kafka.messages.describe_log_dirs_request import (
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
)
from streamlog.kafka.messages.describe_log_dirs_response import DescribeLogDirsResponse
from streamlog.kafka.messages.list_partition_reassignments_request import (
    ListPartitionReassignmentsRequest,
)
from streamlog.kafka.protocol.apis import ApiKey
from streamlog.kafka.protocol.errors import KafkaError
from streamlog.model.partition import TopicPartition
from streamlog.server.context import Authorize, Operation, allow_all
from streamlog.server.services import partition_sizes
from tests.support.kafka_handlers import (
    ADVERTISED,
    NODE_ID,
    KafkaHandlers,
    all_but,
    kafka_handlers,
)

NOT_ASKED = -(1 << 31)
CONTROLLERS = 2
Test = Callable[[KafkaHandlers], Awaitable[None]]
MAY_NOT_DESCRIBE = all_but((Operation.DESCRIBE, ""))


def run(test: Test, authorize: Authorize = allow_all) -> None:
    async def body() -> None:
        async with kafka_handlers(authorize=authorize) as kafka:
            await test(kafka)

    asyncio.run(body())


async def cluster(
    kafka: KafkaHandlers, version: int, *, asked: bool = False, endpoint_type: int = 1
) -> DescribeClusterResponse:
    request = DescribeClusterRequest(include_cluster_authorized_operations=asked)
    if version >= 1:
        request.endpoint_type = endpoint_type
    if version >= 2:
        request.include_fenced_brokers = True
    response = await kafka.ask(ApiKey.DESCRIBE_CLUSTER, version, request)
    assert isinstance(response, DescribeClusterResponse)
    return response


@pytest.mark.parametrize("version", range(3))
def test_the_cluster_is_this_node(version: int) -> None:
    async def test(kafka: KafkaHandlers) -> None:
        response = await cluster(kafka, version)
        assert (response.error_code, response.error_message) == (0, None)
        assert (response.cluster_id, response.controller_id) == ("cluster", NODE_ID)
        (broker,) = response.brokers
        assert (broker.broker_id, broker.host, broker.port) == (NODE_ID, *ADVERTISED)
        assert (broker.rack, broker.is_fenced) == (None, False)
        assert response.cluster_authorized_operations == NOT_ASKED
        asked = await cluster(kafka, version, asked=True)
        assert asked.cluster_authorized_operations == sum(1 << n for n in (5, 7, 8, 10, 11, 12))

    run(test)


def test_a_principal_without_the_right_is_told_the_nodes_alone() -> None:
    async def test(kafka: KafkaHandlers) -> None:
        response = await cluster(kafka, 2, asked=True)
        assert (response.error_code, len(response.brokers)) == (0, 1)
        assert response.cluster_authorized_operations == 0

    run(test, MAY_NOT_DESCRIBE)


def test_there_are_no_endpoints_of_controllers() -> None:
    async def test(kafka: KafkaHandlers) -> None:
        for version in (1, 2):
            response = await cluster(kafka, version, endpoint_type=CONTROLLERS)
            assert response.error_code == KafkaError.MISMATCHED_ENDPOINT_TYPE
            assert response.error_message
            response = await cluster(kafka, version, endpoint_type=9)
            assert response.error_code == KafkaError.UNSUPPORTED_ENDPOINT_TYPE
            assert response.error_message

    run(test)


def test_no_reassignment_is_under_way() -> None:
    async def test(kafka: KafkaHandlers) -> None:
        request = ListPartitionReassignmentsRequest()
        response = await kafka.ask(ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, request)
        assert (response.error_code, response.error_message, response.topics) == (0, None, [])

    async def refused(kafka: KafkaHandlers) -> None:
        request = ListPartitionReassignmentsRequest()
        response = await kafka.ask(ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, request)
        assert response.error_code == KafkaError.CLUSTER_AUTHORIZATION_FAILED

    run(test)
    run(refused, MAY_NOT_DESCRIBE)


async def log_dirs(
    kafka: KafkaHandlers, asked: Mapping[str, Sequence[int]] | None = None, version: int = 4
) -> DescribeLogDirsResponse:
    topics = None
    if asked is not None:
        topics = [
            DescribableLogDirTopic(topic=name, partitions=list(partitions))
            for name, partitions in asked.items()
        ]
    response = await kafka.ask(
        ApiKey.DESCRIBE_LOG_DIRS, version, DescribeLogDirsRequest(topics=topics)
    )
    assert isinstance(response, DescribeLogDirsResponse)
    return response


def sizes_of(response: DescribeLogDirsResponse) -> dict[str, dict[int, int]]:
    (log_dir,) = response.results
    return {
        topic.name: {one.partition_index: one.partition_size for one in topic.partitions}
        for topic in log_dir.topics
    }


@pytest.mark.parametrize("version", range(1, 5))
def test_partitions_have_the_sizes_of_their_logs(version: int) -> None:
    async def test(kafka: KafkaHandlers) -> None:
        await kafka.logs.create_topic("a", 2)
        await kafka.logs.create_topic("b", 1)
        log = await kafka.logs.log(TopicPartition("a", 1))
        batch = encode_values([b"value"], timestamp_ms=1).data
        await (await log.append(batch))
        response = await log_dirs(kafka, version=version)
        assert response.error_code == 0
        assert sizes_of(response) == {"a": {0: 0, 1: len(batch)}, "b": {0: 0}}
        (log_dir,) = response.results
        assert (log_dir.error_code, log_dir.total_bytes, log_dir.usable_bytes) == (0, -1, -1)
        every = [one for topic in log_dir.topics for one in topic.partitions]
        assert {(one.offset_lag, one.is_future_key) for one in every} == {(0, False)}
        asked = {"a": [1, 7, -1], "nope": [0]}
        assert sizes_of(await log_dirs(kafka, asked, version)) == {"a": {1: len(batch)}}
        assert sizes_of(await log_dirs(kafka, {}, version)) == {}

    run(test)


def test_partitions_of_other_nodes_and_a_great_many_closed_ones_are_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def test(kafka: KafkaHandlers) -> None:
        await kafka.logs.create_topic("a", 10)
        await kafka.leadership.assign(TopicPartition("a", 0), 77)
        await kafka.logs.log(TopicPartition("a", 9))
        assert list(sizes_of(await log_dirs(kafka))["a"]) == [1, 2, 3, 9]

    monkeypatch.setattr(partition_sizes, "OPENS_MAX", 3)
    run(test)


def test_sizes_need_the_right_to_describe_the_cluster() -> None:
    async def test(kafka: KafkaHandlers) -> None:
        await kafka.logs.create_topic("a", 1)
        for version in range(1, 5):
            response = await log_dirs(kafka, version=version)
            assert list(response.results) == []
            expected = KafkaError.CLUSTER_AUTHORIZATION_FAILED if version >= 3 else 0
            assert response.error_code == expected

    run(test, MAY_NOT_DESCRIBE)
