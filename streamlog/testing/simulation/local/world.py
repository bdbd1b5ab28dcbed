"""The environment together with the clients' tally, the failures, and the nemesis."""

from __future__ import annotations

import asyncio

from streamlog.errors import Corrupt
from streamlog.testing.simulation.local.node import LogNode
from streamlog.testing.simulation.world.environment import Environment
from streamlog.testing.simulation.world.faults import FaultRates
from streamlog.testing.simulation.world.loop import SimulationLoop
from streamlog.testing.simulation.world.world import FAULT_KINDS, Tally


class LocalWorld(Environment):
    """What workloads and the history see. Nodes see its `Environment` alone."""

    def __init__(self, seed: int, loop: SimulationLoop, rates: FaultRates) -> None:
        super().__init__(seed, "disk", loop, rates)
        self.tally = Tally()
        self.failures: list[BaseException] = []
        self.is_ending = False
        """Clients begin nothing any more."""
        self.node: LogNode | None = None
        """The newest process."""

    @property
    def fault_count(self) -> int:
        return sum(self.faults_by_kind().values())

    def faults_by_kind(self) -> dict[str, int]:
        kinds = FAULT_KINDS | {"store-short", "store-odd"}
        return {kind: n for kind, n in self.trace.counts.items() if kind in kinds}

    async def nemesis(self) -> None:
        """Begins outages and sets the clock, until cancelled."""
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
            if faults.happens(rates.disk_full):
                faults.disk_full_until = now + 0.3 * random()
                self.trace.add("disk-outage", faults.disk_full_until)
            if self.node is not None and self.node.is_up and faults.happens(rates.clock_jump):
                self.node.set_clock()
                self.trace.add("clock-jump", repr(self.node), self.node.clock.skew_ms)

    def is_remote_read(self, error: Corrupt) -> bool:
        """Whether the error is of bytes of the remote tier, some of which did not come."""
        of_segment = "remote segment" in str(error)
        return of_segment and not self.faults.is_healed and "store-short" in self.trace.counts

    def fail(self, error: BaseException) -> None:
        self.failures.append(error)

    def raise_failures(self) -> None:
        """Raises the first error that a workload met."""
        if self.failures:
            raise self.failures[0]
