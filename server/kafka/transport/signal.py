"""A wake-up for tasks of one connection; an idle connection holds several, so each is small."""

from __future__ import annotations

import asyncio


class Signal:
    """`set` wakes the tasks in `wait`. It is not kept for later ones, so they look at their state
    first, and again afterwards."""

    __slots__ = ("_waiters",)

    def __init__(self) -> None:
        self._waiters: tuple[asyncio.Future[None], ...] = ()

    def set(self) -> None:
        waiters, self._waiters = self._waiters, ()
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def wait(self) -> asyncio.Future[None]:
        """Awaited, it ends with the next `set`."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters = (*self._waiters, waiter)
        return waiter
