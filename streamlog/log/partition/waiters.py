"""Who waits for a log: for its visible end to pass an offset, or for any change that readers see.

Both are cheap by the thousand: an append without waiters costs two comparisons.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class OffsetWaiters:
    def __init__(self) -> None:
        self._waiting: dict[asyncio.Future[None], int] = {}
        self._lowest: int | None = None
        """A lower bound on the offsets waited for; None without waiters."""
        self._subscribers: dict[Callable[[], None], None] = {}
        """Called at the next change, in the order in which they came."""

    def __len__(self) -> int:
        return len(self._waiting)

    def subscribe(self, changed: Callable[[], None]) -> None:
        """As AbstractLog.subscribe, for a log that has not ended."""
        self._subscribers[changed] = None

    def unsubscribe(self, changed: Callable[[], None]) -> None:
        self._subscribers.pop(changed, None)

    def notify(self) -> None:
        """Calls the subscribers and forgets them: each comes again when it has looked."""
        subscribers, self._subscribers = self._subscribers, {}
        for changed in subscribers:
            changed()

    async def wait(self, offset: int) -> None:
        """Returns when `advance` passes the offset, or at `release`. Cancelling leaves nothing."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[future] = offset
        if self._lowest is None or offset < self._lowest:
            self._lowest = offset
        try:
            await future
        finally:
            self._waiting.pop(future, None)
            if not self._waiting:
                self._lowest = None

    def advance(self, end_offset: int) -> None:
        """Calls the subscribers, and wakes the waiters whose offset lies below the end."""
        if self._subscribers:
            self.notify()
        if self._lowest is None or self._lowest >= end_offset:
            return
        woken = [future for future, offset in self._waiting.items() if offset < end_offset]
        for future in woken:
            del self._waiting[future]
            if not future.done():
                future.set_result(None)
        self._lowest = min(self._waiting.values(), default=None)

    def release(self) -> None:
        """Calls all subscribers and wakes all waiters, of a log that has ended."""
        waiting, self._waiting = self._waiting, {}
        self._lowest = None
        for future in waiting:
            if not future.done():
                future.set_result(None)
        self.notify()
