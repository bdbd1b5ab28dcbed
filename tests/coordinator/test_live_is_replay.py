"""After every record, a replay of the log's bytes comes to the state that is in force."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from random import Random

import pytest

from streamlog.coordinator import copy_forward as copying
from streamlog.coordinator.api import ProducerIdAndEpoch
from streamlog.coordinator.copy_forward import copy_forward
from streamlog.coordinator.transactions.state import EPOCH_LAST, Transaction, transition_to
from streamlog.errors import StoreUnavailable, StreamlogError
from tests.coordinator.world import A, B, Node, World, check_replay, init, run

NAMES = ("x", "y", "z")
CALLS = 150


class Caller:
    """Calls the coordinator with pairs that are the newest, the ones before, and wrong ones."""

    def __init__(self, world: World, node: Node, random: Random) -> None:
        self._world = world
        self._node = node
        self._random = random

    async def call(self) -> None:
        calls: list[Callable[[str, ProducerIdAndEpoch], Awaitable[object]]] = [
            self._init, self._add, self._add, self._end, self._end, self._abort, self._wear_out,
            self._time, self._copy, self._fail_markers,
        ]  # fmt: skip
        name = self._random.choice(NAMES)
        with suppress(StreamlogError):
            await self._random.choice(calls)(name, self._pair(name))

    def _pair(self, name: str) -> ProducerIdAndEpoch:
        known = self._known(name)
        if known is None:
            return ProducerIdAndEpoch(self._random.randint(0, 9), 0)
        older = ProducerIdAndEpoch(known.producer_id, known.producer_epoch - 1)
        former = ProducerIdAndEpoch(known.previous_producer_id, EPOCH_LAST)
        return self._random.choice((known.pair, known.pair, older, former))

    def _known(self, name: str) -> Transaction | None:
        for partition in self._node.coordinator.hosted.loaded:
            if (known := partition.table.get(name)) is not None:
                return known
        return None

    async def _init(self, name: str, pair: ProducerIdAndEpoch) -> None:
        expected = pair if self._random.random() < 0.5 else None
        await self._node.coordinator.init_producer_id(name, 60_000, expected)

    async def _add(self, name: str, pair: ProducerIdAndEpoch) -> None:
        await self._node.coordinator.add_partitions(name, pair, self._random.sample([A, B], 1))

    async def _end(self, name: str, pair: ProducerIdAndEpoch) -> None:
        is_commit, bumps_epoch = self._random.random() < 0.5, self._random.random() < 0.5
        await self._node.coordinator.end(name, pair, is_commit=is_commit, bumps_epoch=bumps_epoch)

    async def _abort(self, name: str, _: ProducerIdAndEpoch) -> None:
        await self._node.coordinator.abort(name)

    async def _time(self, _: str, __: ProducerIdAndEpoch) -> None:
        self._world.clock.skew_ms += self._random.choice((-5000, 61_000, 3_700_000))
        await self._node.coordinator.tick()
        await self._node.coordinator.expire()

    async def _copy(self, _: str, __: ProducerIdAndEpoch) -> None:
        for partition in self._node.coordinator.hosted.loaded:
            await copy_forward(partition)

    async def _fail_markers(self, _: str, __: ProducerIdAndEpoch) -> None:
        if self._random.random() < 0.5:
            self._world.markers.failing[A] = StoreUnavailable("away")
        else:
            self._world.markers.failing.clear()

    async def _wear_out(self, name: str, _: ProducerIdAndEpoch) -> None:
        """As many calls would: the epoch is one of the last."""
        epoch = EPOCH_LAST - self._random.randint(0, 2)
        for partition in self._node.coordinator.hosted.loaded:
            partition.change(
                name,
                lambda known, now_ms: transition_to(
                    known, known.state, now_ms, producer_epoch=max(epoch, known.producer_epoch)
                ),
            )


@pytest.mark.parametrize("seed", range(15))
def test_a_replay_comes_to_the_state_in_force_after_every_call(seed: int) -> None:
    async def test(world: World, node: Node) -> None:
        await init(node)
        caller = Caller(world, node, Random(seed))
        for _ in range(CALLS):
            await caller.call()
            await check_replay(node)
        assert node.coordinator.failure is None
        assert not copying.is_due(node.coordinator.hosted.loaded[0])

    run(test, id_expiration_ms=3_600_000)
