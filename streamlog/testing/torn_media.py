"""What the torn disk and the torn folder share: names, faults, power, and handles that die."""

from __future__ import annotations

import errno
from collections.abc import Callable
from enum import Enum
from typing import Any, Generic, TypeVar

from streamlog.runtime.disk.real_folder import check_name
from streamlog.runtime.rand import Random

C = TypeVar("C")
"""The content of a file, whatever its name."""

SECTOR_BYTES = 512
FREE_BYTES = 1 << 40


class DiskFault(Enum):
    POWER = "power"
    """The power fails during the call."""
    IO_ERROR = "io error"
    """The call fails; it leaves a mixture of old and new sectors, or new sectors in the page cache
    alone."""
    FULL = "full"
    """The call fails because the disk is full; it may leave a prefix."""


FaultPlan = Callable[[str, str], DiskFault | None]
"""(operation, file name) → the fault that strikes the call."""


class TornMedium(Generic[C]):
    """One folder in memory. `plan_faults` decides before each changing call whether a fault strikes
    it.

    A fault may leave a changed name visible; a power cut undoes changes of names, the newest first,
    back to the folder's last sync. After a power cut every call fails until the power is back;
    handles opened before stay dead.
    """

    def __init__(self, random: Random, plan_faults: FaultPlan | None = None) -> None:
        self.random = random
        self.plan_faults = plan_faults
        self.has_power = True
        self.life = 0
        """Grows when a process or the power ends: handles of earlier lives are dead."""
        self._files: dict[str, C] = {}
        self._unsynced: list[dict[str, C]] = []
        """The folder's names before each change since its last sync."""

    def strike(self, operation: str, name: str) -> DiskFault | None:
        """The fault for a call that changes the medium."""
        fault = self.plan_faults(operation, name) if self.plan_faults else None
        if fault is DiskFault.POWER:
            self.has_power = False
        return fault

    def list(self) -> list[str]:
        self._check(".")
        return sorted(self._files)

    def free_bytes(self) -> int:
        self._check(".")
        return FREE_BYTES

    def rename(self, old: str, new: str) -> None:
        content = self._present(old)
        check_name(new)
        names = {name: other for name, other in self._files.items() if name != old}
        self._change_names("rename", old, {**names, new: content})

    def remove(self, name: str) -> None:
        self._present(name)
        names = {other: content for other, content in self._files.items() if other != name}
        self._change_names("remove", name, names)

    def _change_names(self, operation: str, name: str, names: dict[str, C]) -> None:
        fault = self.strike(operation, name)
        if fault is None or (fault is not DiskFault.FULL and self.random.random() < 0.5):
            self._change(names)
        if fault is not None:
            raise failed_by(fault, name)

    def _change(self, names: dict[str, C]) -> None:
        self._unsynced.append(self._files)
        self._files = names

    def _sync_names(self) -> None:
        self._unsynced.clear()

    def _undo_names(self) -> None:
        """What a power cut does to the folder."""
        if self._unsynced:
            states = [*self._unsynced, self._files]
            self._files = states[int(self.random.random() * len(states))]
            self._sync_names()

    def _start_anew(self) -> None:
        self.life += 1
        self.has_power = True

    def _absent(self, name: str) -> None:
        """A file may be made under the name. Errors: ValueError, OSError."""
        check_name(name)
        self._check(name)
        if name in self._files:
            raise injected(errno.EEXIST, name)

    def _present(self, name: str) -> C:
        """The content of the file. Errors: ValueError, OSError."""
        check_name(name)
        self._check(name)
        if name not in self._files:
            raise injected(errno.ENOENT, name)
        return self._files[name]

    def _check(self, name: str) -> None:
        if not self.has_power:
            raise injected(errno.EIO, name)


class TornHandle:
    """An open file. It is dead after `close`, and in a later life of its medium."""

    def __init__(self, medium: TornMedium[Any], name: str) -> None:
        self._medium = medium
        self._name = name
        self._life = medium.life

    def close(self) -> None:
        self._life = -1

    def _begin(self, operation: str) -> DiskFault | None:
        """The fault for a call that changes the file."""
        self._check()
        return self._medium.strike(operation, self._name)

    def _check(self) -> None:
        if self._life != self._medium.life or not self._medium.has_power:
            raise injected(errno.EIO, self._name)


def failed_by(fault: DiskFault, name: str) -> OSError:
    """The error of a call that the fault struck."""
    return injected(errno.ENOSPC if fault is DiskFault.FULL else errno.EIO, name)


def injected(number: int, name: str) -> OSError:
    return OSError(number, "injected disk fault", name)
