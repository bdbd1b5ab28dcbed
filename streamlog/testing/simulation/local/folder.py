"""The log folder of one machine: it outlives the processes, and faults strike it.

A process sees it through a ProcessTree of its own. When the machine's volume is attached to another
machine, the old process may live on: its disk calls fail from then on, and its requests to store
and metadata still go out.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence

from streamlog.runtime.buffers import Buffer
from streamlog.runtime.disk.growing import GrowingFile, GrowingFolder
from streamlog.testing.simulation.world.environment import Environment
from streamlog.testing.simulation.world.offload import ProcessDied, SimulationOffload
from streamlog.testing.torn_folder import TornTree
from streamlog.testing.torn_media import DiskFault, injected

CUT_STEPS_MAX = 14
"""A roll takes about as many changing calls: the cut may come within each of them."""
CUT_SKEW = 2.0
"""Most accesses are appends: a write and a sync."""
CUT_WORKS_MAX = 3
"""Threads that may be in a disk access when the process ends."""


class MachineFolder:
    """Owns the torn folders of one machine."""

    def __init__(self, environment: Environment, name: str) -> None:
        self._environment = environment
        self._name = name
        self._random = environment.fork()
        self._steps_left: int | None = None
        """Changing calls until the end that is under way; None: no end is."""
        self._is_power_cut = False
        self._attached: ProcessTree | None = None
        self.tree = TornTree(environment.fork())
        self.tree.plan_faults(self._fault)

    def attach(self) -> ProcessTree:
        """For a new process; the one before it has no disk any more."""
        if self._attached is not None:
            self._attached.is_attached = False
            self.tree.restart()
        self._attached = ProcessTree(self.tree)
        return self._attached

    def end(self, offload: SimulationOffload, *, is_power_cut: bool) -> None:
        """The process ends, within the disk accesses that its threads are in."""
        self._steps_left = int(self._random.random() ** CUT_SKEW * CUT_STEPS_MAX)
        self._is_power_cut = is_power_cut
        offload.cut_off(CUT_WORKS_MAX)
        self._steps_left, self._is_power_cut = None, False
        if is_power_cut:
            self._environment.trace.add("power-cut", self._name)
            if self.tree.has_pending:
                self._environment.trace.add("torn-write", self._name)
            self.tree.crash()
        else:
            self.tree.restart()

    def stall_s(self) -> float:
        seconds = self._environment.faults.stall_s()
        if seconds:
            self._environment.trace.add("disk-slow", self._name)
        return seconds

    def _fault(self, operation: str, name: str) -> DiskFault | None:
        if self._steps_left is not None:
            if self._steps_left > 0:
                self._steps_left -= 1
                return None
            if not self._is_power_cut:
                raise ProcessDied
            return DiskFault.POWER
        fault = self._environment.faults.disk(self._environment.now)
        if fault is not None:
            self._environment.trace.add(f"disk-{fault.value}", self._name, operation, name)
        return fault


class ProcessTree:
    """The folders as one process has them, until another one has them."""

    def __init__(self, tree: TornTree) -> None:
        self._tree = tree
        self.is_attached = True

    def __str__(self) -> str:
        return str(self._tree)

    def check(self, name: str) -> None:
        """Errors: OSError, where the volume is attached elsewhere."""
        if not self.is_attached:
            raise injected(errno.EIO, name)

    @property
    def top(self) -> GrowingFolder:
        return _ProcessFolder(self, self._tree.top)

    def folders(self) -> list[str]:
        self.check(".")
        return self._tree.folders()

    def make(self, name: str) -> GrowingFolder:
        self.check(name)
        return _ProcessFolder(self, self._tree.make(name))

    def open(self, name: str) -> GrowingFolder:
        self.check(name)
        return _ProcessFolder(self, self._tree.open(name))

    def rename(self, old: str, new: str) -> None:
        self.check(old)
        self._tree.rename(old, new)

    def remove(self, name: str) -> None:
        self.check(name)
        self._tree.remove(name)


class _ProcessFolder:
    """Files that it opens die with the process, or when the volume is attached elsewhere."""

    def __init__(self, process: ProcessTree, folder: GrowingFolder) -> None:
        self._process = process
        self._folder = folder

    def __str__(self) -> str:
        return str(self._folder)

    def list(self) -> list[str]:
        self._process.check(".")
        return self._folder.list()

    def path_of(self, name: str) -> None:
        """It lies in memory."""
        return

    def free_bytes(self) -> int:
        return self._folder.free_bytes()

    def create(self, name: str) -> GrowingFile:
        self._process.check(name)
        return _ProcessFile(self._process, name, self._folder.create(name))

    def open(self, name: str) -> GrowingFile:
        self._process.check(name)
        return _ProcessFile(self._process, name, self._folder.open(name))

    def open_to_read(self, name: str) -> GrowingFile:
        self._process.check(name)
        return _ProcessFile(self._process, name, self._folder.open_to_read(name))

    def rename(self, old: str, new: str) -> None:
        self._process.check(old)
        self._folder.rename(old, new)

    def remove(self, name: str) -> None:
        self._process.check(name)
        self._folder.remove(name)

    def sync(self) -> None:
        self._process.check(".")
        self._folder.sync()


class _ProcessFile:
    def __init__(self, process: ProcessTree, name: str, file: GrowingFile) -> None:
        self._process = process
        self._name = name
        self._file = file

    def append(self, parts: Sequence[Buffer]) -> int:
        self._process.check(self._name)
        return self._file.append(parts)

    def read(self, position: int, length: int) -> bytes:
        self._process.check(self._name)
        return self._file.read(position, length)

    def read_now(self, position: int, length: int) -> Buffer | None:
        self._process.check(self._name)
        return self._file.read_now(position, length)

    def truncate(self, size: int) -> None:
        self._process.check(self._name)
        self._file.truncate(size)

    def write_again(self, position: int) -> None:
        self._process.check(self._name)
        self._file.write_again(position)

    def sync(self) -> None:
        self._process.check(self._name)
        self._file.sync()

    def size(self) -> int:
        self._process.check(self._name)
        return self._file.size()

    def close(self) -> None:
        self._file.close()
