"""Copies give way to appends and to readers of newest records, but not for longer than they may.

A copy at full speed takes the cores, and what is appended meanwhile waits. So while others are
served (RFC 15) what waits on the node to be copied goes at an even rate, at which it takes
`spread_s`. The rate is one of the node, not of a partition or a run: with many partitions few have
their turn at a time, and the others wait behind them. It follows what is appended: a node that is
always busy copies as much as it takes in, `spread_s` later. One that has nothing else to do copies
at full speed. Copies take no turns of readers that catch up: these have their own least rate.

Pieces have their turns one by one, so copies under way have equal shares, and a large segment
beside many small ones would have that of a small one. So a copy that has begun waits no longer than
an even rate of its own asks for, at which it takes `spread_s`.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from streamlog.log.api.tiering import LocalFile, LocalSegmentFiles
from streamlog.objectstore.interface import SendRate
from streamlog.runtime.buffers import Buffer
from streamlog.runtime.clock import Clock
from streamlog.runtime.concurrency.catch_up_throttle import ReadThrottle

RATE_MIN = 8 << 20
"""Bytes a second of copies in any case: nobody feels them, and a little is soon done."""
SEND_RATE_MIN = 64 << 20
"""Bytes a second of one request: a copy holds memory and a connection while it sends."""
REQUEST_BYTES = 1 << 20
"""What a small file is charged: its request costs as much as so many bytes of a large one."""
PIECE_BYTES = 512 << 10
"""Of a file, which a thread reads in 0.2 ms: whoever appends meanwhile waits for its core."""
LOOK_S = 0.1
"""Between two looks whether others are still served."""
INDEXES = 4
"""Of a segment that are charged so."""


class Sized(Protocol):
    @property
    def size_bytes(self) -> int: ...


def charge(segment: Sized) -> int:
    """What a copy of it counts as: its indexes are requests, too."""
    return segment.size_bytes + INDEXES * REQUEST_BYTES


class CopyPace:
    """Of all copies of a node. `spread_s` 0: copies give way to nobody."""

    def __init__(
        self,
        throttle: ReadThrottle,
        clock: Clock,
        spread_s: float,
        sending: SendRate | None = None,
    ) -> None:
        self._throttle = throttle
        self._clock = clock
        self._spread_s = spread_s
        self._sending = sending or SendRate()
        self._waiting_bytes = 0
        self._begun_bytes = 0
        self._rate_max = math.inf
        self._due_at = -math.inf

    def note_waiting(self, segments: Iterable[Sized]) -> None:
        """What may be copied on the node, as of now: told at each round of tasks."""
        self._waiting_bytes = sum(map(charge, segments))
        self._due_at = -math.inf

    def set_quota(self, rate: int) -> None:
        """Bytes a second that are let in: no more waits than these, however much there is."""
        # A segment has to be copied by the time when there is room for the next one.
        self._rate_max = max(2 * rate, RATE_MIN)

    @contextmanager
    def copy(self, segment: Sized) -> Iterator[PacedCopy]:
        """A copy has begun, and has its time, whatever the next rounds and quotas say, and whatever
        else is copied."""
        begun_bytes = charge(segment)
        self._begun_bytes += begun_bytes
        try:
            yield PacedCopy(self, begun_bytes / self._spread_s if self._spread_s else math.inf)
        finally:
            self._begun_bytes -= begun_bytes

    async def turn(self, size_bytes: int, due_at_most: float) -> None:
        """Waits until so much is due, or nobody else is served; until `due_at_most` at most."""
        begun = self._begun_bytes / self._spread_s
        wanted = max(self._waiting_bytes / self._spread_s, RATE_MIN)
        rate = max(min(wanted, self._rate_max), begun)
        if self.is_beside_others:
            due = max(self._due_at, self._clock.monotonic())
            self._due_at = due + size_bytes / rate
            due = min(due, due_at_most)
            while (left_s := self._left_s(due)) > 0:  # noqa: ASYNC110 - nobody tells their end
                await asyncio.sleep(min(left_s, LOOK_S))
        if self.is_beside_others:
            self._sending.bytes_per_s = max(2 * rate, SEND_RATE_MIN)
        else:
            # What goes at full speed is no debt.
            self._due_at = -math.inf
            self._sending.bytes_per_s = math.inf

    @property
    def is_beside_others(self) -> bool:
        return self._throttle.is_throttling

    def now(self) -> float:
        return self._clock.monotonic()

    def _left_s(self, due: float) -> float:
        return due - self._clock.monotonic() if self.is_beside_others else 0


class PacedCopy:
    """One copy, which waits no longer than its own `rate` in bytes a second asks for."""

    def __init__(self, pace: CopyPace, rate: float) -> None:
        self._pace = pace
        self._rate = rate
        self._due_at = -math.inf

    def of(self, files: LocalSegmentFiles) -> LocalSegmentFiles:
        if self._rate == math.inf:
            return files
        aborted = files.transaction_index
        return LocalSegmentFiles(
            _PacedFile(files.log_segment, self, PIECE_BYTES),
            _PacedFile(files.offset_index, self),
            _PacedFile(files.time_index, self),
            None if aborted is None else _PacedFile(aborted, self),
            _PacedFile(files.producer_snapshot, self),
            files.leader_epoch_index,
        )

    async def turn(self, size_bytes: int) -> None:
        # Time that was lost elsewhere, as in a slow store, is no debt: the copy does not hurry.
        due = max(self._due_at, self._pace.now())
        self._due_at = due + size_bytes / self._rate
        await self._pace.turn(size_bytes, due)

    @property
    def is_beside_others(self) -> bool:
        return self._pace.is_beside_others


@dataclass(frozen=True, slots=True)
class _PacedFile:
    """A SegmentFile. `_piece_bytes` bounds a read beside others; 0: an index comes as a whole."""

    _file: LocalFile
    _copy: PacedCopy = field(repr=False)
    _piece_bytes: int = 0

    @property
    def size_bytes(self) -> int:
        return self._file.size_bytes

    @property
    def path(self) -> Path | None:
        return self._file.path

    async def read(self, position: int, length: int) -> Buffer:
        """As SegmentFile.read, when it may."""
        if self._piece_bytes and self._copy.is_beside_others:
            length = min(length, self._piece_bytes)
        charged = min(length, max(self.size_bytes - position, 0))
        if self.size_bytes < REQUEST_BYTES:
            charged = 0 if position else REQUEST_BYTES
        await self._copy.turn(charged)
        return await self._file.read(position, length)
