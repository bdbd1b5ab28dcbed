"""A Disk in memory that loses and tears unacknowledged writes at a power cut.

1. A file is a row of 512-byte sectors. Each has the content that is on the medium, and the contents
   that were written since without being certain (`pending`); reads see the newest.
2. `write_sync` makes its sectors certain, unless a fault strikes or writes are held.
3. A power cut leaves each pending sector with any of its contents, chosen by the injected Random.
4. A failed write or sync leaves what was pending as Linux does: readable, and taken for clean
   (`dropped`). A later sync succeeds and writes none of it; only writing the sector again does.
   The page may leave the cache before the power goes: reads then see what is on the medium.
5. A file that was made, renamed or removed is durable with the folder's sync, which ends the call.
   A fault in between leaves the change visible, and a power cut may undo it.
6. After a power cut every call fails until `crash`; handles opened before stay dead.

A write whose acknowledgement is still on its way (a simulator delivers it later in virtual time)
may be torn as well: with `hold_writes` it stays pending until `acknowledge`.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Sequence

from streamlog.runtime.buffers import Buffer, join
from streamlog.runtime.rand import Random
from streamlog.testing.torn_media import (
    SECTOR_BYTES,
    DiskFault,
    FaultPlan,
    TornHandle,
    TornMedium,
    failed_by,
)


class _Content:
    def __init__(self, size: int) -> None:
        self.newest = bytearray(size)
        self.pending: dict[int, list[bytes]] = {}
        """Sector → its possible contents after a power cut; the first is on the medium."""
        self.dropped: dict[int, list[bytes]] = {}
        """The same for sectors whose write-back failed: clean pages, which no sync writes."""

    def write(self, position: int, data: Buffer) -> range:
        end = position + len(data)
        if end > len(self.newest):
            raise OSError(errno.EFBIG, "a write past the end of a file of fixed size")
        sectors = range(position // SECTOR_BYTES, -(-end // SECTOR_BYTES))
        before = [self.sector(sector) for sector in sectors]
        self.newest[position:end] = data
        for sector, old in zip(sectors, before, strict=True):
            contents = self.dropped.pop(sector, None) or self.pending.get(sector, [old])
            self.pending[sector] = [*contents, self.sector(sector)]
        return sectors

    def sector(self, sector: int) -> bytes:
        return bytes(self.newest[sector * SECTOR_BYTES : (sector + 1) * SECTOR_BYTES])

    def make_durable(self, sectors: range) -> None:
        for sector in sectors:
            self.pending.pop(sector, None)

    def sync(self) -> None:
        """Makes pending sectors durable; clean pages are not written."""
        self.pending.clear()

    def fail(self, sectors: Iterable[int]) -> None:
        """The write-back of the sectors fails."""
        for sector in list(sectors):
            if sector in self.pending:
                self.dropped[sector] = self.pending.pop(sector)

    def evict(self) -> None:
        """Clean pages leave the cache: reads see the medium again."""
        for sector, contents in self.dropped.items():
            self._put(sector, contents[0])
        self.dropped.clear()

    def tear(self, random: Random, sectors: Iterable[int]) -> None:
        """Leaves one of its possible contents in each sector that is not durable."""
        keep = (0.0, 1.0, random.random())[int(random.random() * 3)]
        for sector in list(sectors):
            contents = self.pending.pop(sector, None) or self.dropped.pop(sector, None)
            if contents is None:
                continue
            if random.random() < keep:
                self._put(sector, contents[1 + int(random.random() * (len(contents) - 1))])
            else:
                self._put(sector, contents[0])

    def lose_power(self, random: Random) -> None:
        self.tear(random, [*self.pending, *self.dropped])

    def _put(self, sector: int, content: bytes) -> None:
        start = sector * SECTOR_BYTES
        self.newest[start : start + len(content)] = content


class TornFile(TornHandle):
    """A file of a TornDisk."""

    def __init__(self, disk: TornDisk, name: str, content: _Content) -> None:
        super().__init__(disk, name)
        self._disk = disk
        self._content = content

    def write_sync(self, position: int, parts: Sequence[Buffer]) -> None:
        fault = self._begin("write")
        data = join(parts) if parts else b""
        if fault is DiskFault.FULL:
            whole = int(self._disk.random.random() * len(data)) // SECTOR_BYTES * SECTOR_BYTES
            self._content.make_durable(self._content.write(position, memoryview(data)[:whole]))
            raise failed_by(fault, self._name)
        sectors = self._content.write(position, data)
        if fault is DiskFault.IO_ERROR:
            if self._disk.random.random() < 0.5:
                self._content.tear(self._disk.random, sectors)
            self._content.fail(sectors)
        if fault is not None:
            raise failed_by(fault, self._name)
        if self._disk.hold_writes:
            self._disk.held.append((self._content, sectors))
        else:
            self._content.make_durable(sectors)

    def read(self, position: int, length: int) -> bytes:
        self._check()
        return bytes(self._content.newest[position : position + length])

    def sync(self) -> None:
        fault = self._begin("sync")
        if fault is not None:
            if fault is not DiskFault.POWER:
                self._content.fail(self._content.pending)
            raise failed_by(fault, self._name)
        self._content.sync()

    def size(self) -> int:
        self._check()
        return len(self._content.newest)


class TornDisk(TornMedium[_Content]):
    """One folder; each call that changes names ends with the folder's sync."""

    def __init__(self, random: Random, plan_faults: FaultPlan | None = None) -> None:
        super().__init__(random, plan_faults)
        self.hold_writes = False
        self.held: list[tuple[_Content, range]] = []

    def __str__(self) -> str:
        return "torn disk"

    @property
    def has_pending(self) -> bool:
        """Whether there are writes that a power cut may lose."""
        return any(content.pending or content.dropped for content in self._files.values())

    def crash(self) -> None:
        """Cuts the power (if it is on) and restores it; pending writes are torn."""
        self._undo_names()
        for name in sorted(self._files):
            self._files[name].lose_power(self.random)
        self._start_anew()

    def restart(self) -> None:
        """The process ends and the machine stays up: pending writes can be read, and lost later.

        The next process opens the folder, which syncs its names.
        """
        for name in sorted(self._files):
            content = self._files[name]
            if content.dropped and self.random.random() < 0.25:
                content.evict()
        self._start_anew()
        self._sync_names()

    def acknowledge(self) -> None:
        """Makes held writes durable: their callers have been answered."""
        for content, sectors in self.held:
            content.make_durable(sectors)
        self.held.clear()

    def flip(self, name: str, position: int, mask: int = 1) -> None:
        """Damages a byte of the medium."""
        self._files[name].newest[position] ^= mask

    def create(self, name: str, size: int) -> TornFile:
        self._absent(name)
        fault = self.strike("create", name)
        if fault is DiskFault.POWER:
            self._change({**self._files, name: _Content(int(self.random.random() * (size + 1)))})
        if fault is not None:
            raise failed_by(fault, name)
        self._change({**self._files, name: _Content(size)})
        self._sync_names()
        return self.open(name)

    def open(self, name: str) -> TornFile:
        return TornFile(self, name, self._present(name))

    def _change_names(self, operation: str, name: str, names: dict[str, _Content]) -> None:
        super()._change_names(operation, name, names)
        self._sync_names()

    def _start_anew(self) -> None:
        super()._start_anew()
        self.held.clear()
