"""Throttles catch-up reads, so that they do not delay appends and reads near the tail.

1. Foreground I/O is appends, and reads out of the tail cache, except those of background priority:
   work that writes what it reads must not throttle itself. Without any for
   `_FOREGROUND_GONE_AFTER_S` nothing is throttled, and an answer is as large as it was asked for.
2. While there is foreground I/O, reads out of objects are admitted one after another, in pieces of
   `catch_up_piece_bytes`: handing a piece to its connection is one step of the event loop, which
   delays everything else.
3. The rate of admission grows while the loop is on time and a read waits. It is halved when the
   loop is late by more than `catch_up_loop_lag_ms`. The lag of the loop is what foreground requests
   feel, whether the interpreter or the machine is overloaded.
4. The rate never falls below `catch_up_bytes_per_s_min`, and no read waits for longer than
   `catch_up_wait_ms_max`.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from streamlog.engine.config import ReadConfig
from streamlog.engine.metrics import EngineMetrics
from streamlog.runtime.clock import Clock
from streamlog.runtime.concurrency.background import Background

_FOREGROUND_GONE_AFTER_S = 0.25
_TICK_S = 0.01
_GROWTH_BYTES_PER_S = 256 * 1024
"""Added to the rate by each tick on time: 25 MiB/s in a second."""


@dataclass(slots=True)
class ReadGrant:
    """What one admitted read may do. `is_paced`: the read's answer must end with this grant."""

    bytes_max: int
    is_paced: bool = False
    used_bytes: int = 0
    """Bytes handed out; set by the reader."""


@dataclass(frozen=True, slots=True)
class _Waiter:
    since: float
    max_bytes: int
    grant: asyncio.Future[ReadGrant]


class CatchUpThrottle:
    """Admits catch-up reads. Ticks only while catch-up reads meet foreground I/O."""

    def __init__(
        self, config: ReadConfig, background: Background, clock: Clock, metrics: EngineMetrics
    ) -> None:
        self._background = background
        self._clock = clock
        self._metrics = metrics
        self._piece_bytes = config.catch_up_piece_bytes
        self._lag_s_max = config.catch_up_loop_lag_ms / 1000
        self._wait_s_max = config.catch_up_wait_ms_max / 1000
        self._rate_min = float(config.catch_up_bytes_per_s_min)
        self._rate = self._rate_min
        self._next_at = -math.inf
        self._foreground_at = -math.inf
        self._waiting: deque[_Waiter] = deque()
        self._is_ticking = False
        self._is_in_use = False
        """A paced grant was given since the last tick."""
        self._is_closed = False
        metrics.catch_up_waiting.set_function(lambda: len(self._waiting))
        metrics.catch_up_rate.set_function(lambda: self.bytes_per_s)

    @property
    def bytes_per_s(self) -> float:
        """Current rate of all catch-up reads together; infinite without foreground I/O."""
        return self._rate if self._is_throttling(self._clock.monotonic()) else math.inf

    @property
    def admits_now(self) -> bool:
        """A read would be admitted without waiting."""
        now = self._clock.monotonic()
        return not self._is_throttling(now) or (not self._waiting and self._next_at <= now)

    def note_foreground_io(self) -> None:
        """An append, or a read out of memory, is served."""
        self._foreground_at = self._clock.monotonic()

    @asynccontextmanager
    async def admitted(self, max_bytes: int) -> AsyncIterator[ReadGrant]:
        """Waits for admission of one read.

        The grant is charged in full when it is given; at the end of the block the charge is
        corrected to `used_bytes`. Cancellation leaves the queue.
        """
        if self.admits_now:
            grant = self._grant(max_bytes, self._clock.monotonic())
        else:
            grant = await self._wait(max_bytes)
        try:
            yield grant
        finally:
            self._correct(grant)

    def close(self) -> None:
        """Admits every waiting read, and from now on each new one at once."""
        self._is_closed = True
        self._admit_due(self._clock.monotonic())

    def _is_throttling(self, now: float) -> bool:
        return not self._is_closed and now - self._foreground_at <= _FOREGROUND_GONE_AFTER_S

    def _grant(self, max_bytes: int, now: float) -> ReadGrant:
        if not self._is_throttling(now):
            return ReadGrant(max_bytes)
        self._is_in_use = True
        self._ensure_ticking()
        grant = ReadGrant(min(max_bytes, self._piece_bytes), is_paced=True)
        # The delay of one late tick is made up for, but no more than that.
        self._next_at = max(self._next_at, now - _TICK_S) + grant.bytes_max / self._rate
        return grant

    def _correct(self, grant: ReadGrant) -> None:
        if grant.is_paced:
            self._next_at += (grant.used_bytes - grant.bytes_max) / self._rate
            self._metrics.catch_up_bytes.inc(grant.used_bytes)

    async def _wait(self, max_bytes: int) -> ReadGrant:
        began = self._clock.monotonic()
        waiter = _Waiter(began, max_bytes, asyncio.get_running_loop().create_future())
        self._waiting.append(waiter)
        self._ensure_ticking()
        try:
            return await waiter.grant
        except asyncio.CancelledError:
            if waiter.grant.done() and not waiter.grant.cancelled():
                self._correct(waiter.grant.result())
            raise
        finally:
            self._metrics.catch_up_wait_seconds.inc(self._clock.monotonic() - began)

    def _ensure_ticking(self) -> None:
        if not self._is_ticking:
            self._is_ticking = True
            self._background.spawn(self._run_ticks(), name="catch_up_throttle")

    async def _run_ticks(self) -> None:
        try:
            while self._waiting or self._is_in_use:
                self._is_in_use = False
                began = self._clock.monotonic()
                await asyncio.sleep(_TICK_S)
                now = self._clock.monotonic()
                self._adapt_rate(now - began - _TICK_S)
                self._admit_due(now)
        finally:
            self._is_ticking = False

    def _adapt_rate(self, lag_s: float) -> None:
        if lag_s > self._lag_s_max:
            self._rate = max(self._rate_min, self._rate / 2)
        elif self._waiting:
            self._rate += _GROWTH_BYTES_PER_S

    def _admit_due(self, now: float) -> None:
        while self._waiting:
            waiter = self._waiting[0]
            is_due = self._next_at <= now or now - waiter.since >= self._wait_s_max
            if self._is_throttling(now) and not (waiter.grant.done() or is_due):
                return
            self._waiting.popleft()
            if not waiter.grant.done():
                waiter.grant.set_result(self._grant(waiter.max_bytes, now))
