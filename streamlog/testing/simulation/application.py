"""`simulate`: an application on a simulated engine that crashes, in virtual time, by a seed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from streamlog.engine.config import StreamEngineConfig
from streamlog.errors import (
    Conflict,
    DeadlinePassed,
    Fenced,
    OutcomeUnknown,
    Unavailable,
    WalPending,
)
from streamlog.runtime.clock import Clock
from streamlog.runtime.rand import Random
from streamlog.testing.simulation.history import Failed
from streamlog.testing.simulation.world.faults import FAULTS, FaultRates
from streamlog.testing.simulation.world.loop import SimulationLoop, run
from streamlog.testing.simulation.world.node import NODE_CONFIG, Machine, Node
from streamlog.testing.simulation.world.world import WalMode, World
from streamlog.wiring import OpenEngine

PASSING = (Unavailable, OutcomeUnknown, Fenced, Conflict, WalPending, DeadlinePassed)
"""Errors that an application may let through: it is started again."""


@dataclass(frozen=True)
class Life:
    """One process lifetime of the node that the application runs in.

    `number` counts lives from 0; the last one, for which `is_calm`, has no faults and no crash.
    `clock` and `random` are the node's: an application that uses no others replays by its seed.
    """

    number: int
    is_calm: bool
    clock: Clock
    random: Random
    note: Callable[..., None]
    """`note(kind, *details)` adds a line to the trace; details must not change later."""


Application = Callable[[OpenEngine, Life], Awaitable[None]]


@dataclass(frozen=True)
class SimulationResult:
    """What a simulation went through; equal for equal seeds."""

    seed: int
    lives: int
    crashes: int
    faults: dict[str, int]
    virtual_s: float
    trace: list[str] = field(repr=False)


def simulate(
    application: Application,
    *,
    seed: int,
    check: Application | None = None,
    wal: WalMode = "object",
    lives: int = 4,
    life_s_max: float = 5.0,
    faults: FaultRates = FAULTS,
    config: StreamEngineConfig = NODE_CONFIG,
) -> SimulationResult:
    """Runs `application` on an engine in each of `lives` lifetimes, then `check` in calm.

    A lifetime ends after up to `life_s_max` virtual seconds: the process crashes, the power goes,
    or it is closed. The application is cancelled by that, at any await. What it must remember
    (what was promised to its own users) lies in its closure, as if outside the machine. An error
    that passes (`PASSING`) ends the application's run: it is started again in the same life.

    Errors: Failed, with the trace, when the application or the check raises anything else.
    `asyncio.sleep` and time-outs run in virtual time; threads and sockets are refused.
    """
    worlds: list[World] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimulationLoop)
        world = World(seed, wal, loop, faults)
        worlds.append(world)
        await _Simulation(world, application, check or application, config).run(lives, life_s_max)

    try:
        run(main)
    except Exception as error:
        raise Failed(seed, wal, error, worlds[0].trace.lines() if worlds else []) from error
    world = worlds[0]
    counts = world.faults_by_kind()
    return SimulationResult(
        seed, lives + 1, counts.get("crash", 0), counts, world.now, world.trace.lines()
    )


class _Simulation:
    def __init__(
        self,
        world: World,
        application: Application,
        check: Application,
        config: StreamEngineConfig,
    ) -> None:
        self._world = world
        self._application = application
        self._check = check
        self._machine = Machine(world, 1, config)
        self._random = world.fork()

    async def run(self, lives: int, life_s_max: float) -> None:
        world = self._world
        weather = world.loop.create_task(world.weather())
        for number in range(lives):
            await self._live(number, life_s_max)
        weather.cancel()
        world.calm()
        node = self._machine.start_node()
        await node.incarnation.start(node.open_until_up(), name="open")
        life = self._life(node, lives, is_calm=True)
        await node.incarnation.start(_awaited(self._check, node.engine, life), name="check")
        await node.close()

    async def _live(self, number: int, life_s_max: float) -> None:
        """One life with faults. Errors: what the application raises."""
        node, random = self._machine.start_node(), self._random.random
        working = node.incarnation.start(self._work(node, number), name="application")
        while not (node.is_up or working.done()):
            await asyncio.wait([working], timeout=0.05)
        await asyncio.wait([working], timeout=life_s_max * random())
        if working.done():
            working.result()
        if random() < 0.2:
            working.cancel()
            await node.close(timeout_s=30)
        else:
            node.crash(is_power_cut=random() < 0.5)

    async def _work(self, node: Node, number: int) -> None:
        """Until the life ends; an application that returns has done its work in this life."""
        engine = await node.open_until_up()
        life = self._life(node, number, is_calm=False)
        while True:
            try:
                await self._application(engine, life)
            except PASSING as error:
                self._world.trace.add("application-failed", node.name, type(error).__name__)
                await asyncio.sleep(0.2)
            else:
                await asyncio.get_running_loop().create_future()

    def _life(self, node: Node, number: int, *, is_calm: bool) -> Life:
        note = self._world.trace.add
        return Life(number, is_calm, node.clock, node.incarnation.random, note)


async def _awaited(application: Application, engine: OpenEngine, life: Life) -> None:
    await application(engine, life)
