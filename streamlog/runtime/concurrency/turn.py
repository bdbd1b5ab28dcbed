"""A fair lock that can tell whether a call would have to wait."""

from __future__ import annotations

import asyncio


class Turn:
    """One call at a time, in the order in which they came.

    `is_free` is False also while the next one in line has not run yet, when `Lock.locked` says that
    nobody holds it. A call that finds it free, and awaits nothing, need not take it.
    """

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._calls = 0
        """Calls that hold it or wait for it."""

    @property
    def is_free(self) -> bool:
        """Nobody holds it, and nobody waits for it."""
        return not self._calls

    async def acquire(self) -> None:
        """Cancelling it gives up the place in the line."""
        self._calls += 1
        try:
            await self._lock.acquire()
        except BaseException:
            self._calls -= 1
            raise

    def release(self) -> None:
        self._calls -= 1
        self._lock.release()

    async def __aenter__(self) -> None:
        await self.acquire()

    async def __aexit__(self, *_: object) -> None:
        self.release()
