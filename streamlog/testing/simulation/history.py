"""One seeded history: nodes that live, crash and come back in one world, under workloads.

1. One or two machines. On each a node lives for a random time. It ends by a crash, a power cut or a
   clean close, or it pauses; with `wal=object` the next node may start while the old one runs.
2. Workloads use streams and partitions at any serving node; one takes over from dead nodes.
3. The nemesis causes outages, failed calls, lost answers, late effects, disk faults, clock jumps.
4. The history goes on until it had enough operations, faults and crashes.
5. Then the world heals: every call that waits is answered, and no node holds ids, append budget or
   memory for calls that have ended.
6. At the end everything is read back and checked against the models, then deleted, and the bucket
   must be empty.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from functools import partial

from streamlog.engine.config import ReadConfig, StreamEngineConfig
from streamlog.errors import NotFound
from streamlog.log.api.internal_topics import is_internal
from streamlog.model.batch import CreateStreamOptions
from streamlog.model.partition import TopicPartition
from streamlog.objectstore.keys import DATA_PREFIX
from streamlog.repair.findings import Severity
from streamlog.repair.fsck.fsck import FsckOptions, fsck
from streamlog.runtime.rand import SeededRandom
from streamlog.testing.simulation.after_heal import await_all_answers, check_nothing_leaks
from streamlog.testing.simulation.checker import Violation, few
from streamlog.testing.simulation.workloads.compacted import CompactedWorkload
from streamlog.testing.simulation.workloads.creates import AbandonedCreates
from streamlog.testing.simulation.workloads.kv import KVWorkload, Register
from streamlog.testing.simulation.workloads.logs import TOPIC, PartitionWorkload
from streamlog.testing.simulation.workloads.observers import (
    FailoverWorkload,
    PinnedReadWorkload,
    ShortLivedWorkload,
)
from streamlog.testing.simulation.workloads.recovery import OLD_NODES_LIVE_S, MetadataLoss
from streamlog.testing.simulation.workloads.staging import StagingWorkload
from streamlog.testing.simulation.workloads.streams import PASSING, StreamWorkload, take_over_holder
from streamlog.testing.simulation.workloads.transactions.workload import TransactionWorkload
from streamlog.testing.simulation.world.faults import FAULTS, FaultRates
from streamlog.testing.simulation.world.incarnation import SimulationClock
from streamlog.testing.simulation.world.loop import SimulationLoop, run
from streamlog.testing.simulation.world.node import (
    CRAMPED_CONFIG,
    DUEL_CONFIG,
    NODE_CONFIG,
    Machine,
    SimulationNode,
    with_spare_room,
)
from streamlog.testing.simulation.world.offload import InlineOffload
from streamlog.testing.simulation.world.world import World
from streamlog.wal.config import WalMode

PATIENCE_S = 300
"""Virtual seconds within which all dead objects are deleted."""
HISTORY_S_MAX = 1800.0
"""A history that takes more virtual seconds hangs; most take a minute."""
TRACE_TAIL = 60
JOB_SEED = 1 << 40
SPARE_SEED = 1 << 41
RECOVERY_SEED = 1 << 42
TRANSACTIONS_SEED = 1 << 43
COMPACTED_SEED = 1 << 44
AFTER_RECOVERY_S = 15.0
"""Virtual seconds that a history goes on after a recovery: longer than the deletion delay."""


@dataclass
class Report:
    """Counts of one history; equal for equal seeds."""

    seed: int
    wal: WalMode
    operations: int = 0
    faults: dict[str, int] = field(default_factory=dict)
    by_kind: dict[str, int] = field(default_factory=dict)
    virtual_s: float = 0.0
    trace: list[str] = field(default_factory=list)

    @property
    def fault_count(self) -> int:
        return sum(self.faults.values())

    @property
    def crashes(self) -> int:
        return self.faults.get("crash", 0)

    def check(self, plan: HistoryPlan) -> None:
        """The history was as large as planned."""
        assert self.operations >= plan.operations_min, self.operations
        assert self.fault_count >= plan.faults_min, self.faults
        assert self.crashes >= plan.crashes_min, self.faults


@dataclass(frozen=True)
class HistoryPlan:
    """The size of a history: it goes on until all minimums are reached."""

    operations_min: int = 500
    faults_min: int = 50
    crashes_min: int = 1
    lives_min: int = 5
    life_s_max: float = 3.5
    streams: int = 2
    partitions: int = 2
    two_machines: float = 0.6
    """Share of histories with a second machine."""
    rates: FaultRates = FAULTS
    config: StreamEngineConfig = NODE_CONFIG
    cramped: float = 0.2
    """Share of histories with caches of `cramped_config`."""
    cramped_config: ReadConfig = CRAMPED_CONFIG
    spare: float = 0.2
    """Share of histories with a tail cache that is larger than the append budget."""
    duels: float = 0.25
    """Share of `wal=object` histories in which two nodes that live longer, over stores that fail
    less, compact the same objects (`duel_config`)."""
    duel_config: StreamEngineConfig = DUEL_CONFIG
    duel_life_s_max: float = 9.0
    duel_fault_share: float = 0.4
    staged: float = 0.3
    """Share of histories with a job that writes by staging."""
    transactional: float = 0.3
    """Share of histories with transactions."""
    recovered: float = 0.1
    """Share of `wal=object` histories in which the metadata is rebuilt from the bucket while nodes
    run. They use streams and partitions alone, because a recovery may lose other things."""
    compacted: float = 0.15
    """Share of histories with a compacted topic."""
    is_mixed: bool = True
    """False: transactions or a compacted topic, and nothing beside them but what nodes, machines
    and media do."""


PLAN = HistoryPlan()
TRANSACTIONS_PLAN = HistoryPlan(
    operations_min=60,
    faults_min=20,
    streams=0,
    partitions=0,
    staged=0.0,
    transactional=1.0,
    recovered=0.0,
    compacted=0.0,
    is_mixed=False,
)
"""Transactions alone: a third of the CPU time of a mixed history, so that more of them are run."""

COMPACTED_PLAN = HistoryPlan(
    operations_min=150,
    faults_min=20,
    crashes_min=2,
    streams=0,
    partitions=0,
    staged=0.0,
    transactional=0.0,
    recovered=0.0,
    compacted=1.0,
    is_mixed=False,
)
"""A compacted topic alone."""


class Failed(AssertionError):
    """A history broke a promise, or raised an error: see `__cause__`, and `tail` for the events."""

    def __init__(self, seed: int, wal: WalMode, cause: BaseException, trace: list[str]) -> None:
        super().__init__(f"seed {seed}, wal={wal}: {type(cause).__name__}: {cause}")
        self.seed = seed
        self.wal = wal
        self.trace = trace

    @property
    def tail(self) -> list[str]:
        return self.trace[-TRACE_TAIL:]


def mode_of(seed: int) -> WalMode:
    """Seeds alternate between the two modes."""
    return "object" if seed % 2 else "disk"


def run_history(
    seed: int, wal: WalMode | None = None, plan: HistoryPlan = PLAN, *, keep_trace: bool = True
) -> Report:
    """Runs the history of `seed`. Raises Failed."""
    mode = wal or mode_of(seed)
    report = Report(seed, mode)
    worlds: list[World] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimulationLoop)
        worlds.append(World(seed, mode, loop, plan.rates))
        # Drawn from separate seeds, so that each option leaves other histories unchanged.
        has_job = SeededRandom(seed + JOB_SEED).random() < plan.staged
        is_spare = SeededRandom(seed + SPARE_SEED).random() < plan.spare
        loses = mode == "object" and SeededRandom(seed + RECOVERY_SEED).random() < plan.recovered
        has_txns = SeededRandom(seed + TRANSACTIONS_SEED).random() < plan.transactional
        is_compacted = SeededRandom(seed + COMPACTED_SEED).random() < plan.compacted
        history = _History(
            worlds[0],
            plan,
            has_job=has_job,
            is_spare=is_spare,
            loses=loses,
            has_txns=has_txns,
            is_compacted=is_compacted,
        )
        await history.run()

    try:
        run(main, limit_s=HISTORY_S_MAX)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt | SystemExit):
            raise
        raise Failed(seed, mode, error, worlds[0].trace.lines() if worlds else []) from error
    world = worlds[0]
    report.operations, report.by_kind = world.tally.operations, world.tally.by_kind
    report.faults, report.virtual_s = world.faults_by_kind(), world.now
    report.trace = world.trace.lines() if keep_trace else []
    report.check(plan)
    return report


class _History:
    def __init__(
        self,
        world: World,
        plan: HistoryPlan,
        *,
        has_job: bool,
        is_spare: bool,
        loses: bool,
        has_txns: bool,
        is_compacted: bool,
    ) -> None:
        self._world = world
        self._plan = plan
        self._random = world.fork()
        random = self._random.random
        count, config, self._life_s_max = 1, plan.config, plan.life_s_max
        if world.wal == "object" and random() < plan.duels:
            count, config, self._life_s_max = 2, plan.duel_config, plan.duel_life_s_max
            world.set_fault_rates(plan.rates.scaled(plan.duel_fault_share))
        elif random() < plan.two_machines:
            count = 2
        if random() < plan.cramped:
            config = replace(config, read=plan.cramped_config)
        if is_spare:
            config = with_spare_room(config)
        self._machines = [world.add_machine(n + 1, config) for n in range(count)]
        self._lives = 0
        self._streams: list[StreamWorkload] = []
        self._partitions = [
            PartitionWorkload(world, TopicPartition(TOPIC, n), plan.partitions)
            for n in range(plan.partitions)
        ]
        self._register = Register(world, "register")
        self._jobs = [StagingWorkload(world)] if has_job and not loses else []
        node_ids = [machine.node_id for machine in self._machines]
        self._led: list[TransactionWorkload | CompactedWorkload] = []
        """Workloads of topics whose leaders a controller moves."""
        if has_txns and not loses:
            self._led.append(TransactionWorkload(world, node_ids))
        if is_compacted and not loses:
            self._led.append(CompactedWorkload(world, node_ids))
        self._loses_metadata = loses
        self._recovered_at: float | None = None
        self._tasks: list[asyncio.Task[None]] = []

    async def run(self) -> None:
        world = self._world
        works = [self._run_machine(machine) for machine in self._machines]
        works += [world.nemesis(), self._make_streams()]
        works += [workload.sessions() for workload in self._partitions]
        if self._loses_metadata:
            works += [MetadataLoss(world).run(self._has_data, self._recovered)]
        elif not self._plan.is_mixed:
            works += [work for one in self._led for work in one.works()]
            works += [FailoverWorkload(world).run()]
        else:
            works += [KVWorkload(world, self._register).sessions() for _ in range(2)]
            works += [ShortLivedWorkload(world).sessions(), AbandonedCreates(world).sessions()]
            works += [job.sessions() for job in self._jobs]
            works += [work for one in self._led for work in one.works()]
            works += [PinnedReadWorkload(world).run(), FailoverWorkload(world).run()]
        self._tasks = [world.loop.create_task(work) for work in works]
        while not self._is_enough and not world.failures:
            await asyncio.sleep(0.2)
            for task in self._tasks:
                if task.done():
                    task.result()
        world.raise_failures()
        await await_all_answers(world)
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)
        for session in world.sessions:
            session.cancel()
        for led in self._led:
            await led.settle()
        world.raise_failures()
        await check_nothing_leaks(world)
        for node in world.nodes:
            node.crash()
        await self._finish()
        world.raise_failures()

    @property
    def _is_enough(self) -> bool:
        world, plan = self._world, self._plan
        return (
            self._lives >= plan.lives_min
            and world.tally.operations >= plan.operations_min
            and world.fault_count >= plan.faults_min
            and world.trace.counts.get("crash", 0) >= plan.crashes_min
            and len(self._streams) == plan.streams
            and (not self._loses_metadata or self._is_long_recovered)
        )

    # a recovery

    def _has_data(self) -> bool:
        """Each stream and partition has records: the bucket may not know empty ones."""
        return (
            len(self._streams) == self._plan.streams
            and all(workload.model.place for workload in self._streams)
            and all(any(b.base_offset for b in part.model.sent) for part in self._partitions)
        )

    def _recovered(self) -> None:
        self._recovered_at = self._world.now
        for stream in self._streams:
            stream.recovered()
        for partition in self._partitions:
            partition.recovered()

    @property
    def _is_long_recovered(self) -> bool:
        at = self._recovered_at
        return at is not None and self._world.now >= at + AFTER_RECOVERY_S

    # machines

    async def _run_machine(self, machine: Machine) -> None:
        """Runs one process after another."""
        random = self._random.random
        while True:
            node = self._world.start_node(machine)
            self._world.tally.count("start")
            opening = node.incarnation.start(node.open_until_up(), name="open")
            if random() < 0.15:
                # The node may end before it is up.
                await asyncio.wait([opening], timeout=0.5 * random())
            else:
                await asyncio.wait([opening])
                opening.result()
                await asyncio.sleep(0.3 + self._life_s_max * random())
            self._lives += 1
            await self._world.until_ending()
            if node.is_detached and node.incarnation.is_alive:
                # It keeps running beside its successor until it notices, or longer.
                self._start_task(self._crash_later(node, OLD_NODES_LIVE_S))
            elif not await self._end(machine, node):
                await asyncio.sleep(12 * random() if random() < 0.2 else 0.5 * random())

    async def _end(self, machine: Machine, node: SimulationNode) -> bool:
        """Ends a node's life in a random way; returns whether the next node starts at once."""
        random = self._random.random
        draw = random()
        if draw < 0.2 and node.is_up:
            await node.close(timeout_s=2 + 25 * random() ** 2)
        elif draw < 0.35 and node.is_up:
            node.pause()
            pause_s = 25 * random() ** 3
            if self._world.wal == "object" and random() < 0.4:
                self._start_task(self._wake_and_crash(node, pause_s))
                return True
            await asyncio.sleep(pause_s)
            node.resume()
            await asyncio.sleep(3 * random())
            node.crash(is_power_cut=random() < 0.5)
        elif draw < 0.47 and self._world.wal == "object" and node.is_up:
            self._world.trace.add("zombie", node.name)
            self._start_task(self._crash_later(node))
            return True
        else:
            node.crash(is_power_cut=random() < 0.5)
        return False

    async def _wake_and_crash(self, node: SimulationNode, pause_s: float) -> None:
        await asyncio.sleep(pause_s)
        if node.is_paused:
            node.resume()
        await self._crash_later(node)

    async def _crash_later(self, node: SimulationNode, after_s_max: float = 4.0) -> None:
        await asyncio.sleep(after_s_max * self._random.random())
        node.crash()
        await asyncio.get_running_loop().create_future()

    def _start_task(self, work: object) -> None:
        self._tasks.append(self._world.loop.create_task(work))  # type: ignore[arg-type]

    async def _make_streams(self) -> None:
        """Makes the streams of the history, at any serving node."""
        world = self._world
        while len(self._streams) < self._plan.streams:
            await asyncio.sleep(0.1)
            serving = world.serving()
            if not serving:
                continue
            node = serving[0]
            task = node.incarnation.start(
                node.engine.streams.create_and_open_stream(CreateStreamOptions()), name="create"
            )
            await asyncio.wait([task], timeout=20)
            if not task.done() or task.cancelled():
                task.cancel()
                continue
            error = task.exception()
            if node.is_detached:
                continue
            if error is None:
                world.tally.count("create")
                workload = StreamWorkload(world, task.result().stream_id, len(self._streams))
                self._streams.append(workload)
                self._start_task(workload.sessions())
            elif not isinstance(error, PASSING):
                raise error
        await asyncio.get_running_loop().create_future()

    # the end

    async def _finish(self) -> None:
        """Without faults, two nodes in a row must show everything that was promised."""
        world = self._world
        world.heal()
        for machine in reversed(self._machines[1:]) if world.wal == "disk" else ():
            # Uploads the records that only its disk has.
            node = await self._start_healed(machine)
            await node.close()
        first, last = self._machines[0], self._machines[-1]
        for machine in (first, last):
            node = await self._start_healed(machine)
            await node.incarnation.start(self._check(node), name="check")
            await node.close()
        await self._check_store()
        node = await self._start_healed(first)
        await node.incarnation.start(self._delete_everything(node), name="empty")
        await node.close()
        await self._check_store()

    async def _check_store(self) -> None:
        """While no node runs, fsck reads every byte and must report no finding."""
        world = self._world
        world.tally.count("fsck")
        report = await fsck(
            world.kv,
            world.store,
            clock=SimulationClock(world.loop),
            random=world.fork(),
            offload=InlineOffload(),
            options=FsckOptions(deep=True),
        )
        has_leftovers = world.has_wild_clocks or world.is_recovered
        worst = Severity.ERROR if has_leftovers else Severity.WARNING
        findings = [str(finding) for finding in report.findings if finding.severity >= worst]
        if findings:
            raise Violation(f"fsck: {few(findings)}")

    async def _start_healed(self, machine: Machine) -> SimulationNode:
        node = self._world.start_node(machine)
        self._world.tally.count("start")
        await node.incarnation.start(node.open_until_up(), name="open")
        return node

    async def _check(self, node: SimulationNode) -> None:
        for stream in self._streams:
            await stream.check(node)
        for partition in self._partitions:
            await partition.check(node)
        for job in self._jobs:
            await job.check(node)
        for led in self._led:
            await led.check(node)
        if not self._loses_metadata:
            await self._register.check(node)

    async def _delete_everything(self, node: SimulationNode) -> None:
        """Deletes all topics and streams: no data object may stay, neither dead nor orphaned."""
        engine, world = node.engine, self._world
        await engine.transactions.close()
        for topic in engine.logs.list_topics():
            # Clients may not delete internal topics; whoever deletes a cluster may.
            delete = (
                engine.logs._admin.delete if is_internal(topic.name) else engine.logs.delete_topic
            )
            await self._insist(node, partial(delete, topic.name, ""))
        for led in self._led:
            await led.check_deleted(node)
        for row in engine.metadata.streams():
            await self._insist(
                node, lambda stream_id=row.stream_id: engine.streams.delete_stream(stream_id)
            )
        left: list[str] = []
        for _ in range(PATIENCE_S):
            await asyncio.sleep(1)
            left = [info.key for info in (await world.store.list(DATA_PREFIX)).objects]
            if not left:
                return
            if world.is_recovered:
                return  # no node deletes the objects that nodes on the old metadata stored late
        if not world.has_wild_clocks:
            raise Violation(f"all streams were deleted, and objects stay: {few(left)}")

    async def _insist(self, node: SimulationNode, work: object) -> None:
        while True:
            try:
                await work()  # type: ignore[operator]
            except PASSING:
                for row in node.engine.metadata.streams():
                    await take_over_holder(node, row.stream_id)
                await asyncio.sleep(0.5)
            except NotFound:
                return  # an earlier attempt failed after the deletion
            else:
                return
