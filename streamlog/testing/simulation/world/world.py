"""The environment together with the nodes in it, the clients' calls, and the nemesis."""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from streamlog.engine.config import StreamEngineConfig
from streamlog.kvstore.memory.store import MemoryKVStore
from streamlog.testing.simulation.world.environment import Environment
from streamlog.testing.simulation.world.faults import (
    FAULTS,
    REMOTE_KINDS,
    STATEFUL_KINDS,
    FaultRates,
)
from streamlog.testing.simulation.world.loop import SimulationLoop
from streamlog.testing.simulation.world.node import Machine, SimulationNode
from streamlog.testing.simulation.world.waiting import WaitingCalls
from streamlog.testing.torn_media import DiskFault
from streamlog.wal.config import WalMode

FAULT_KINDS = frozenset(
    [f"{where}-{kind}" for where in ("store", "kv") for kind in (*REMOTE_KINDS, "outage")]
    + ["store-cut", "disk-slow", "disk-outage", *(f"disk-{fault.value}" for fault in DiskFault)]
    + list(STATEFUL_KINDS)
)


@dataclass
class Tally:
    """How many operations the workloads of one history did."""

    operations: int = 0
    by_kind: dict[str, int] = field(default_factory=dict)

    def count(self, kind: str) -> None:
        self.operations += 1
        self.by_kind[kind] = self.by_kind.get(kind, 0) + 1


class World(Environment):
    """What workloads and the history see. Nodes see its `Environment` alone."""

    def __init__(
        self, seed: int, wal: WalMode, loop: SimulationLoop, rates: FaultRates = FAULTS
    ) -> None:
        super().__init__(seed, wal, loop, rates)
        self.tally = Tally()
        self.failures: list[BaseException] = []
        self.calls = WaitingCalls()
        self.sessions: list[asyncio.Task[None]] = []
        """All sessions of the workloads; one whose node was lost may still be working."""
        self.is_ending = False
        """Sessions and nodes no longer end by themselves."""
        self.is_recovered = False
        """The metadata was rebuilt from the bucket: what old nodes stored late may stay there."""
        self.nodes: list[SimulationNode] = []
        """Every node of the history, oldest first."""

    def add_machine(self, node_id: int, config: StreamEngineConfig) -> Machine:
        return Machine(self, node_id, config)

    def start_node(self, machine: Machine) -> SimulationNode:
        """A new process on the machine; processes of it that still run are zombies from now on."""
        node = machine.start_node()
        self.nodes.append(node)
        return node

    def serving(self) -> list[SimulationNode]:
        """Nodes that are up, and neither paused nor replaced."""
        return [node for node in self.nodes if node.is_serving]

    def waiting(self, node: SimulationNode, purpose: str) -> AbstractContextManager[None]:
        """A client waits inside for an answer of `node`."""
        return self.calls.waiting(node, purpose, self.now)

    def replace_metadata(self, kv: MemoryKVStore) -> None:
        """Nodes that start from now on run on metadata that a recovery made."""
        self.kv = kv
        self.is_recovered = True

    async def until_ending(self) -> None:
        """Returns at once, or never once the history ends: its caller would end a session."""
        if self.is_ending:
            await self.loop.create_future()

    @property
    def fault_count(self) -> int:
        return sum(self.faults_by_kind().values())

    def faults_by_kind(self) -> dict[str, int]:
        return {kind: n for kind, n in self.trace.counts.items() if kind in FAULT_KINDS}

    async def nemesis(self) -> None:
        """Begins outages and sets clocks, until cancelled."""
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

    def fail(self, error: BaseException) -> None:
        self.failures.append(error)

    def raise_failures(self) -> None:
        """Raises the first error that a workload met."""
        if self.failures:
            raise self.failures[0]
