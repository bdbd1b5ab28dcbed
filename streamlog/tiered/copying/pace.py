"""Copies give way to appends and to readers of newest records, but not for longer than they may.

A copy at full speed takes the cores, and what is appended meanwhile waits. So each piece of a
segment stands in the line of all reads of old data (RFC 15), until the time at which it is due: a
run is spread over a part of the time until the next one. A node that is on time, or has nothing
else to do, copies at full speed; one that is always late copies all the same what is written.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from streamlog.runtime.buffers import Buffer
from streamlog.runtime.clock import Clock
from streamlog.runtime.concurrency.catch_up_throttle import ReadThrottle
from streamlog.tiered.api.storage_manager import SegmentFile


class CopyPace:
    """Of one run that copies `size_bytes`, within `spread_s` if the store is as fast."""

    def __init__(
        self, throttle: ReadThrottle, clock: Clock, size_bytes: int, spread_s: float
    ) -> None:
        self._throttle = throttle
        self._began = clock.monotonic()
        self._s_per_byte = spread_s / max(size_bytes, 1)
        self._read_bytes = 0

    def of(self, file: SegmentFile) -> SegmentFile:
        return _PacedFile(file, self)

    async def read(self, file: SegmentFile, position: int, length: int) -> Buffer:
        due = self._began + self._read_bytes * self._s_per_byte
        # Who is not admitted by then reads all the same.
        async with self._throttle.admitted(length, deadline=due) as grant:
            piece = await file.read(position, length)
            grant.used_bytes = len(piece)
        self._read_bytes += len(piece)
        return piece


@dataclass(frozen=True, slots=True)
class _PacedFile(SegmentFile):
    _file: SegmentFile
    _pace: CopyPace = field(repr=False)

    @property
    def size_bytes(self) -> int:
        return self._file.size_bytes

    @property
    def path(self) -> Path | None:
        return self._file.path

    async def read(self, position: int, length: int) -> Buffer:
        """As SegmentFile.read, when it may."""
        return await self._pace.read(self._file, position, length)
