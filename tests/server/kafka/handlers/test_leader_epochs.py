"""OffsetForLeaderEpoch: where epochs end, and errors of single partitions."""

from __future__ import annotations

import asyncio

import pytest

from streamlog.errors import Invalid
from streamlog.kafka.messages.offset_for_leader_epoch_request import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from streamlog.kafka.messages.offset_for_leader_epoch_response import EpochEndOffset
from streamlog.kafka.protocol.apis import APIS, ApiKey
from streamlog.kafka.protocol.errors import KafkaError
from streamlog.model.partition import TopicPartition
from tests.server.kafka.fetch_world import FetchWorld, fetch_world
from tests.support.log_insides import leadership_of

API = APIS[ApiKey.OFFSET_FOR_LEADER_EPOCH]
UNDEFINED = (0, -1, -1)


async def asked(
    world: FetchWorld,
    epoch: int,
    *,
    current: int = -1,
    version: int = API.last,
    topic: str = "t",
    partition: int = 0,
    replica_id: int = -1,
) -> tuple[int, int, int]:
    """Error, leader epoch and end offset."""
    wanted = OffsetForLeaderPartition(
        partition=partition, current_leader_epoch=current, leader_epoch=epoch
    )
    request = OffsetForLeaderEpochRequest(
        replica_id=replica_id, topics=[OffsetForLeaderTopic(topic=topic, partitions=[wanted])]
    )
    response = await world.ask(ApiKey.OFFSET_FOR_LEADER_EPOCH, version, request)
    [found] = response.topics
    assert found.topic == topic
    [answer] = found.partitions
    assert isinstance(answer, EpochEndOffset)
    assert answer.partition == partition
    return answer.error_code, answer.leader_epoch, answer.end_offset


@pytest.mark.parametrize("version", range(API.first, API.last + 1))
def test_where_leader_epochs_end(version: int) -> None:
    async def main() -> None:
        async with fetch_world() as world:
            epochs = []
            leadership = leadership_of(world.logs)
            for _ in range(2):
                await world.append(b"a", b"b")
                epochs.append((await world.log()).leader_epoch)
                await leadership.assign(TopicPartition("t", 0), 9)
                await leadership.assign(TopicPartition("t", 0), leadership.node_id)
            first, second = epochs
            # No record has the leader's newest epoch yet.
            third = (await world.log()).leader_epoch
            assert await asked(world, third, version=version) == (0, third, 4)
            assert await asked(world, first, version=version) == (0, first, 2)
            assert await asked(world, second, version=version) == (0, second, 4)
            assert await asked(world, third + 9, version=version) == UNDEFINED
            assert await asked(world, -1, version=version) == UNDEFINED
            if first > 0:
                assert await asked(world, first - 1, version=version) == (0, first - 1, 0)

    asyncio.run(main())


def test_errors_are_the_partitions_own() -> None:
    async def main() -> None:
        async with fetch_world() as world:
            await world.append(b"a")
            epoch = (await world.log()).leader_epoch
            unknown = KafkaError.UNKNOWN_TOPIC_OR_PARTITION
            assert await asked(world, epoch, topic="none") == (unknown, -1, -1)
            assert await asked(world, epoch, partition=9) == (unknown, -1, -1)
            older, newer = KafkaError.FENCED_LEADER_EPOCH, KafkaError.UNKNOWN_LEADER_EPOCH
            assert await asked(world, epoch, current=epoch - 1) == (older, -1, -1)
            assert await asked(world, epoch, current=epoch + 1) == (newer, -1, -1)
            assert await asked(world, epoch, current=epoch) == (0, epoch, 1)

    asyncio.run(main())


def test_followers_are_refused() -> None:
    async def main() -> None:
        async with fetch_world() as world:
            for replica_id in (-1, -2):
                assert (await asked(world, 0, replica_id=replica_id))[0] == 0
            with pytest.raises(Invalid, match="follower"):
                await asked(world, 0, replica_id=1)

    asyncio.run(main())
