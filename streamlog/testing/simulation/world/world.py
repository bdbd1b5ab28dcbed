"""What outlives a crash (store, metadata, disks), and the weather over it."""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from streamlog.kvstore.memory.store import MemoryKVStore
from streamlog.objectstore.memory import MemoryObjectStore
from streamlog.runtime.rand import SeededRandom
from streamlog.testing.simulation.world.faults import (
    FAULTS,
    REMOTE_KINDS,
    STATEFUL_KINDS,
    FaultRates,
    FaultSource,
)
from streamlog.testing.simulation.world.incarnation import SimulationClock, Trace
from streamlog.testing.simulation.world.loop import SimulationLoop
from streamlog.testing.simulation.world.waiting import WaitingCalls
from streamlog.testing.torn_disk import DiskFault, TornDisk

if TYPE_CHECKING:
    from streamlog.testing.simulation.world.node import Node
    from streamlog.testing.simulation.world.offload import SimulationOffload

WalMode = Literal["disk", "object"]
FAULT_KINDS = frozenset(
    [f"{where}-{kind}" for where in ("store", "kv") for kind in (*REMOTE_KINDS, "outage")]
    + ["store-cut", "disk-slow", "disk-outage", *(f"disk-{fault.value}" for fault in DiskFault)]
    + list(STATEFUL_KINDS)
)
WILD_CLOCKS = 0.15
"""Share of the histories with clocks that differ by more than the deletion delay."""


@dataclass
class Tally:
    """How much was done; shared by all users of one history."""

    operations: int = 0
    by_kind: dict[str, int] = field(default_factory=dict)

    def count(self, kind: str) -> None:
        self.operations += 1
        self.by_kind[kind] = self.by_kind.get(kind, 0) + 1


class World:
    """Store and metadata that outlive every node, and the faults that strike them."""

    def __init__(
        self, seed: int, wal: WalMode, loop: SimulationLoop, rates: FaultRates = FAULTS
    ) -> None:
        self.wal: WalMode = wal
        self.loop = loop
        self.trace = Trace(loop)
        self.tally = Tally()
        self.failures: list[BaseException] = []
        self.calls = WaitingCalls()
        self.sessions: list[asyncio.Task[None]] = []
        """All that users ever began at some node; one that was left there may still work."""
        self.is_ending = False
        """No session and no node's life ends by itself any more."""
        self.is_recovered = False
        """The metadata was rebuilt from the bucket: what old nodes stored late may stay there."""
        self._random = SeededRandom(seed)
        self.faults = FaultSource(self.fork(), rates)
        self.store = MemoryObjectStore(SimulationClock(loop))
        self.kv = MemoryKVStore(SimulationClock(loop))
        self.nodes: list[Node] = []
        """All that ever lived, oldest first."""
        self.has_wild_clocks = rates.clock_jump > 0 and self._random.random() < WILD_CLOCKS

    def waiting(self, node: Node, what: str) -> AbstractContextManager[None]:
        """A user waits inside for an answer of `node`."""
        return self.calls.waiting(node, what, self.now)

    def replace_metadata(self, kv: MemoryKVStore) -> None:
        """Nodes that start from now on run on metadata that a recovery made."""
        self.kv = kv
        self.is_recovered = True

    async def until_ending(self) -> None:
        """Returns at once, or never once the history ends: its caller would end a session."""
        if self.is_ending:
            await self.loop.create_future()

    def fork(self) -> SeededRandom:
        """A source of its own, so that one part's draws do not move another's."""
        return SeededRandom(int.from_bytes(self._random.bytes(8), "big"))

    def set_fault_rates(self, rates: FaultRates) -> None:
        """For nodes that start from now on."""
        self.faults = FaultSource(self.faults.random, rates)

    @property
    def now(self) -> float:
        return self.loop.time()

    @property
    def fault_count(self) -> int:
        return sum(count for kind, count in self.trace.counts.items() if kind in FAULT_KINDS)

    def faults_by_kind(self) -> dict[str, int]:
        return {kind: n for kind, n in self.trace.counts.items() if kind in FAULT_KINDS}

    async def weather(self) -> None:
        """Outages and clock jumps, until cancelled."""
        faults, random = self.faults, self.faults.random.random
        while True:
            await asyncio.sleep(1.0)
            now, rates = self.now, faults.rates
            if now >= faults.store_away_until and faults.happens(rates.outage):
                faults.store_away_until = now + faults.outage_s()
                self.trace.add("store-outage", faults.store_away_until)
            if now >= faults.kv_away_until and faults.happens(rates.outage):
                faults.kv_away_until = now + faults.outage_s()
                self.trace.add("kv-outage", faults.kv_away_until)
            if self.wal == "disk" and faults.happens(rates.disk_full):
                faults.disk_full_until = now + 2.0 * random()
                self.trace.add("disk-outage", faults.disk_full_until)
            for node in self.nodes:
                if node.is_serving and faults.happens(rates.clock_jump):
                    node.set_clock()

    def calm(self) -> None:
        """No fault strikes any more."""
        self.faults.calm = True

    def serving(self) -> list[Node]:
        """Nodes that are up, and neither paused nor replaced."""
        return [node for node in self.nodes if node.is_serving]

    def fail(self, error: BaseException) -> None:
        self.failures.append(error)

    def raise_failures(self) -> None:
        """Raises the first thing that broke in any user's work."""
        if self.failures:
            raise self.failures[0]


class MachineDisk:
    """The disk of one machine; the power may go during the work that a thread was in."""

    def __init__(self, world: World, node_id: int) -> None:
        self._world = world
        self._name = f"m{node_id}"
        self._is_power_cut = False
        self.disk = TornDisk(world.fork(), self._fault)

    def cut_power(self, offload: SimulationOffload) -> None:
        self._world.trace.add("power-cut", self._name)
        self._is_power_cut = True
        offload.cut_off()
        self._is_power_cut = False

    def crash(self) -> None:
        """What was written and not synced is torn or lost."""
        if self.disk.has_pending:
            self._world.trace.add("torn-write", self._name)
        self.disk.crash()

    def stall_s(self) -> float:
        seconds = self._world.faults.stall_s()
        if seconds:
            self._world.trace.add("disk-slow", self._name)
        return seconds

    def _fault(self, operation: str, name: str) -> DiskFault | None:
        if self._is_power_cut:
            return DiskFault.POWER
        fault = self._world.faults.disk(self._world.now)
        if fault is not None:
            self._world.trace.add(f"disk-{fault.value}", self._name, operation, name)
        return fault
