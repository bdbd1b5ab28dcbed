"""Throttles catch-up reads, so that they do not delay appends and reads near the tail.

A process has one throttle for all kinds of logs: what it protects, the event loop and the machine,
is shared by all of them.

1. Foreground I/O is appends, and reads at the end of a log, except those of background priority:
   work that writes what it reads must not throttle itself. Nor does a task: a consumer reads its
   partitions one after another, and has reached the end of one before that of the next. Without
   foreground I/O of others for `_FOREGROUND_GONE_AFTER_S` a read is not throttled, and its answer
   is as large as it was asked for.
2. While there is foreground I/O, reads of older data are admitted one after another, in pieces of
   `piece_bytes`: handing a piece to its connection is one step of the event loop, which delays
   everything else.
3. The rate of admission grows while the loop is on time and a read waits. It is halved when the
   loop is late by more than `loop_lag_ms`. The lag of the loop is what foreground requests feel,
   whether the interpreter or the machine is overloaded.
4. The rate never falls below `bytes_per_s_min`, and no read waits for longer than `wait_ms_max`.
5. A read that gives up at its deadline may keep its place: it stays in the line, and its turn is
   reserved for `_PLACE_KEPT_S` when it comes. So readers that wait for less than a turn takes get
   theirs all the same, in the order in which they came.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import AsyncIterator, Hashable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge

from streamlog.runtime.clock import Clock
from streamlog.runtime.concurrency.background import Background

_FOREGROUND_GONE_AFTER_S = 0.25
_TICK_S = 0.01
_GROWTH_BYTES_PER_S = 256 * 1024
"""Added to the rate by each tick on time: 25 MiB/s in a second."""
_PLACE_KEPT_S = 2.0


@dataclass(slots=True)
class ReadGrant:
    """What one read may do. `is_paced`: the read's answer must end with this grant.

    Not `is_admitted`: the deadline came first, and the read may do nothing.
    """

    bytes_max: int
    is_paced: bool = False
    is_admitted: bool = True
    used_bytes: int = 0
    """Bytes handed out; set by the reader."""


class ReadThrottle(Protocol):
    """What those who read old data, and those to whom they give way, ask of the throttle."""

    @property
    def admits_now(self) -> bool:
        """A read would be admitted without waiting."""
        ...

    @property
    def is_throttling(self) -> bool:
        """Foreground I/O of others than the caller's task is served."""
        ...

    def note_foreground_io(self) -> None:
        """An append, or a read at a log's end, is served."""
        ...

    def admitted(
        self, max_bytes: int, *, place: Hashable = None, deadline: float | None = None
    ) -> AbstractAsyncContextManager[ReadGrant]:
        """Waits for admission of one read, until the deadline (monotonic seconds).

        The grant is charged in full when it is given; at the end of the block the charge is
        corrected to `used_bytes`. `place` names the read: the next one of this name goes on where
        one that its deadline cut off stood in line. Cancellation leaves the line.
        """
        ...


class NoThrottle:
    """Admits every read at once, with all that it asks for."""

    admits_now = True
    is_throttling = False

    def note_foreground_io(self) -> None:
        """Nobody gives way."""

    @asynccontextmanager
    async def admitted(
        self, max_bytes: int, *, place: Hashable = None, deadline: float | None = None
    ) -> AsyncIterator[ReadGrant]:
        """As ReadThrottle.admitted."""
        yield ReadGrant(max_bytes)


NO_THROTTLE = NoThrottle()


@dataclass(frozen=True, slots=True)
class CatchUpLimits:
    """Of the throttle; `engine/config.py` documents the settings."""

    bytes_per_s_min: int
    piece_bytes: int
    loop_lag_ms: float
    wait_ms_max: int


class CatchUpMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        self.waiting = Gauge(
            "streamlog_engine_catch_up_waiting",
            "Catch-up reads (fetches behind the tail cache, far from the end of a log in local "
            "files, or of the remote tier) that wait for the throttle.",
            registry=registry,
        )
        self.rate = Gauge(
            "streamlog_engine_catch_up_bytes_per_second",
            "Rate that the throttle allows for all catch-up reads together; +Inf while it does not "
            "throttle.",
            registry=registry,
        )
        self.bytes = Counter(
            "streamlog_engine_catch_up_bytes",
            "Bytes of catch-up reads that were throttled.",
            registry=registry,
        )
        self.wait_seconds = Counter(
            "streamlog_engine_catch_up_wait_seconds",
            "Time that catch-up reads waited for the throttle.",
            registry=registry,
        )


_Task = asyncio.Task[object] | None


class _Foreground:
    """When there was foreground I/O last: by the newest task that had any, and by all others."""

    def __init__(self) -> None:
        self._task: _Task = None
        self._at = -math.inf
        self._others_at = -math.inf

    def note(self, task: _Task, now: float) -> None:
        if task is not self._task:
            self._task, self._others_at = task, self._at
        self._at = now

    def last_beside(self, task: _Task) -> float:
        """Without what the task itself had; None is no task of anybody."""
        return self._others_at if task is not None and task is self._task else self._at


@dataclass(slots=True, eq=False)
class _Waiter:
    since: float
    max_bytes: int
    reader: _Task
    grant: asyncio.Future[ReadGrant]
    is_awaited: bool = True
    granted_at: float = math.inf


