"""Calls over a network: of clients to nodes, and of nodes to nodes.

A request may take seconds to arrive, and the node may have gone meanwhile; an answer may be lost.
A caller that gives up does not know what became of its call, which goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeVar

from streamlog.errors import StreamlogError
from streamlog.runtime.rand import SeededRandom
from streamlog.testing.simulation.workloads.streams import POLL_S
from streamlog.testing.simulation.world.node import SimulationNode
from streamlog.testing.simulation.world.world import World

T = TypeVar("T")

LATE = 0.08
"""How many requests arrive late, by up to LATE_S_MAX."""
LATE_S_MAX = 3.0
LOST = 0.05
"""How many answers are lost."""
PATIENCE_S = 20.0


class NoAnswer(Exception):
    """The outcome of the call is unknown."""


class Network:
    """It outlives nodes, and so do its callers."""

    def __init__(self, world: World, random: SeededRandom) -> None:
        self._world = world
        self._random = random
        self._under_way: set[asyncio.Task[Any]] = set()

    async def call(
        self,
        node: SimulationNode,
        purpose: str,
        work: Callable[[SimulationNode], Awaitable[T]],
        patience_s: float = PATIENCE_S,
    ) -> T:
        """The answer of `work(node)`, which runs in the node. Errors: those of it; NoAnswer."""
        world = self._world
        gives_up_at = world.now + patience_s
        if self._fails(LATE):
            task = world.loop.create_task(self._late(node, purpose, work))
            self._keep(node, task)
        else:
            task = self._arrive(node, purpose, work)
        while not task.done():
            is_lost = world.now >= gives_up_at and not world.is_ending
            if is_lost or not node.is_serving:
                raise NoAnswer
            await asyncio.wait([task], timeout=POLL_S)
        if task.cancelled() or self._fails(LOST):
            raise NoAnswer
        return task.result()

    def cancel(self) -> None:
        """Ends the calls that nobody waits for."""
        for task in list(self._under_way):
            task.cancel()

    def _fails(self, chance: float) -> bool:
        return self._random.random() < chance and not self._world.faults.is_healed

    async def _late(
        self, node: SimulationNode, purpose: str, work: Callable[[SimulationNode], Awaitable[T]]
    ) -> T:
        await asyncio.sleep(LATE_S_MAX * self._random.random() ** 2)
        if not node.is_up:
            raise NoAnswer
        return await self._arrive(node, purpose, work)

    def _arrive(
        self, node: SimulationNode, purpose: str, work: Callable[[SimulationNode], Awaitable[T]]
    ) -> asyncio.Task[T]:
        task = node.incarnation.start(self._answered(node, purpose, work), name=purpose)
        self._keep(node, task)
        return task

    def _keep(self, node: SimulationNode, task: asyncio.Task[Any]) -> None:
        self._under_way.add(task)
        task.add_done_callback(partial(self._ended, node))

    async def _answered(
        self, node: SimulationNode, purpose: str, work: Callable[[SimulationNode], Awaitable[T]]
    ) -> T:
        with self._world.waiting(node, purpose):
            return await work(node)

    def _ended(self, node: SimulationNode, task: asyncio.Task[Any]) -> None:
        """An error that no client may meet ends the history, also where nobody waits any more."""
        self._under_way.discard(task)
        error = None if task.cancelled() else task.exception()
        is_expected = error is None or isinstance(error, StreamlogError | NoAnswer)
        if not is_expected and node.incarnation.is_alive:
            assert error is not None
            self._world.fail(error)
