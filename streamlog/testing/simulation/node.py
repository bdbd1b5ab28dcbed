"""The world of one history, and the nodes that live in it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import AbstractAsyncContextManager
from typing import Any, Literal

from prometheus_client import CollectorRegistry

import streamlog
from streamlog.compaction.collector import CollectorConfig
from streamlog.engine.config import (
    MIB,
    AppendConfig,
    FlushConfig,
    ObjectConfig,
    ReadConfig,
    StreamEngineConfig,
    UploadConfig,
)
from streamlog.errors import Fenced, StreamlogError
from streamlog.kvstore.memory import MemoryKVStore
from streamlog.log.config import LogConfig
from streamlog.metadata.config import MetadataConfig
from streamlog.objectstore.memory import MemoryObjectStore
from streamlog.runtime.rand import SeededRandom
from streamlog.testing.simulation.faults import FaultRates, FaultSource
from streamlog.testing.simulation.kv import SimulationKV
from streamlog.testing.simulation.store import SimulationStore
from streamlog.testing.simulation.world import (
    Incarnation,
    SimulationClock,
    SimulationOffload,
    Trace,
)
from streamlog.testing.torn_disk import DiskFault, TornDisk
from streamlog.wal.config import WalConfig
from streamlog.wiring import Components, OpenEngine

WalMode = Literal["disk", "object"]
CLOCK_SKEW_MS = 2_000
WILD_CLOCK_SKEW_MS = 120_000
"""A fifth of the histories have clocks that differ by more than the deletion delay."""
KIB = 1 << 10

TIGHT = StreamEngineConfig(
    append=AppendConfig(append_bytes_max=MIB),
    flush=FlushConfig(flush_bytes_target=64 * KIB),
    upload=UploadConfig(upload_bytes_target=64 * KIB, upload_interval_ms=300),
    object=ObjectConfig(block_target_bytes=4 * KIB),
    read=ReadConfig(
        tail_cache_bytes=32 * KIB, block_cache_bytes=16 * KIB, index_cache_bytes=4 * KIB
    ),
    collector=CollectorConfig(deletion_delay_ms=8_000, collect_interval_ms=300),
    wal=WalConfig(wal_bytes_max=512 * KIB, file_bytes=64 * KIB),
    metadata=MetadataConfig(
        checkpoint_interval_ms=1_500,
        checkpoint_records=12,
        delta_bytes_min=512,
        block_cache_bytes=64 * KIB,
        orphan_resweep_ms=60_000,
        file_sweep_interval_ms=1_000,
    ),
)
"""Bounds so small that checkpoints, merges, cache misses, deletions and WAL reuse all happen within
the seconds of one history. The delays of deletions outlast every late PUT (about 6 s) and zombie:
what lands later than that stays for ever, in a real store too."""
TIGHT_LOGS = LogConfig(
    checkpoint_interval_batches=7, meta_compaction_bytes=2 * KIB, retention_check_interval_ms=1_000
)


class World:
    """Store, metadata and disk that outlive every node."""

    def __init__(self, seed: int, wal: WalMode, loop: asyncio.AbstractEventLoop) -> None:
        self.wal: WalMode = wal
        self.loop = loop
        self.trace = Trace()
        self.failures: list[BaseException] = []
        self._random = SeededRandom(seed)
        self.faults = FaultSource(self.fork(), FaultRates())
        self.store = MemoryObjectStore(SimulationClock(loop))
        self.kv = MemoryKVStore(SimulationClock(loop))
        self.disk = TornDisk(self.fork(), self._disk_fault)
        self._is_power_cut = False
        self.nodes: list[Node] = []
        self.has_wild_clocks = self._random.random() < 0.2

    def fork(self) -> SeededRandom:
        """A source of its own, so that one part's draws do not move another's."""
        return SeededRandom(int.from_bytes(self._random.bytes(8), "big"))

    def draw_outages(self) -> None:
        """Decides whether store or metadata will be away for a while from now on."""
        now = self.loop.time()
        if self.faults.random.random() < self.faults.rates.outage:
            self.faults.store_away_until = now + 5 * self.faults.random.random()
            self.trace.add(self.loop, "store-outage")
        if self.faults.random.random() < self.faults.rates.outage:
            self.faults.kv_away_until = now + 5 * self.faults.random.random()
            self.trace.add(self.loop, "kv-outage")

    def cut_power(self, offload: SimulationOffload) -> None:
        """The power goes during the disk work that a thread was in, if it was in any."""
        self._is_power_cut = True
        offload.cut_off()
        self._is_power_cut = False

    def _disk_fault(self, operation: str, name: str) -> DiskFault | None:
        if self._is_power_cut:
            return DiskFault.POWER
        fault = self.faults.disk()
        if fault is not None:
            self.trace.add(self.loop, f"disk-{fault.value}", f"{operation} {name}")
        return fault

    def calm(self) -> None:
        """No fault strikes any more."""
        self.faults.calm = True

    def start_node(self, name: str) -> Node:
        node = Node(self, Incarnation(name, self.loop, self.fork(), self.trace))
        self.nodes.append(node)
        return node

    def raise_failures(self) -> None:
        """Raises the first thing that broke in any user's work."""
        if self.failures:
            raise self.failures[0]


