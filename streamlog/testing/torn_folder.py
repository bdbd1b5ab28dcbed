"""A GrowingFolder in memory that loses and tears, at a power cut, what was not synced.

1. A file has the content that is on the medium and a newer one, which reads see. The sectors (512
   bytes) in which they differ are *dirty*; `sync` writes them to the medium.
2. A power cut leaves each dirty sector old or new, and the file with its old size, its new one, or
   one in between: zeros may stand where a sector was not written.
3. A sync that fails leaves its sectors readable and clean, as Linux does: no later sync writes
   them, until an append or a truncate writes the sector again.
4. Changes of names are undone by a power cut, the newest first, back to the folder's last sync.
5. After a power cut every call fails until `crash`; handles opened before stay dead.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Sequence

from streamlog.runtime.buffers import Buffer, join
from streamlog.runtime.rand import Random
from streamlog.testing.torn_disk import FREE_BYTES, SECTOR_BYTES, DiskFault, FaultPlan


class _Content:
    """Owns the bytes of one file, whatever its name."""

    def __init__(self) -> None:
        self.newest = bytearray()
        self._medium = bytearray()
        self._dirty: set[int] = set()
        self._clean_and_lost: set[int] = set()

    @property
    def is_durable(self) -> bool:
        return self.newest == self._medium

    def write(self, position: int, data: Buffer) -> None:
        self.newest[position : position + len(data)] = data
        self._touch(position, position + len(data))

    def truncate(self, size: int) -> None:
        del self.newest[size:]
        self._touch(size, size + 1)

    def sync(self) -> None:
        size = len(self.newest)
        self._resize(size)
        self._write(self._dirty)
        self._dirty.clear()
        self._clean_and_lost = {
            sector for sector in self._clean_and_lost if sector * SECTOR_BYTES < size
        }

    def fail_sync(self) -> None:
        self._clean_and_lost |= self._dirty
        self._dirty.clear()

    def lose_power(self, random: Random) -> None:
        sizes = sorted((len(self._medium), len(self.newest)))
        size = sizes[0] + int(random.random() * (sizes[1] - sizes[0] + 1))
        size = (*sizes, size)[int(random.random() * 3)]
        kept = [
            sector
            for sector in sorted(self._dirty | self._clean_and_lost)
            if random.random() < 0.5 and sector * SECTOR_BYTES < size
        ]
        self._resize(size)
        self._write(kept)
        self.newest = bytearray(self._medium)
        self._dirty.clear()
        self._clean_and_lost.clear()

    def _touch(self, start: int, end: int) -> None:
        sectors = range(start // SECTOR_BYTES, -(-end // SECTOR_BYTES))
        self._dirty.update(sectors)
        self._clean_and_lost.difference_update(sectors)

    def _resize(self, size: int) -> None:
        del self._medium[size:]
        self._medium += bytes(size - len(self._medium))

    def _write(self, sectors: Iterable[int]) -> None:
        """Puts the newest content of the sectors on the medium, as far as it reaches."""
        for sector in sectors:
            start = sector * SECTOR_BYTES
            end = min(start + SECTOR_BYTES, len(self._medium), len(self.newest))
            if start < end:
                self._medium[start:end] = self.newest[start:end]


class TornGrowingFile:
    """A file of a TornFolder."""

    def __init__(self, folder: TornFolder, name: str, content: _Content) -> None:
        self._folder = folder
        self._name = name
        self._content = content
        self._life = folder.life
        self._end = len(content.newest)

    def append(self, parts: Sequence[Buffer]) -> int:
        self._check()
        fault = self._folder.strike("write", self._name)
        data = join(parts) if parts else b""
        start = self._end
        if fault is None:
            self._content.write(start, data)
            self._end += len(data)
            return start
        written = int(self._folder.random.random() * len(data))
        self._content.write(start, memoryview(data)[:written])
        raise _error(errno.ENOSPC if fault is DiskFault.FULL else errno.EIO, self._name)

    def read(self, position: int, length: int) -> bytes:
        self._check()
        return bytes(self._content.newest[position : min(position + length, self._end)])

    def truncate(self, size: int) -> None:
        self._check()
        if not 0 <= size <= self.size():
            raise ValueError(f"a file of {self.size()} bytes cannot be cut to {size}")
        if self._folder.strike("truncate", self._name) is not None:
            raise _error(errno.EIO, self._name)
        self._content.truncate(size)
        self._end = size

    def sync(self) -> None:
        self._check()
        fault = self._folder.strike("sync", self._name)
        if fault is not None:
            if fault is not DiskFault.POWER:
                self._content.fail_sync()
            raise _error(errno.EIO, self._name)
        self._content.sync()

    def size(self) -> int:
        self._check()
        return self._end

    def close(self) -> None:
        self._life = -1

    def _check(self) -> None:
        if self._life != self._folder.life or not self._folder.has_power:
            raise _error(errno.EIO, self._name)


class TornFolder:
    """One folder. `plan_faults` decides before each changing call (create, write, truncate, sync,
    rename, remove, and `sync` of the name `.`) whether a fault strikes it.
    """

    def __init__(self, random: Random, plan_faults: FaultPlan | None = None) -> None:
        self.random = random
        self.plan_faults = plan_faults
        self.has_power = True
        self.life = 0
        self._files: dict[str, _Content] = {}
        self._earlier: list[dict[str, _Content]] = []
        """The names before each change since the last sync."""

    def __str__(self) -> str:
        return "torn folder"

    def crash(self) -> None:
        """Cuts the power (if it is on) and restores it; what was not synced is torn."""
        states = [*self._earlier, self._files]
        self._files = states[int(self.random.random() * len(states))]
        for name in sorted(self._files):
            self._files[name].lose_power(self.random)
        self._earlier.clear()
        self.life += 1
        self.has_power = True

    def strike(self, operation: str, name: str) -> DiskFault | None:
        """The fault for a call that changes the folder."""
        fault = self.plan_faults(operation, name) if self.plan_faults else None
        if fault is DiskFault.POWER:
            self.has_power = False
        return fault

    def list(self) -> list[str]:
        self._check()
        return sorted(self._files)

    def free_bytes(self) -> int:
        self._check()
        return FREE_BYTES

    def create(self, name: str) -> TornGrowingFile:
        _check_name(name)
        self._check(name)
        if name in self._files:
            raise _error(errno.EEXIST, name)
        self._change("create", name, {**self._files, name: _Content()})
        return self.open(name)

    def open(self, name: str) -> TornGrowingFile:
        return TornGrowingFile(self, name, self._present(name))

    def rename(self, old: str, new: str) -> None:
        content = self._present(old)
        _check_name(new)
        others = {name: other for name, other in self._files.items() if name != old}
        self._change("rename", old, {**others, new: content})

    def remove(self, name: str) -> None:
        self._present(name)
        others = {other: content for other, content in self._files.items() if other != name}
        self._change("remove", name, others)

    def sync(self) -> None:
        self._check()
        if self.strike("sync", ".") is not None:
            raise _error(errno.EIO, ".")
        self._earlier.clear()

    def _change(self, operation: str, name: str, names: dict[str, _Content]) -> None:
        fault = self.strike(operation, name)
        if fault is None or (fault is not DiskFault.FULL and self.random.random() < 0.5):
            self._earlier.append(self._files)
            self._files = names
        if fault is not None:
            raise _error(errno.ENOSPC if fault is DiskFault.FULL else errno.EIO, name)

    def _present(self, name: str) -> _Content:
        _check_name(name)
        self._check(name)
        if name not in self._files:
            raise _error(errno.ENOENT, name)
        return self._files[name]

    def _check(self, name: str = ".") -> None:
        if not self.has_power:
            raise _error(errno.EIO, name)


def _check_name(name: str) -> None:
    if name in ("", ".", "..") or "/" in name or "\0" in name:
        raise ValueError(f"not a file name: {name!r}")


def _error(number: int, name: str) -> OSError:
    return OSError(number, "injected disk fault", name)
