"""Copies give way to appends and to readers of newest records, but not for longer than they may.

A copy at full speed takes the cores, and what is appended meanwhile waits. So each piece of a
segment stands in the line of all reads of old data (RFC 15) until the time at which it is due: what
waits on the node to be copied is due within `spread_s`, at an even rate. The rate is one of the
node, not of a partition or a run: with many partitions few have their turn at a time, and the
others wait behind them. It follows what is appended: a node that is always busy copies as much as
it takes in, `spread_s` later. One that has nothing else to do copies at full speed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from streamlog.runtime.buffers import Buffer
from streamlog.runtime.clock import Clock
from streamlog.runtime.concurrency.catch_up_throttle import ReadThrottle
from streamlog.tiered.api.storage_manager import SegmentFile


class CopyPace:
    """Of all copies of a node. `spread_s` 0: copies give way to nobody."""

    def __init__(self, throttle: ReadThrottle, clock: Clock, spread_s: float) -> None:
        self._throttle = throttle
        self._clock = clock
        self._spread_s = spread_s
        self._waiting_bytes = 0
        self._begun_bytes = 0
        self._due_at = -math.inf

    def note_waiting(self, size_bytes: int) -> None:
        """What waits on the node to be copied, as of now: told at each round of tasks."""
        self._waiting_bytes = size_bytes
        self._due_at = -math.inf

    @contextmanager
    def run(self, size_bytes: int) -> Iterator[None]:
        """A run that copies so much has begun: rounds may be far apart."""
        self._begun_bytes += size_bytes
        try:
            yield
        finally:
            self._begun_bytes -= size_bytes

    def of(self, file: SegmentFile) -> SegmentFile:
        return _PacedFile(file, self)

    async def read(self, file: SegmentFile, position: int, length: int) -> Buffer:
        # Who is not admitted by then reads all the same.
        async with self._throttle.admitted(length, deadline=self._due(length)) as grant:
            piece = await file.read(position, length)
            grant.used_bytes = len(piece)
        return piece

    def _due(self, length: int) -> float:
        due_bytes = max(self._waiting_bytes, self._begun_bytes, length)
        due = max(self._due_at, self._clock.monotonic())
        self._due_at = due + length * self._spread_s / due_bytes
        return due


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
