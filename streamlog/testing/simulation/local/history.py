"""One seeded history of a node with a log folder.

1. A node lives on a machine for a random time. It ends by a crash within its disk accesses, a power
   cut or a clean close, or it stands still for a while first. The next process has the same folder.
2. Clients use a topic that expires and a topic that is compacted; or a topic with a remote tier,
   and then a node may live on, without its disk, beside the one that has its folder now.
3. The history goes on until it had enough operations, faults and crashes.
4. Then the world heals: every call that waits is answered, every transaction is ended, and every
   promise is checked on three nodes in a row: the last one, and after a clean end and a crash.
5. At the end the topics are deleted, and nothing of them is left, in either tier.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from streamlog.errors import NotFound, TopicAlreadyExists, Unavailable
from streamlog.log.api.abstract_log import AbstractLog
from streamlog.log.api.tiering import TierableLog
from streamlog.model.partition import TopicPartition
from streamlog.testing.simulation.checker import Violation, few
from streamlog.testing.simulation.history import Failed, Report
from streamlog.testing.simulation.local.engine_node import EngineMachine
from streamlog.testing.simulation.local.keeping import keep
from streamlog.testing.simulation.local.node import CLOCK_SKEW_MS, LogMachine, LogNode
from streamlog.testing.simulation.local.remote import TIER_CONFIG, TOPIC_TIER_CONFIG
from streamlog.testing.simulation.local.tier_checker import TierChecker
from streamlog.testing.simulation.local.topic_tier_checker import TopicTierChecker
from streamlog.testing.simulation.local.world import LocalWorld
from streamlog.testing.simulation.numbered.clients import PASSING, PartitionClients
from streamlog.testing.simulation.numbered.model import NumberedLogModel
from streamlog.testing.simulation.world.faults import FAULTS, LATE_EFFECT_S_MAX, FaultRates
from streamlog.testing.simulation.world.loop import SimulationLoop, run
from streamlog.tiered.config import RemoteLogConfig
from streamlog.tiered.reading.index_cache import FOLDER as INDEX_CACHE

ANSWER_S_MAX = 150.0
"""Virtual seconds within which a healed node answers."""
UNHEALED_S_MAX = 1500.0
"""Within which the last node before that comes up, whose every try may meet a fault."""
HISTORY_S_MAX = 1800.0
LEFT_OVER_S_MAX = 120.0
"""Virtual seconds within which a healed node has removed what copies and deletions left."""
WATCH_S = 0.2
ZOMBIE_S_MAX = 6.0
EXPIRING, COMPACTED, TIERED = "expiring", "compacted", "tiered"
SETTINGS = {
    "log.type": "unified",
    "internal.segment.bytes": "900",
    "index.interval.bytes": "200",
}
"""Segments roll within a second."""


LOCAL_FAULTS = replace(FAULTS, disk=0.004, outage=0.03, disk_full=0.15)


@dataclass(frozen=True)
class LocalPlan:
    """The size of a history: it goes on until all minimums are reached."""

    operations_min: int = 150
    faults_min: int = 15
    crashes_min: int = 2
    lives_min: int = 4
    life_s_max: float = 2.5
    rates: FaultRates = LOCAL_FAULTS
    tiers: RemoteLogConfig | None = None
    """How nodes keep the remote tier of the one topic; None: the topics have none."""
    has_engine: bool = False
    """With tiers: nodes have an engine, and the tier's metadata in a topic of its shared logs."""
    zombies: float = 0.2
    """Share of the lives, with tiers, that go on beside the next one."""


UNIFIED_PLAN = LocalPlan()
TIERED_PLAN = LocalPlan(tiers=TIER_CONFIG)
TIERED_TOPIC_PLAN = LocalPlan(tiers=TOPIC_TIER_CONFIG, has_engine=True)


