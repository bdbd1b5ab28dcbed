"""ListOffsets: special offsets, timestamps, and errors of single partitions."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from streamlog.codec.records import encode_values
from streamlog.errors import Invalid, OffsetNotAvailable
from streamlog.kafka.messages.list_offsets_request import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from streamlog.kafka.messages.list_offsets_response import ListOffsetsPartitionResponse
from streamlog.kafka.protocol.apis import APIS, ApiKey
from streamlog.kafka.protocol.errors import KafkaError
from streamlog.log.api.abstract_log import Isolation, TimestampAndOffset
from streamlog.model.partition import TopicPartition
from tests.server.kafka.fetch_world import FetchWorld, fetch_world, world_over
from tests.support.server_fakes import FakeLogs, ListLog

API = APIS[ApiKey.LIST_OFFSETS]
LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED = -1, -2, -3, -4, -5
NEWEST = API.last


def part(timestamp: int, partition: int = 0, epoch: int = -1) -> ListOffsetsPartition:
    return ListOffsetsPartition(
        partition_index=partition, timestamp=timestamp, current_leader_epoch=epoch
    )


def request(*parts: ListOffsetsPartition, topic: str = "t", **fields: Any) -> ListOffsetsRequest:
    topics = [ListOffsetsTopic(name=topic, partitions=list(parts))]
    return ListOffsetsRequest(**{"replica_id": -1, "topics": topics, **fields})


async def asked(
    world: FetchWorld, *parts: ListOffsetsPartition, version: int = NEWEST, **fields: Any
) -> list[ListOffsetsPartitionResponse]:
    response = await world.ask(ApiKey.LIST_OFFSETS, version, request(*parts, **fields))
    assert response.throttle_time_ms == 0
    [topic] = response.topics
    return list(topic.partitions)


def triple(answer: ListOffsetsPartitionResponse) -> tuple[int, int, int]:
    assert answer.error_code == 0
    return answer.offset, answer.timestamp, answer.leader_epoch


async def filled(world: FetchWorld) -> int:
    """Partition 0 holds offsets 1 to 5 with timestamps 20, 90, 30, 40, 50; its leader epoch."""
    log = await world.log()
    for stamps in ((10, 20), (90, 30), (40, 50)):
        data = encode_values([b"v"] * 2, timestamp_ms=0, timestamps_ms=stamps).data
        await (await log.append(bytes(data)))
    await log.delete_records(1)
    return log.leader_epoch


@pytest.mark.parametrize("version", range(API.first, API.last + 1))
def test_every_version_finds_the_ends_and_timestamps(version: int) -> None:
    async def main() -> None:
        async with fetch_world() as world:
            epoch = await filled(world) if version >= 4 else [await filled(world), -1][1]

            async def find(timestamp: int) -> tuple[int, int, int]:
                [answer] = await asked(world, part(timestamp), version=version)
                return triple(answer)

            assert await find(LATEST) == (6, -1, epoch)
            assert await find(EARLIEST) == (1, -1, epoch)
            assert await find(0) == (1, 20, epoch)
            assert await find(35) == (2, 90, epoch)
            assert await find(90) == (2, 90, epoch)
            assert await find(91) == (-1, -1, -1)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("timestamp", "since", "expected"),
    [
        (MAX_TIMESTAMP, 7, (2, 90)),
        (EARLIEST_LOCAL, 8, (1, -1)),
        (LATEST_TIERED, 9, (-1, -1)),
    ],
)
def test_newer_special_offsets_mean_nothing_in_older_versions(
    timestamp: int, since: int, expected: tuple[int, int]
) -> None:
    async def main() -> None:
        async with fetch_world() as world:
            await filled(world)
            [answer] = await asked(world, part(timestamp), version=since)
            assert triple(answer)[:2] == expected
            [answer] = await asked(world, part(timestamp), version=since - 1)
            assert (answer.error_code, answer.offset) == (KafkaError.UNSUPPORTED_VERSION, -1)

    asyncio.run(main())


def test_an_empty_partition_has_offset_0_at_both_ends_and_no_timestamp() -> None:
    async def main() -> None:
        async with fetch_world() as world:
            times = (LATEST, EARLIEST, MAX_TIMESTAMP, 5)
            answers = [(await asked(world, part(time)))[0] for time in times]
            assert [answer.offset for answer in answers] == [0, 0, -1, -1]
            assert {answer.error_code for answer in answers} == {0}

    asyncio.run(main())


def test_each_partition_has_its_own_answer_in_the_order_of_the_request() -> None:
    async def main() -> None:
        async with fetch_world() as world:
            epoch = await filled(world)
            answers = await asked(
                world,
                part(LATEST, 9),
                part(-6, 2),
                part(LATEST, 0, epoch),
                part(LATEST, 1),
                part(EARLIEST, 1),
            )
            codes = [(answer.partition_index, answer.error_code) for answer in answers]
            assert codes == [
                (9, KafkaError.UNKNOWN_TOPIC_OR_PARTITION),
                (2, KafkaError.UNSUPPORTED_VERSION),
                (0, 0),
                (1, KafkaError.INVALID_REQUEST),
            ]
            assert triple(answers[2]) == (6, -1, epoch)
            assert (answers[0].offset, answers[0].timestamp, answers[0].leader_epoch) == (-1,) * 3
            [answer] = await asked(world, part(LATEST), topic="none")
            assert answer.error_code == KafkaError.UNKNOWN_TOPIC_OR_PARTITION

    asyncio.run(main())


def test_leader_epochs_are_checked() -> None:
    async def main() -> None:
        async with fetch_world() as world:
            epoch = await filled(world)
            answers = [
                (await asked(world, part(LATEST, epoch=one)))[0]
                for one in (-2, epoch - 1, epoch, epoch + 1)
            ]
            assert [answer.error_code for answer in answers] == [
                KafkaError.FENCED_LEADER_EPOCH,
                KafkaError.FENCED_LEADER_EPOCH,
                0,
                KafkaError.UNKNOWN_LEADER_EPOCH,
            ]

    asyncio.run(main())


def test_the_isolation_reaches_the_log() -> None:
    class Recording(ListLog):
        asked: Isolation | None = None

        async def offset_for_timestamp(
            self, timestamp_ms: int, isolation: Isolation
        ) -> TimestampAndOffset:
            self.asked = isolation
            return TimestampAndOffset(-1, 5, 3)

    async def main() -> None:
        logs = FakeLogs()
        await logs.create_topic("t", 1)
        log = logs.open[TopicPartition("t", 0)] = Recording(TopicPartition("t", 0))
        world = world_over(logs)
        for level in (0, 1):
            [answer] = await asked(world, part(LATEST), isolation_level=level)
            assert (triple(answer), log.asked) == ((5, -1, 3), Isolation(level))

    asyncio.run(main())


def test_older_clients_hear_of_an_offset_that_is_not_available_in_their_words() -> None:
    class NotYet(ListLog):
        async def offset_for_timestamp(
            self, timestamp_ms: int, isolation: Isolation
        ) -> TimestampAndOffset:
            raise OffsetNotAvailable("not yet")

    async def main() -> None:
        logs = FakeLogs()
        await logs.create_topic("t", 1)
        logs.open[TopicPartition("t", 0)] = NotYet(TopicPartition("t", 0))
        world = world_over(logs)
        for version, code in (
            (4, KafkaError.LEADER_NOT_AVAILABLE),
            (5, KafkaError.OFFSET_NOT_AVAILABLE),
        ):
            [answer] = await asked(world, part(LATEST), version=version)
            assert answer.error_code == code

    asyncio.run(main())


@pytest.mark.parametrize("fields", [{"replica_id": 3}, {"isolation_level": 7}])
def test_followers_and_unknown_isolation_are_refused(fields: dict[str, Any]) -> None:
    async def main() -> None:
        async with fetch_world() as world:
            with pytest.raises(Invalid):
                await asked(world, part(LATEST), **fields)
            assert triple((await asked(world, part(LATEST), replica_id=-2))[0])[0] == 0

    asyncio.run(main())


def test_a_request_without_partitions_has_an_empty_answer() -> None:
    async def main() -> None:
        async with fetch_world() as world:
            empty = ListOffsetsRequest(replica_id=-1)
            assert (await world.ask(ApiKey.LIST_OFFSETS, NEWEST, empty)).topics == []

    asyncio.run(main())
