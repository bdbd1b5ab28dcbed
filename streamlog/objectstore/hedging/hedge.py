"""Sends a slow request a second time; the first success counts.

The first request runs in its caller's task, so that a fast request costs only a timer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, NamedTuple, TypeVar

from streamlog.errors import Closed, StreamlogError
from streamlog.runtime.clock import Clock
from streamlog.runtime.concurrency.background import Background

T = TypeVar("T")


class WinningRequest(NamedTuple):
    """Which of the two requests answered, and how long that request took.

    The time does not include the wait for the other request: else slow requests would count as
    usual, and the delay before a second request would grow and grow.
    """

    is_second: bool
    seconds: float


class Hedging:
    """Second requests run in `background`."""

    def __init__(self, background: Background, clock: Clock) -> None:
        self.background = background
        self.clock = clock
        self._first: dict[asyncio.Timeout, None] = {}
        """First requests under way, in order, so that a simulated close can be replayed."""

    async def run(
        self,
        request: Callable[[], Awaitable[T]],
        delay_s: float,
        may_repeat: Callable[[], bool],
    ) -> tuple[T, WinningRequest]:
        """Runs `request()`, and a second one after `delay_s` without an answer if `may_repeat()`.

        The slower request is cancelled; both are when the caller is. Errors: the first request's
        when all have failed; Closed when `close` is called meanwhile.
        """
        began = self.clock.monotonic()
        first = asyncio.timeout(None)
        second = _Second(self, request)
        timer = asyncio.get_running_loop().call_later(delay_s, second.start_if, may_repeat, first)
        try:
            try:
                async with first:
                    self._first[first] = None
                    answer = await request()
            finally:
                timer.cancel()
                self._first.pop(first, None)
            return answer, WinningRequest(False, self.clock.monotonic() - began)
        except TimeoutError:
            if not first.expired():
                raise
            if not second.answers:
                raise Closed("closed while a request was under way") from None
        except StreamlogError:
            await second.wait()
            if not second.answers:
                raise
        finally:
            second.give_up()
        return second.answers[0]

    def end(self, first: asyncio.Timeout) -> None:
        """Ends the wait for a first request, if it is still under way."""
        if first in self._first:
            del self._first[first]
            first.reschedule(asyncio.get_running_loop().time())

    def close(self) -> None:
        """Callers of `run` get Closed. The owner of `background` closes it."""
        for first in list(self._first):
            self.end(first)


class _Second(Generic[T]):
    """The second request, once it has begun. A success of it ends the wait for the first."""

    def __init__(self, hedging: Hedging, request: Callable[[], Awaitable[T]]) -> None:
        self._hedging = hedging
        self._request = request
        self._task: asyncio.Task[None] | None = None
        self.answers: list[tuple[T, WinningRequest]] = []
        """Has one element after a success."""

    def start_if(self, may_repeat: Callable[[], bool], first: asyncio.Timeout) -> None:
        if may_repeat():
            self._task = self._hedging.background.spawn(self._run(first), name="second")

    async def wait(self) -> None:
        """Waits for the second request, if it has begun."""
        if self._task is not None:
            await asyncio.wait({self._task})

    def give_up(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _run(self, first: asyncio.Timeout) -> None:
        clock = self._hedging.clock
        began = clock.monotonic()
        try:
            answer = await self._request()
        except StreamlogError:
            # The caller gets the error of the first request.
            return
        self.answers.append((answer, WinningRequest(True, clock.monotonic() - began)))
        self._hedging.end(first)