class Node:
    """One process lifetime of a node, with the users who are connected to it."""

    def __init__(self, world: World, incarnation: Incarnation) -> None:
        self.world = world
        self.incarnation = incarnation
        skew_ms = WILD_CLOCK_SKEW_MS if world.has_wild_clocks else CLOCK_SKEW_MS
        self.clock = SimulationClock(world.loop, int((incarnation.random.random() - 0.5) * skew_ms))
        self.offload = SimulationOffload(incarnation)
        self.engine: OpenEngine
        self._opened: AbstractAsyncContextManager[OpenEngine] | None = None

    @property
    def is_up(self) -> bool:
        return self._opened is not None

    async def open_until_up(self) -> OpenEngine:
        """Opens the engine, again and again while store or metadata are away."""
        while True:
            opening = self._open()
            try:
                self.engine = await opening.__aenter__()
            except StreamlogError as error:
                self.world.trace.add(self.world.loop, "open-failed", type(error).__name__)
                if not error.is_retryable and error.has_no_side_effects:
                    raise
                await asyncio.sleep(0.5 + self.incarnation.random.random())
                continue
            self._opened = opening
            self.world.trace.add(self.world.loop, "up", self.incarnation.name)
            return self.engine

    def _open(self) -> AbstractAsyncContextManager[OpenEngine]:
        world, node = self.world, self.incarnation
        return streamlog.open(
            "memory://",
            wal=world.wal,
            config=TIGHT,
            logs=TIGHT_LOGS,
            components=Components(
                clock=self.clock,
                random=node.random,
                offload=self.offload,
                registry=CollectorRegistry(),
                store=SimulationStore(world.store, node, world.faults),
                kv=SimulationKV(world.kv, node, world.faults),
                disk=world.disk if world.wal == "disk" else None,
            ),
        )

    def watch(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Runs users' work on this node; what breaks there fails the history."""
        task = self.incarnation.start(work, name="user")
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        if task.cancelled() or not self.incarnation.is_alive:
            return
        error = task.exception()
        if error is not None:
            self.world.failures.append(error)

    def expect_fenced(self, error: StreamlogError) -> None:
        """A node may lose its streams only to a newer one."""
        if not isinstance(error, Fenced) or self.world.nodes[-1] is self:
            raise error

    def crash(self) -> None:
        """Ends the node between two effects; unsynced writes are torn or lost."""
        if self.incarnation.is_alive:
            self.incarnation.crash()
            if self.incarnation.random.random() < 0.5:
                self.world.cut_power(self.offload)
            self.world.disk.crash()

    async def close(self) -> None:
        """A clean close."""
        if self._opened is not None:
            await self.incarnation.start(self._opened.__aexit__(None, None, None), name="close")
        self.world.trace.add(self.world.loop, "closed", self.incarnation.name)
        self.incarnation.crash()

    async def close_or_crash(self, timeout_s: float) -> None:
        """A clean close that turns into a crash when it takes too long."""
        if self._opened is None:
            self.crash()
            return
        closing = self.incarnation.start(self._opened.__aexit__(None, None, None), name="close")
        done, _ = await asyncio.wait([closing], timeout=timeout_s)
        if done:
            error = closing.exception()
            if error is not None and not isinstance(error, StreamlogError):
                raise error
            self.world.trace.add(self.world.loop, "closed", self.incarnation.name)
        self.crash()