def run_local_history(
    seed: int, plan: LocalPlan = UNIFIED_PLAN, *, keep_trace: bool = True
) -> Report:
    """Runs the history of `seed`. Raises Failed."""
    report = Report(seed, "disk")
    worlds: list[LocalWorld] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimulationLoop)
        worlds.append(LocalWorld(seed, loop, plan.rates))
        await _LocalHistory(worlds[0], plan).run()

    try:
        run(main, limit_s=HISTORY_S_MAX)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt | SystemExit):
            raise
        raise Failed(seed, "disk", error, worlds[0].trace.lines() if worlds else []) from error
    world = worlds[0]
    report.operations, report.by_kind = world.tally.operations, world.tally.by_kind
    report.faults, report.virtual_s = world.faults_by_kind(), world.now
    report.trace = world.trace.lines() if keep_trace else []
    assert report.operations >= plan.operations_min, report.operations
    assert report.fault_count >= plan.faults_min, report.faults
    assert report.crashes >= plan.crashes_min, report.faults
    return report


class _LocalHistory:
    def __init__(self, world: LocalWorld, plan: LocalPlan) -> None:
        self._world = world
        self._plan = plan
        self._random = world.fork()
        make = EngineMachine if plan.has_engine else LogMachine
        self._machine = make(world, plan.tiers)
        self._tier = TopicTierChecker(world) if plan.has_engine else TierChecker(world)
        self._zombies: list[LogNode] = []
        self._lives = 0
        self._topics = self._draw_topics()
        self._clients = [
            PartitionClients(world, world.tally, TopicPartition(name, 0), self._model(name))
            for name in self._topics
        ]
        self._limits = self._draw_limits()

    def _draw_topics(self) -> dict[str, Mapping[str, str]]:
        random = self._random.random
        delay = ("0", "300", "60000")[int(random() * 3)]
        settings = {**SETTINGS, "file.delete.delay.ms": delay}
        if self._plan.tiers is not None:
            local = {"local.retention.bytes": ("0", "1000", "3000")[int(random() * 3)]}
            if random() < 0.3:
                local["local.retention.ms"] = "1000"
            tiered = {"remote.storage.enable": "true", "retention.ms": "-1", **local}
            return {TIERED: {**settings, **tiered}}
        return {
            EXPIRING: {**settings, "retention.ms": "-1"},
            COMPACTED: {
                **settings,
                "cleanup.policy": "compact",
                "min.cleanable.dirty.ratio": ("0.01", "0.3", "0.5")[int(random() * 3)],
                "delete.retention.ms": ("0", "2500", "60000")[int(random() * 3)],
                "min.compaction.lag.ms": ("0", "0", "6000")[int(random() * 3)],
            },
        }

    def _draw_limits(self) -> dict[str, str]:
        """The retention that an operator turns on and off."""
        random = self._random.random
        limits: dict[str, str] = {}
        if random() < 0.5:
            limits["retention.bytes"] = ("3500", "8000")[int(random() * 2)]
        if random() < 0.5:
            limits["retention.ms"] = ("1500", "5000")[int(random() * 2)]
        return limits

    def _model(self, topic: str) -> NumberedLogModel:
        settings = self._topics[topic]
        return NumberedLogModel(
            f"{topic}-0",
            topic == COMPACTED,
            CLOCK_SKEW_MS + 1,
            int(settings.get("delete.retention.ms", "0")),
            int(settings.get("min.compaction.lag.ms", "0")),
        )

    async def run(self) -> None:
        world = self._world
        nemesis = world.loop.create_task(world.nemesis())
        watch = world.loop.create_task(self._watch())
        while not self._is_enough:
            await self._live()
            world.raise_failures()
        nemesis.cancel()
        await self._finish()
        watch.cancel()
        world.raise_failures()
        world.tally.by_kind["copy read"] = self._tier.copies_read

    @property
    def _is_enough(self) -> bool:
        world, plan = self._world, self._plan
        return (
            self._lives >= plan.lives_min
            and world.tally.operations >= plan.operations_min
            and world.fault_count >= plan.faults_min
            and world.trace.counts.get("crash", 0) >= plan.crashes_min
        )

    async def _live(self) -> None:
        """One life of the node."""
        world, random = self._world, self._random.random
        node = self._start()
        tasks: list[asyncio.Task[None]] = []
        opening = node.incarnation.start(node.open_until_up(), name="open")
        is_early = random() < 0.15
        await asyncio.wait([opening], timeout=0.1 * random() if is_early else None)
        if opening.done():
            opening.result()
            tasks = self._work(node)
            await asyncio.sleep(self._plan.life_s_max * random())
            for task in tasks:
                if task.done() and not task.cancelled():
                    task.result()
        self._lives += 1
        if self._plan.tiers is not None and node.is_up and random() < self._plan.zombies:
            world.trace.add("zombie", repr(node))
            for task in tasks:
                task.cancel()
            self._zombies.append(node)
            world.loop.call_later(ZOMBIE_S_MAX * random() ** 2, node.crash)
            return
        draw = random()
        if draw < 0.2 and node.is_up:
            await node.close(timeout_s=2 + 25 * random() ** 2)
        elif draw < 0.3 and node.is_up:
            node.pause()
            await asyncio.sleep(10 * random() ** 3)
            node.resume()
            await asyncio.sleep(random())
        if random() < 0.7:
            await node.crash_soon(is_power_cut=random() < 0.5)
        else:
            node.crash(is_power_cut=random() < 0.5)
        world.raise_failures()

    async def _watch(self) -> None:
        """Looks at the tier from outside, again and again."""
        world, clients = self._world, self._clients[0]
        while self._plan.tiers is not None:
            await asyncio.sleep(WATCH_S * self._random.random())
            node = world.node
            if node is None or not node.is_up:
                continue
            log = node.logs.open_log(clients.partition)
            if isinstance(log, TierableLog):
                clients.look(node, log)
                try:
                    await self._tier.look(log)
                    await self._tier.check_copies(clients.model.at)
                except Unavailable as error:
                    world.trace.add("not-looked", repr(node), type(error).__name__)
                except Violation as error:
                    # A log that was replaced meanwhile does not hear of what happens behind it.
                    if node.is_up and node.logs.open_log(clients.partition) is log:
                        world.fail(error)

    def _start(self) -> LogNode:
        self._world.tally.count("start")
        node = self._world.node = self._machine.start_node()
        return node

    def _work(self, node: LogNode) -> list[asyncio.Task[None]]:
        """The clients' tasks at the node; they end with it."""
        works = [
            node.incarnation.start(
                keep(self._world, node, clients, pause_s, operation),
                name=f"{clients.model.name}: {client}",
            )
            for clients in self._clients
            for client, (pause_s, operation) in clients.operations().items()
        ]
        works.append(node.incarnation.start(self._operate(node), name="operator"))
        for work in works:
            work.add_done_callback(partial(self._note_failure, node))
        return works

    def _note_failure(self, node: LogNode, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None and node.incarnation.is_alive:
            self._world.fail(error)

    # The operator

    async def _operate(self, node: LogNode) -> None:
        """Makes the topics, and turns retention on and off."""
        world, random = self._world, self._random.random
        while not world.is_ending:
            try:
                for clients in self._clients:
                    await self._make(node, clients)
                await asyncio.sleep(2.5 * random())
                await self._alter(node)
            except (*PASSING, TopicAlreadyExists) as error:
                world.trace.add("operator-failed", repr(node), type(error).__name__)
                await asyncio.sleep(0.1)

    async def _make(self, node: LogNode, clients: PartitionClients) -> None:
        name = clients.partition.topic
        if not clients.is_made and node.logs.topic(name) is None:
            self._world.tally.count("create topic")
            await node.logs.create_topic(name, 1, self._topics[name])
        clients.is_made = True

    async def _alter(self, node: LogNode) -> None:
        random = self._random.random
        limits = self._limits
        if not limits:
            return
        self._world.tally.count("alter topic")
        if random() < 0.5:
            model = self._clients[0].model
            size, age = limits.get("retention.bytes"), limits.get("retention.ms")
            model.retention.may_be(
                size_bytes=None if size is None else int(size),
                age_ms=None if age is None else int(age),
            )
            await node.logs.alter_topic_configs(self._clients[0].partition.topic, set=limits)
        else:
            off = dict.fromkeys(limits, "-1")
            await node.logs.alter_topic_configs(self._clients[0].partition.topic, set=off)

    # The end

    async def _finish(self) -> None:
        """Without faults, several nodes in a row must show everything that was promised."""
        world = self._world
        node = await self._restarted(UNHEALED_S_MAX)
        tasks = self._work(node)
        await asyncio.sleep(self._random.random())
        for zombie in self._zombies:
            zombie.crash()
        world.faults.is_healed = True
        world.is_ending = True
        for task in tasks:
            await self._within(f"an answer to {task.get_name()}", task)
        await self._checked(node)
        # A request that lands now may leave something: the next run removes it.
        await asyncio.sleep(LATE_EFFECT_S_MAX + 0.5)
        await node.close(ANSWER_S_MAX)
        for is_last in (False, True):
            node = await self._restarted()
            await self._checked(node)
            if not is_last:
                await self._await_nothing_left("of copies and deletions", self._tier.left_over)
                node.crash(is_power_cut=self._random.random() < 0.7)
        await self._within("the deletion", node.incarnation.start(self._empty(node), name="empty"))
        await node.close(ANSWER_S_MAX)

    async def _restarted(self, most_s: float = ANSWER_S_MAX) -> LogNode:
        node = self._start()
        opening = node.incarnation.start(node.open_until_up(), name="open")
        await self._within("the node comes up", opening, most_s)
        return node

    async def _within(
        self, what: str, task: asyncio.Task[None], most_s: float = ANSWER_S_MAX
    ) -> None:
        """Errors: Violation, when it takes too long; those of the task."""
        await asyncio.wait([task], timeout=most_s)
        if not task.done():
            raise Violation(f"{what}: not within {most_s:.0f} s")
        if not task.cancelled():
            task.result()

    async def _checked(self, node: LogNode) -> None:
        check = node.incarnation.start(self._check(node), name="check")
        await self._within("the check", check)

    async def _check(self, node: LogNode) -> None:
        for clients in self._clients:
            log = await self._opened(node, clients)
            await clients.end_all(node, log)
            await clients.check(node, log)

    async def _await_nothing_left(
        self, what: str, left_over: Callable[[], Awaitable[Sequence[str]]]
    ) -> None:
        """Errors: Violation; those of the workloads."""
        ends_at = self._world.now + LEFT_OVER_S_MAX
        while left := await left_over():
            if self._world.now >= ends_at:
                raise Violation(f"{what}, {few(list(left))} is left")
            self._world.raise_failures()
            await asyncio.sleep(1.0)

    async def _opened(self, node: LogNode, clients: PartitionClients) -> AbstractLog:
        """Creations that a crash cut off are tried again. Errors: NotFound, Corrupt."""
        while True:
            try:
                await self._make(node, clients)
                return await node.logs.log(clients.partition)
            except (Unavailable, TopicAlreadyExists) as error:
                self._world.trace.add("not open", repr(node), str(error))
                await asyncio.sleep(0.5)

    async def _empty(self, node: LogNode) -> None:
        """Deletes all topics; the folder must be empty then."""
        for name in self._topics:
            try:
                await node.logs.delete_topic(name, "")
            except NotFound:
                continue
        await self._await_nothing_left("of deleted topics", self._left_of_topics)

    async def _left_of_topics(self) -> Sequence[str]:
        """Folders, segments and objects; the folder of the index cache is the node's."""
        folders = [name for name in self._machine.folder.tree.folders() if name != INDEX_CACHE]
        return [*folders, *await self._tier.left_over(), *await self._tier.objects()]
