"""Watches whether a store answers: requests without an answer, and those that fail repeatedly.

A failed *call* is no answer (Unavailable, OutcomeUnknown). Every other result is one, also that
there is no such object, or that a compare did not hold. A full disk is a case of its own: the store
answers, but can store nothing more.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from streamlog.errors import Closed, DiskFull, OutcomeUnknown, StreamlogError, Unavailable
from streamlog.runtime.clock import Clock
from streamlog.runtime.concurrency.background import Background
from streamlog.runtime.progress import Due, ProgressConfig

T = TypeVar("T")

log = logging.getLogger(__name__)

FORGET_S = 60.0
"""A failure is forgotten when no request of its kind was sent for so long."""
PROBES_MAX = 4
PROBE_S_MAX = 60.0


class _Failing:
    """Failures of one kind of request since its last success."""

    __slots__ = ("count", "error", "last_at", "since")

    def __init__(self, since: float) -> None:
        self.since = since
        """When the first failed request was sent."""
        self.count = 0
        self.last_at = since
        self.error: BaseException | None = None

    def add(self, error: BaseException, now: float) -> None:
        self.count += 1
        self.error, self.last_at = error, now


class Answers:
    """Sees all requests to one store. Costs two reads of the clock per request.

    `is_quick`: every request must be answered in time (metadata). Otherwise a large body may take
    longer, as long as the store answers other requests meanwhile (`Probes` sends some).
    """

    def __init__(self, name: str, clock: Clock, *, is_quick: bool) -> None:
        self._name = name
        self._clock = clock
        self._is_quick = is_quick
        self._open: dict[int, tuple[float, str]] = {}
        """Requests without an answer, by number, in the order in which they were sent."""
        self._number = 0
        self._failing: dict[bool, _Failing] = {}
        """Key: whether the requests write."""
        self._full: _Failing | None = None
        self.answered_at = clock.monotonic()

    async def of(self, operation: str, request: Awaitable[T], *, writes: bool = False) -> T:
        """Awaits `request`; returns or raises what it does."""
        self._number += 1
        number, sent_at = self._number, self._clock.monotonic()
        self._open[number] = (sent_at, operation)
        try:
            result = await request
        except DiskFull as error:
            self._full = self._full or _Failing(sent_at)
            self._full.add(error, self._answered())
            raise
        except Closed:
            raise
        except (Unavailable, OutcomeUnknown) as error:
            failing = self._failing.setdefault(writes, _Failing(sent_at))
            failing.add(error, self._clock.monotonic())
            raise
        except StreamlogError:
            self._answered()
            raise
        else:
            self._answered()
            if self._failing:
                self._failing.pop(False, None)
                if writes:
                    self._failing.clear()
            if writes:
                self._full = None
            return result
        finally:
            del self._open[number]

    def _answered(self) -> float:
        self.answered_at = now = self._clock.monotonic()
        return now

    @property
    def is_silent(self) -> bool:
        """Whether a request waits for its answer, or failed."""
        return bool(self._open or self._failing)

    def unanswered(self, after_s: float) -> Due | None:
        """A check: the request that the store does not answer, and since when."""
        now = self._clock.monotonic()
        for kind, failing in list(self._failing.items()):
            if now - failing.last_at > FORGET_S:
                del self._failing[kind]
            elif failing.count > 1:
                return Due("", f"{self._name} fails: {failing.error}", after_s, failing.since)
        for sent_at, operation in self._open.values():
            if self._is_quick or sent_at >= self.answered_at:
                waits_for = f"{self._name} has not answered a {operation}"
                error = next((failing.error for failing in self._failing.values()), None)
                if error is not None:
                    waits_for += f"; the last one failed: {error}"
                return Due("", waits_for, after_s, sent_at)
        return None

    def full(self) -> Due | None:
        """A check: a write found the disk full. Ends when a write succeeds, or none is tried."""
        full = self._full
        if full is None:
            return None
        if self._clock.monotonic() - full.last_at > FORGET_S:
            self._full = None
            return None
        return Due("", str(full.error), 0.0, full.since)


class Probes:
    """Sends a small request when the store has answered none for a while."""

    def __init__(
        self,
        answers: Answers,
        ask: Callable[[], Awaitable[object]],
        config: ProgressConfig,
        clock: Clock,
        background: Background,
    ) -> None:
        """`ask` must go through `answers`."""
        self._answers = answers
        self._ask = ask
        self._interval_s = config.probe_interval_ms / 1000
        self._clock = clock
        self._background = background
        self._under_way = 0
        self._sent_at = clock.monotonic()

    def tick(self) -> None:
        """Sends a probe if it is time; twice as often while the store is silent."""
        now = self._clock.monotonic()
        interval_s = self._interval_s / 2 if self._answers.is_silent else self._interval_s
        last = max(self._answers.answered_at, self._sent_at)
        if now - last >= interval_s and self._under_way < PROBES_MAX:
            self._sent_at = now
            self._under_way += 1
            self._background.spawn(self._probe(), name="probe")

    async def _probe(self) -> None:
        try:
            async with asyncio.timeout(PROBE_S_MAX):
                await self._ask()
        except (StreamlogError, TimeoutError) as error:
            log.debug("a probe failed, which its store's alarm tells: %r", error)
        finally:
            self._under_way -= 1
