"""DeleteRecords: the new log start offset, or the error, of each partition."""

from __future__ import annotations

import asyncio

import pytest

from streamlog.errors import PolicyViolation
from streamlog.kafka.messages.delete_records_request import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from streamlog.kafka.protocol.apis import APIS, ApiKey
from streamlog.kafka.protocol.errors import KafkaError
from streamlog.model.partition import TopicPartition
from tests.server.kafka.fetch_world import FetchWorld, fetch_world, world_over
from tests.support.server_fakes import FakeLogs, ListLog

API = APIS[ApiKey.DELETE_RECORDS]


async def deleted(
    world: FetchWorld,
    *wanted: tuple[int, int],
    topic: str = "t",
    version: int = API.last,
    timeout_ms: int = 10_000,
) -> list[tuple[int, int, int]]:
    """(partition, low watermark, error) of each; `wanted`: partitions and offsets."""
    parts = [DeleteRecordsPartition(partition_index=p, offset=offset) for p, offset in wanted]
    topics = [DeleteRecordsTopic(name=topic, partitions=parts)]
    request = DeleteRecordsRequest(topics=topics, timeout_ms=timeout_ms)
    response = await world.ask(ApiKey.DELETE_RECORDS, version, request)
    [found] = response.topics
    assert found.name == topic
    return [(one.partition_index, one.low_watermark, one.error_code) for one in found.partitions]


@pytest.mark.parametrize("version", range(API.first, API.last + 1))
def test_records_are_deleted_up_to_an_offset_or_the_high_watermark(version: int) -> None:
    async def main() -> None:
        async with fetch_world() as world:
            for partition in (0, 1):
                await world.append(b"a", b"b", b"c", partition=partition)
            answers = await deleted(world, (0, 1), (1, -1), version=version)
            assert answers == [(0, 1, 0), (1, 3, 0)]
            assert (await world.log(0)).log_start_offset == 1
            # The start is never lowered.
            assert await deleted(world, (0, 0), version=version) == [(0, 1, 0)]

    asyncio.run(main())


def test_each_partition_has_its_own_error() -> None:
    async def main() -> None:
        async with fetch_world() as world:
            await world.append(b"a")
            out, unknown = KafkaError.OFFSET_OUT_OF_RANGE, KafkaError.UNKNOWN_TOPIC_OR_PARTITION
            answers = await deleted(world, (0, 2), (9, 0), (1, -2), (2, 0), timeout_ms=0)
            assert answers == [(0, -1, out), (9, -1, unknown), (1, -1, out), (2, 0, 0)]
            assert await deleted(world, (0, 0), topic="none") == [(0, -1, unknown)]

    asyncio.run(main())


def test_a_log_that_does_not_delete_refuses() -> None:
    class Compacted(ListLog):
        async def delete_records(self, before_offset: int) -> int:
            raise PolicyViolation("the topic does not have cleanup.policy=delete")

    async def main() -> None:
        logs = FakeLogs()
        await logs.create_topic("t", 1)
        logs.open[TopicPartition("t", 0)] = Compacted(TopicPartition("t", 0))
        answers = await deleted(world_over(logs), (0, -1))
        assert answers == [(0, -1, KafkaError.POLICY_VIOLATION)]

    asyncio.run(main())


def test_the_answer_comes_when_the_time_is_up() -> None:
    class Stuck(ListLog):
        async def delete_records(self, before_offset: int) -> int:
            await asyncio.Event().wait()
            raise AssertionError("it never ends")

    async def main() -> None:
        logs = FakeLogs()
        await logs.create_topic("t", 1)
        logs.open[TopicPartition("t", 0)] = Stuck(TopicPartition("t", 0))
        async with asyncio.timeout(10):
            answers = await deleted(world_over(logs), (0, -1), timeout_ms=20)
        assert answers == [(0, -1, KafkaError.REQUEST_TIMED_OUT)]

    asyncio.run(main())
