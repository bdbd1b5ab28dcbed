"""Readers far behind give way: while others are served, they get what the event loop has left.

1. Others are appends, and reads out of the tail cache. Without any for `_ALONE_AFTER_S` nobody
   waits, and an answer is as large as it was asked for.
2. Else reads out of objects come in turn, in pieces of `lagging_piece_bytes`: a piece is handed to
   its connection in one step of the loop, and whoever comes meanwhile waits for it.
3. They come at a rate that grows while the loop is on time and somebody waits, and is halved when
   the loop is late by more than `lagging_loop_lag_ms`: its lag is what all others feel, whether the
   interpreter or the machine is short.
4. The rate stays at `lagging_bytes_per_s_min` or above, and nobody waits for longer than
   `lagging_wait_ms_max`.
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

_ALONE_AFTER_S = 0.25
_TICK_S = 0.01
_GROWTH_BYTES_PER_S = 256 * 1024
"""Added to the rate by each tick on time: 25 MiB/s in a second."""


@dataclass(slots=True)
class Turn:
    """What one read out of objects may do. `is_paced`: its answer is to end with it."""

    bytes_max: int
    is_paced: bool = False
    used_bytes: int = 0
    """Set by the reader: what it handed out."""


@dataclass(frozen=True, slots=True)
class _Waiter:
    since: float
    max_bytes: int
    turn: asyncio.Future[Turn]


class LaggingTurns:
    """Ticks while far-behind readers and others are served at the same time."""

    def __init__(
        self, config: ReadConfig, background: Background, clock: Clock, metrics: EngineMetrics
    ) -> None:
        self._background = background
        self._clock = clock
        self._metrics = metrics
        self._piece_bytes = config.lagging_piece_bytes
        self._late_s = config.lagging_loop_lag_ms / 1000
        self._wait_s_max = config.lagging_wait_ms_max / 1000
        self._rate_min = float(config.lagging_bytes_per_s_min)
        self._rate = self._rate_min
        self._next_at = -math.inf
        self._others_at = -math.inf
        self._waiting: deque[_Waiter] = deque()
        self._is_ticking = False
        self._is_in_use = False
        """A paced turn was given since the last tick."""
        self._is_closed = False
        metrics.lagging_waiting.set_function(lambda: len(self._waiting))
        metrics.lagging_rate.set_function(lambda: self.bytes_per_s)

    @property
    def bytes_per_s(self) -> float:
        """What far-behind readers may get now, all together; infinite while they are alone."""
        return math.inf if self._is_alone(self._clock.monotonic()) else self._rate

    @property
    def is_free(self) -> bool:
        """A turn would be had without waiting."""
        now = self._clock.monotonic()
        return self._is_alone(now) or (not self._waiting and self._next_at <= now)

    def others(self) -> None:
        """An append, or a read out of memory, is served."""
        self._others_at = self._clock.monotonic()

    @asynccontextmanager
    async def turn(self, max_bytes: int) -> AsyncIterator[Turn]:
        """Charged for what it may use when it is given, and at its end for what it used.

        Cancellation leaves the queue.
        """
        if self.is_free:
            turn = self._given(max_bytes, self._clock.monotonic())
        else:
            turn = await self._wait(max_bytes)
        try:
            yield turn
        finally:
            self._correct(turn)

    def close(self) -> None:
        """Admits all who wait, and all who come later."""
        self._is_closed = True
        self._admit(self._clock.monotonic())

    def _is_alone(self, now: float) -> bool:
        return self._is_closed or now - self._others_at > _ALONE_AFTER_S

    def _given(self, max_bytes: int, now: float) -> Turn:
        if self._is_alone(now):
            return Turn(max_bytes)
        self._is_in_use = True
        self._tick()
        turn = Turn(min(max_bytes, self._piece_bytes), is_paced=True)
        # What a tick came late for is made up for, and no more.
        self._next_at = max(self._next_at, now - _TICK_S) + turn.bytes_max / self._rate
        return turn

    def _correct(self, turn: Turn) -> None:
        if turn.is_paced:
            self._next_at += (turn.used_bytes - turn.bytes_max) / self._rate
            self._metrics.lagging_bytes.inc(turn.used_bytes)

    async def _wait(self, max_bytes: int) -> Turn:
        began = self._clock.monotonic()
        waiter = _Waiter(began, max_bytes, asyncio.get_running_loop().create_future())
        self._waiting.append(waiter)
        self._tick()
        try:
            return await waiter.turn
        except asyncio.CancelledError:
            if waiter.turn.done() and not waiter.turn.cancelled():
                self._correct(waiter.turn.result())
            raise
        finally:
            self._metrics.lagging_wait_seconds.inc(self._clock.monotonic() - began)

    def _tick(self) -> None:
        if not self._is_ticking:
            self._is_ticking = True
            self._background.spawn(self._ticks(), name="lagging_turns")

    async def _ticks(self) -> None:
        try:
            while self._waiting or self._is_in_use:
                self._is_in_use = False
                began = self._clock.monotonic()
                await asyncio.sleep(_TICK_S)
                now = self._clock.monotonic()
                self._adapt(now - began - _TICK_S)
                self._admit(now)
        finally:
            self._is_ticking = False

    def _adapt(self, lag_s: float) -> None:
        if lag_s > self._late_s:
            self._rate = max(self._rate_min, self._rate / 2)
        elif self._waiting:
            self._rate += _GROWTH_BYTES_PER_S

    def _admit(self, now: float) -> None:
        while self._waiting:
            waiter = self._waiting[0]
            is_due = self._next_at <= now or now - waiter.since >= self._wait_s_max
            if not (waiter.turn.done() or is_due or self._is_alone(now)):
                return
            self._waiting.popleft()
            if not waiter.turn.done():
                waiter.turn.set_result(self._given(waiter.max_bytes, now))
