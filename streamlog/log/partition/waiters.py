"""Long polls that wait until the visible end of a log passes an offset; cheap by the thousand."""

from __future__ import annotations

import asyncio


class OffsetWaiters:
    def __init__(self) -> None:
        self._waiting: dict[asyncio.Future[None], int] = {}
        self._lowest: int | None = None
        """A lower bound on the offsets waited for; None without waiters."""

    def __len__(self) -> int:
        return len(self._waiting)

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
        """Wakes the waiters whose offset lies below the end."""
        if self._lowest is None or self._lowest >= end_offset:
            return
        woken = [future for future, offset in self._waiting.items() if offset < end_offset]
        for future in woken:
            del self._waiting[future]
            if not future.done():
                future.set_result(None)
        self._lowest = min(self._waiting.values(), default=None)

    def release(self) -> None:
        """Wakes all waiters."""
        waiting, self._waiting = self._waiting, {}
        self._lowest = None
        for future in waiting:
            if not future.done():
                future.set_result(None)
