"""Requests that wait for new records: each has an end, and a draining node ends them all."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from typing import Any

from streamlog.errors import StreamlogError
from streamlog.runtime.progress import Due

log = logging.getLogger(__name__)


class LongPolls:
    """The requests that wait for new records. A draining node ends their waits at once."""

    def __init__(self) -> None:
        self._waiting: set[asyncio.Future[None]] = set()
        self._late: dict[asyncio.Future[None], None] = {}
        """Waits whose time is over and that have not ended; each stays here for a moment only."""
        self.is_draining = False

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def progress(self) -> Due | None:
        """A long poll that should have been answered."""
        oldest = next(iter(self._late), None)
        if oldest is None:
            return None
        return Due(oldest, f"{len(self._late)} long polls to end, whose time is over")

    def drain(self) -> None:
        """Ends all waits, and those to come at once."""
        self.is_draining = True
        for waiter in self._waiting:
            _wake(waiter)

    async def until(self, waiter: asyncio.Future[None], seconds: float) -> None:
        """Returns when `waiter` is done, after `seconds`, or on drain."""
        if self.is_draining:
            return
        timer = self._begin(waiter, seconds)
        try:
            await waiter
        finally:
            self._end(waiter, timer)

    async def wait(self, watches: Sequence[Coroutine[Any, Any, object]], seconds: float) -> None:
        """Returns when one of the watches ends, after `seconds`, or on drain; ends the watches.

        A watch that fails ends the wait too: the read that follows raises the same error.
        """
        if self.is_draining:
            for watch in watches:
                watch.close()
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        timer = self._begin(waiter, seconds)
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(_watch(watch, waiter)) for watch in watches]
                await waiter
                for task in tasks:
                    task.cancel()
        finally:
            self._end(waiter, timer)

    def _begin(self, waiter: asyncio.Future[None], seconds: float) -> asyncio.TimerHandle:
        self._waiting.add(waiter)
        return asyncio.get_running_loop().call_later(seconds, self._time_is_over, waiter)

    def _end(self, waiter: asyncio.Future[None], timer: asyncio.TimerHandle) -> None:
        timer.cancel()
        self._waiting.discard(waiter)
        self._late.pop(waiter, None)

    def _time_is_over(self, waiter: asyncio.Future[None]) -> None:
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