class CatchUpThrottle:
    """A ReadThrottle. It ticks only while catch-up reads meet foreground I/O."""

    def __init__(
        self, limits: CatchUpLimits, background: Background, clock: Clock, metrics: CatchUpMetrics
    ) -> None:
        self._background = background
        self._clock = clock
        self._metrics = metrics
        self._piece_bytes = limits.piece_bytes
        self._lag_s_max = limits.loop_lag_ms / 1000
        self._wait_s_max = limits.wait_ms_max / 1000
        self._rate_min = float(limits.bytes_per_s_min)
        self._rate = self._rate_min
        self._next_at = -math.inf
        self._foreground = _Foreground()
        self._waiting: deque[_Waiter] = deque()
        self._places: dict[Hashable, _Waiter] = {}
        """By name: those in line, and those whose turn is reserved."""
        self._is_ticking = False
        self._is_in_use = False
        """A paced grant was given since the last tick."""
        self._is_closed = False
        metrics.waiting.set_function(lambda: len(self._waiting))
        metrics.rate.set_function(lambda: self.bytes_per_s)

    @property
    def bytes_per_s(self) -> float:
        """Current rate of all catch-up reads together; infinite without foreground I/O."""
        return self._rate if self._is_throttling(None, self._clock.monotonic()) else math.inf

    @property
    def admits_now(self) -> bool:
        """As ReadThrottle.admits_now."""
        now = self._clock.monotonic()
        if not self._is_throttling(asyncio.current_task(), now):
            return True
        return not self._waiting and self._next_at <= now

    @property
    def is_throttling(self) -> bool:
        """As ReadThrottle.is_throttling."""
        return self._is_throttling(asyncio.current_task(), self._clock.monotonic())

    def note_foreground_io(self) -> None:
        """As ReadThrottle.note_foreground_io."""
        self._foreground.note(asyncio.current_task(), self._clock.monotonic())

    @asynccontextmanager
    async def admitted(
        self, max_bytes: int, *, place: Hashable = None, deadline: float | None = None
    ) -> AsyncIterator[ReadGrant]:
        """As ReadThrottle.admitted."""
        if self.admits_now and place not in self._places:
            grant = self._grant(max_bytes, asyncio.current_task(), self._clock.monotonic())
        else:
            grant = await self._wait(max_bytes, place, deadline)
        try:
            yield grant
        finally:
            self._correct(grant)

    def close(self) -> None:
        """Admits every waiting read, and from now on each new one at once."""
        self._is_closed = True
        self._admit_due(self._clock.monotonic())

    def _is_throttling(self, reader: _Task, now: float) -> bool:
        last = self._foreground.last_beside(reader)
        return not self._is_closed and now - last <= _FOREGROUND_GONE_AFTER_S

    def _grant(self, max_bytes: int, reader: _Task, now: float) -> ReadGrant:
        if not self._is_throttling(reader, now):
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
            self._metrics.bytes.inc(grant.used_bytes)

    async def _wait(self, max_bytes: int, place: Hashable, deadline: float | None) -> ReadGrant:
        began = self._clock.monotonic()
        waiter = self._in_line(max_bytes, place, began)
        grant = waiter.grant
        left_s = None if deadline is None else max(deadline - began, 0)
        try:
            await asyncio.wait({grant}, timeout=left_s)
        except asyncio.CancelledError:
            self._leave(place, waiter)
            raise
        finally:
            waiter.is_awaited = False
            self._metrics.wait_seconds.inc(self._clock.monotonic() - began)
        if grant.done():
            self._forget(place, waiter)
            return self._fitted(grant.result(), max_bytes)
        if place is None or self._places.get(place) is not waiter:
            self._leave(place, waiter)
        return ReadGrant(0, is_admitted=False)

    def _in_line(self, max_bytes: int, place: Hashable, now: float) -> _Waiter:
        """The place that was kept, or one at the end of the line."""
        waiter = None if place is None else self._places.get(place)
        if waiter is not None and not waiter.is_awaited:
            waiter.is_awaited = True
            waiter.reader = asyncio.current_task()
            return waiter
        grant: asyncio.Future[ReadGrant] = asyncio.get_running_loop().create_future()
        new = _Waiter(now, max_bytes, asyncio.current_task(), grant)
        self._waiting.append(new)
        if place is not None and waiter is None:
            self._places[place] = new
        self._ensure_ticking()
        return new

    def _fitted(self, grant: ReadGrant, max_bytes: int) -> ReadGrant:
        """The grant of a place that was kept, for what its reader asks for now."""
        reader, now = asyncio.current_task(), self._clock.monotonic()
        if grant.is_paced and not self._is_throttling(reader, now):
            self._correct(grant)
            return ReadGrant(max_bytes)
        if grant.bytes_max > max_bytes:
            self._correct(grant)
            return self._grant(max_bytes, reader, now)
        return grant

    def _leave(self, place: Hashable, waiter: _Waiter) -> None:
        self._forget(place, waiter)
        if not waiter.grant.done():
            waiter.grant.cancel()
        elif not waiter.grant.cancelled():
            self._correct(waiter.grant.result())

    def _forget(self, place: Hashable, waiter: _Waiter) -> None:
        if place is not None and self._places.get(place) is waiter:
            del self._places[place]

    def _ensure_ticking(self) -> None:
        if not self._is_ticking:
            self._is_ticking = True
            self._background.spawn(self._run_ticks(), name="catch_up_throttle")

    async def _run_ticks(self) -> None:
        try:
            while self._waiting or self._places or self._is_in_use:
                self._is_in_use = False
                began = self._clock.monotonic()
                await asyncio.sleep(_TICK_S)
                now = self._clock.monotonic()
                self._adapt_rate(now - began - _TICK_S)
                self._admit_due(now)
                self._drop_unclaimed(now)
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
            if self._is_throttling(waiter.reader, now) and not (waiter.grant.done() or is_due):
                return
            self._waiting.popleft()
            if not waiter.grant.done():
                waiter.granted_at = now
                waiter.grant.set_result(self._grant(waiter.max_bytes, waiter.reader, now))

    def _drop_unclaimed(self, now: float) -> None:
        """Turns whose readers have not come back go to others."""
        for place, waiter in list(self._places.items()):
            if not waiter.is_awaited and now - waiter.granted_at > _PLACE_KEPT_S:
                self._leave(place, waiter)
