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
from streamlog.runtime.disk.real_folder import check_name
from streamlog.runtime.rand import Random
from streamlog.testing.torn_media import (
    SECTOR_BYTES,
    DiskFault,
    FaultPlan,
    TornHandle,
    TornMedium,
    failed_by,
    injected,
)


class _Content:
    """Owns the bytes of one file, whatever its name."""

    def __init__(self) -> None:
        self.newest = bytearray()
        self._medium = bytearray()
        self._dirty: set[int] = set()
        self._clean_and_lost: set[int] = set()

    @property
    def is_dirty(self) -> bool:
        """Whether a power cut would lose some of it."""
        return bool(self._dirty or self._clean_and_lost)

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


class TornGrowingFile(TornHandle):
    """A file of a TornFolder."""

    def __init__(self, folder: TornFolder, name: str, content: _Content) -> None:
        super().__init__(folder, name)
        self._content = content
        self._end = len(content.newest)

    def append(self, parts: Sequence[Buffer]) -> int:
        fault = self._begin("write")
        data = join(parts) if parts else b""
        start = self._end
        if fault is None:
            self._content.write(start, data)
            self._end += len(data)
            return start
        written = int(self._medium.random.random() * len(data))
        self._content.write(start, memoryview(data)[:written])
        raise failed_by(fault, self._name)

    def read(self, position: int, length: int) -> bytes:
        self._check()
        return bytes(self._content.newest[position : min(position + length, self._end)])

    def read_now(self, position: int, length: int) -> Buffer | None:
        return self.read(position, length)

    def truncate(self, size: int) -> None:
        if not 0 <= size <= self.size():
            raise ValueError(f"a file of {self.size()} bytes cannot be cut to {size}")
        fault = self._begin("truncate")
        if fault is not None:
            raise failed_by(fault, self._name)
        self._content.truncate(size)
        self._end = size

    def write_again(self, position: int) -> None:
        fault = self._begin("write")
        if fault is not None:
            raise failed_by(fault, self._name)
        self._content.write(position, bytes(self._content.newest[position : self._end]))

    def sync(self) -> None:
        fault = self._begin("sync")
        if fault is not None:
            if fault is not DiskFault.POWER:
                self._content.fail_sync()
            raise failed_by(fault, self._name)
        self._content.sync()

    def size(self) -> int:
        self._check()
        return self._end


class TornFolder(TornMedium[_Content]):
    """One folder. Faults strike create, write, truncate, sync, rename, remove, and the folder's own
    `sync`, whose name is `.`."""

    def __str__(self) -> str:
        return "torn folder"

    def crash(self) -> None:
        """Cuts the power (if it is on) and restores it; what was not synced is torn."""
        self._undo_names()
        for name in sorted(self._files):
            self._files[name].lose_power(self.random)
        self._start_anew()

    def restart(self) -> None:
        """The process ends and the machine stays up: what was not synced can be read, and lost
        later."""
        self._start_anew()

    @property
    def has_pending(self) -> bool:
        """Whether a power cut would lose something."""
        return bool(self._unsynced) or any(one.is_dirty for one in self._files.values())

    def path_of(self, name: str) -> None:
        """It lies in memory."""
        return

    def create(self, name: str) -> TornGrowingFile:
        self._absent(name)
        self._change_names("create", name, {**self._files, name: _Content()})
        return self.open(name)

    def open(self, name: str) -> TornGrowingFile:
        return TornGrowingFile(self, name, self._present(name))

    def open_to_read(self, name: str) -> TornGrowingFile:
        return self.open(name)

    def sync(self) -> None:
        self._check(".")
        fault = self.strike("sync", ".")
        if fault is not None:
            raise failed_by(fault, ".")
        self._sync_names()


class TornTree:
    """A FolderTree of torn folders. Names of folders are durable at once, as its contract says."""

    def __init__(self, random: Random, plan_faults: FaultPlan | None = None) -> None:
        self._random = random
        self._plan_faults = plan_faults
        self.top = TornFolder(random, plan_faults)
        self._folders: dict[str, TornFolder] = {}

    def __str__(self) -> str:
        return "torn tree"

    def plan_faults(self, plan: FaultPlan | None) -> None:
        """Faults of all folders from now on. A power cut ends all of them."""

        def strike(operation: str, name: str) -> DiskFault | None:
            fault = None if plan is None else plan(operation, name)
            if fault is DiskFault.POWER:
                for folder in (self.top, *self._folders.values()):
                    folder.has_power = False
            return fault

        self._plan_faults = strike
        for folder in (self.top, *self._folders.values()):
            folder.plan_faults = strike

    def crash(self) -> None:
        """As TornFolder.crash, of all folders at once."""
        self.top.crash()
        for name in sorted(self._folders):
            self._folders[name].crash()

    def restart(self) -> None:
        """As TornFolder.restart, of all folders at once."""
        self.top.restart()
        for folder in self._folders.values():
            folder.restart()

    @property
    def has_pending(self) -> bool:
        """As TornFolder.has_pending, of any folder."""
        return self.top.has_pending or any(one.has_pending for one in self._folders.values())

    def folders(self) -> list[str]:
        return sorted(self._folders)

    def make(self, name: str) -> TornFolder:
        check_name(name)
        self.top.list()  # It fails while the power is off.
        if name not in self._folders:
            self._folders[name] = TornFolder(self._random, self._plan_faults)
        return self._folders[name]

    def open(self, name: str) -> TornFolder:
        self.top.list()
        if name not in self._folders:
            raise injected(errno.ENOENT, name)
        return self._folders[name]

    def rename(self, old: str, new: str) -> None:
        folder = self.open(old)
        if new in self._folders:
            raise injected(errno.EEXIST, new)
        check_name(new)
        self._folders[new] = folder
        del self._folders[old]

    def remove(self, name: str) -> None:
        self.top.list()
        self._folders.pop(name, None)
