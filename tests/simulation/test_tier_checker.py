"""The checker of remote tiers accepts a right tier and finds each wrong one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from uuid import UUID

import pytest

from streamlog.engine.kv_client import EngineKVClient
from streamlog.testing.simulation.checker import Violation
from streamlog.testing.simulation.local.node import PREFIX
from streamlog.testing.simulation.local.tier_checker import TierChecker
from streamlog.testing.simulation.world.environment import Environment
from streamlog.testing.simulation.world.faults import NO_FAULTS
from streamlog.testing.simulation.world.loop import SimulationLoop, run
from streamlog.tiered.api.segments import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    TopicIdPartition,
)
from streamlog.tiered.metadata.kv_records import encode_segment, segment_key
from streamlog.tiered.storage.names import segment_key as object_key

OF = TopicIdPartition(UUID(int=1), "t", 0)
FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
STARTED = RemoteLogSegmentState.COPY_SEGMENT_STARTED


class Tier:
    """Segments 0 to 9 and 10 to 19 are finished, with their objects."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimulationLoop)
        self.environment = Environment(1, "disk", loop, NO_FAULTS)
        self.checker = TierChecker(self.environment)
        self._kv = EngineKVClient(self.environment.kv, PREFIX)

    async def fill(self) -> None:
        for number in range(2):
            await self.put(number, 10 * number, 10 * number + 9)

    async def put(
        self, number: int, start: int, end: int, state: RemoteLogSegmentState = FINISHED
    ) -> RemoteLogSegmentMetadata:
        segment_id = RemoteLogSegmentId(OF, UUID(int=100 + number))
        one = RemoteLogSegmentMetadata(segment_id, start, end, 5, 1, 7, 4, state, {0: start})
        await self._kv.put_kv(segment_key(segment_id), encode_segment(one))
        await self.environment.store.put(object_key("remote", one, None), [b"1234"])
        return one

    async def look(self, start: int = 0, local_start: int = 20, stable: int = 30) -> None:
        await self.checker.look_at(start, local_start, stable)


def check(test: Callable[[Tier], Awaitable[None]]) -> None:
    async def main() -> None:
        tier = Tier()
        await tier.fill()
        await test(tier)

    run(main)


def test_a_right_tier_passes() -> None:
    async def test(tier: Tier) -> None:
        await tier.look()
        await tier.look(start=15, local_start=18)
        await tier.put(7, 0, 9)
        await tier.look()
        assert await tier.checker.left_over() == []

    check(test)


async def not_finished(tier: Tier) -> None:
    await tier.put(1, 10, 19, STARTED)


async def gap(tier: Tier) -> None:
    await tier.put(0, 0, 8)


async def unstable(tier: Tier) -> None:
    await tier.put(2, 20, 30, STARTED)


async def overlap(tier: Tier) -> None:
    await tier.put(2, 18, 25)


async def no_object(tier: Tier) -> None:
    one = await tier.put(1, 10, 19)
    await tier.environment.store.delete([object_key("remote", one, None)])


async def short_object(tier: Tier) -> None:
    one = await tier.put(1, 10, 19)
    await tier.environment.store.put(object_key("remote", one, None), [b"123"])


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (not_finished, "10 is in no finished segment"),
        (gap, "9 is in no finished segment"),
        (unstable, "is not below the last stable offset"),
        (overlap, "overlap"),
        (no_object, "is not there"),
        (short_object, "has 3 bytes"),
    ],
)
def test_a_wrong_tier_is_found(wrong: Callable[[Tier], Awaitable[None]], says: str) -> None:
    async def test(tier: Tier) -> None:
        await wrong(tier)
        with pytest.raises(Violation, match=says):
            await tier.look()

    check(test)


def test_what_is_left_over_is_named() -> None:
    async def test(tier: Tier) -> None:
        one = await tier.put(2, 20, 25, STARTED)
        lost = replace(one, remote_log_segment_id=RemoteLogSegmentId(OF, UUID(int=999)))
        await tier.environment.store.put(object_key("remote", lost, None), [b"1"])
        left = await tier.checker.left_over()
        assert [UUID(int=102).hex in item or UUID(int=999).hex in item for item in left] == [
            True,
            True,
            True,
        ]

    check(test)
