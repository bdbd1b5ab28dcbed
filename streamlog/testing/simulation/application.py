"""`simulate`: an application on a simulated engine that crashes, in virtual time, by a seed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from streamlog.engine.config import StreamEngineConfig
from streamlog.model.numbers import checked_int, whole_number
from streamlog.runtime.clock import Clock
from streamlog.runtime.rand import Random
from streamlog.testing.simulation.history import Failed
from streamlog.testing.simulation.workloads.streams import PASSING
from streamlog.testing.simulation.world.faults import FAULTS, FaultRates
from streamlog.testing.simulation.world.loop import SimulationLoop, TimeLimit, run
from streamlog.testing.simulation.world.node import NODE_CONFIG, SimulationNode
from streamlog.testing.simulation.world.world import World
from streamlog.wal.config import WalMode
from streamlog.wiring import OpenEngine

LIVES_MAX = 1_000_000
CHECK_S_MAX = 3600.0
"""Virtual seconds that the check may take: it waits for what never comes. Some seconds of a
processor."""


@dataclass(frozen=True)
class Life:
    """One process lifetime of the node that the application runs in.

    `number` counts lives from 0. The last life is healed: it has no faults and no crash.
    `clock` and `random` are the node's: an application that uses no others replays by its seed.
    """

    number: int
    is_healed: bool
    clock: Clock
    random: Random
    note: Callable[..., None]
    """`note(kind, *details)` adds a line to the trace; details must not change later."""

    @property
    def is_calm(self) -> bool:
        """The earlier name of `is_healed`."""
        return self.is_healed


Application = Callable[[OpenEngine, Life], Awaitable[None]]


@dataclass(frozen=True)
class SimulationResult:
    """Counts and trace of a simulation; equal for equal seeds. `lives`: with that of the check."""

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
    """Runs `application` on an engine in each of `lives` lifetimes, then `check` without faults.

    A lifetime ends after up to `life_s_max` virtual seconds: the process crashes, the power fails,
    or the node is closed. That cancels the application at any await. What the application must
    remember (promises to its own clients) lies in its closure, as if outside the machine. A passing
    error (`PASSING`) ends one run of the application; the next run begins in the same life.

    Errors: Failed, with the trace, when the application or the check raises anything else, when a
    task that they made ended with anything else and nobody had awaited it when the life ended, or
    when the check takes more than CHECK_S_MAX.
    `asyncio.sleep` and time-outs run in virtual time; threads and sockets raise.
    """
    seed = whole_number("seed", seed)
    checked_int("lives", lives, 1, LIVES_MAX)
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
        self._machine = world.add_machine(1, config)
        self._random = world.fork()

    async def run(self, lives: int, life_s_max: float) -> None:
        world = self._world
        nemesis = world.loop.create_task(world.nemesis())
        for number in range(lives):
            await self._live(number, life_s_max)
        nemesis.cancel()
        world.heal()
        node = world.start_node(self._machine)
        await node.incarnation.start(node.open_until_up(), name="open")
        life = self._life(node, lives, is_healed=True)
        await node.incarnation.start(_checked(self._check, node.engine, life), name="check")
        await node.close()
        _raise_untaken(node)

    async def _live(self, number: int, life_s_max: float) -> None:
        """One life with faults. Errors: what the application raises."""
        node, random = self._world.start_node(self._machine), self._random.random
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
        _raise_untaken(node)

    async def _work(self, node: SimulationNode, number: int) -> None:
        """Runs the application until the life ends, or until it returns and waits for that."""
        engine = await node.open_until_up()
        life = self._life(node, number, is_healed=False)
        while True:
            try:
                await self._application(engine, life)
            except PASSING as error:
                self._world.trace.add("application-failed", node.name, type(error).__name__)
                await asyncio.sleep(0.2)
            else:
                await asyncio.get_running_loop().create_future()

    def _life(self, node: SimulationNode, number: int, *, is_healed: bool) -> Life:
        note = self._world.trace.add
        return Life(number, is_healed, node.clock, node.incarnation.random, note)


def _raise_untaken(node: SimulationNode) -> None:
    """Errors: that of a task which failed unnoticed, unless a restart of its work would do."""
    for error in node.incarnation.untaken:
        rest: BaseException | None = None if isinstance(error, PASSING) else error
        if isinstance(error, BaseExceptionGroup):
            rest = error.split((*PASSING, asyncio.CancelledError))[1]
        if rest is not None:
            raise rest


async def _checked(check: Application, engine: OpenEngine, life: Life) -> None:
    try:
        async with asyncio.timeout(CHECK_S_MAX) as bound:
            await check(engine, life)
    except TimeoutError as error:
        if not bound.expired():
            raise
        # The cause ends where the check waited.
        raise TimeLimit(f"the check did not end within {CHECK_S_MAX:.0f} s") from error
