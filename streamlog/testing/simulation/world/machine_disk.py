"""The disk of one machine: it outlives the processes, and faults and power cuts strike it."""

from __future__ import annotations

from streamlog.testing.simulation.world.environment import Environment
from streamlog.testing.simulation.world.offload import SimulationOffload
from streamlog.testing.torn_disk import TornDisk
from streamlog.testing.torn_media import DiskFault
from streamlog.wal.writer import WRITES_MAX


class MachineDisk:
    """The disk of one machine. A power cut may strike while a thread writes to it."""

    def __init__(self, environment: Environment, node_id: int) -> None:
        self._environment = environment
        self._name = f"m{node_id}"
        self._is_power_cut = False
        self.disk = TornDisk(environment.fork(), self._fault)

    def cut_power(self, offload: SimulationOffload) -> None:
        self._environment.trace.add("power-cut", self._name)
        self._is_power_cut = True
        offload.cut_off(WRITES_MAX)
        self._is_power_cut = False

    def crash(self) -> None:
        """Tears or loses what was written and not synced."""
        if self.disk.has_pending:
            self._environment.trace.add("torn-write", self._name)
        self.disk.crash()

    def stall_s(self) -> float:
        seconds = self._environment.faults.stall_s()
        if seconds:
            self._environment.trace.add("disk-slow", self._name)
        return seconds

    def _fault(self, operation: str, name: str) -> DiskFault | None:
        if self._is_power_cut:
            return DiskFault.POWER
        fault = self._environment.faults.disk(self._environment.now)
        if fault is not None:
            self._environment.trace.add(f"disk-{fault.value}", self._name, operation, name)
        return fault
