"""Requests that wait for new records: each has an end, and a draining node ends them all."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from math import ceil
from typing import Any

from streamlog.errors import StreamlogError
from streamlog.runtime.progress import Due

log = logging.getLogger(__name__)

STEP_S = 0.001
LONG_S = 0.1
LONG_STEP_S = 0.01
"""Waits end at multiples of a step, `LONG_STEP_S` from `LONG_S` on, so that those of many idle
consumers share a timer and a turn of the event loop."""


class LongPolls:
    """The requests that wait for new records. A draining node ends their waits at once."""

    def __init__(self) -> None:
        self._ending: dict[float, set[asyncio.Future[None]]] = {}
        """Waits by their ends, in seconds on the event loop's clock."""
        self.waiting = 0
        """Waits that have not ended."""
        self._late: dict[asyncio.Future[None], None] = {}
        """Waits whose time is over and that have not ended; each stays here for a moment only."""
        self.is_draining = False

    def progress(self) -> Due | None:
        """A long poll that should have been answered."""
        oldest = next(iter(self._late), None)
        if oldest is None:
            return None
        return Due(oldest, f"{len(self._late)} long polls to end, whose time is over")

    def drain(self) -> None:
        """Ends all waits, and those to come at once."""
        self.is_draining = True
        for waiters in self._ending.values():
            for waiter in waiters:
                _wake(waiter)

    async def until(self, waiter: asyncio.Future[None], seconds: float) -> None:
        """Returns when `waiter` is done, on drain, or after `seconds`, at most a step later."""
        if self.is_draining:
            return
        end = self._begin(waiter, seconds)
        try:
            await waiter
        finally:
            self._end(waiter, end)

    async def wait(self, watches: Sequence[Coroutine[Any, Any, object]], seconds: float) -> None:
        """As `until`, when one of the watches ends; ends the others.

        A watch that fails ends the wait too: the read that follows raises the same error.
        """
        if self.is_draining:
            for watch in watches:
                watch.close()
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        end = self._begin(waiter, seconds)
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(_watch(watch, waiter)) for watch in watches]
                await waiter
                for task in tasks:
                    task.cancel()
        finally:
            self._end(waiter, end)

    def _begin(self, waiter: asyncio.Future[None], seconds: float) -> float:
        """When the wait ends."""
        loop = asyncio.get_running_loop()
        step = LONG_STEP_S if seconds >= LONG_S else STEP_S
        end = ceil((loop.time() + seconds) / step) * step
        waiters = self._ending.get(end)
        if waiters is None:
            waiters = self._ending[end] = set()
            loop.call_at(end, self._time_is_over, end)
        waiters.add(waiter)
        self.waiting += 1
        return end

    def _end(self, waiter: asyncio.Future[None], end: float) -> None:
        self.waiting -= 1
        waiters = self._ending.get(end)
        if waiters is not None:
            waiters.discard(waiter)
        self._late.pop(waiter, None)

    def _time_is_over(self, end: float) -> None:
        for waiter in self._ending.pop(end):
            self._late[waiter] = None
            _wake(waiter)


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


async def _watch(watch: Coroutine[Any, Any, object], waiter: asyncio.Future[None]) -> None:
    try:
        await watch
    except StreamlogError as error:
        log.debug("a watch ended early", extra={"error": str(error)})
    finally:
        _wake(waiter)
