"""A semaphore that counts bytes; fair: first come, first served."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class ByteSemaphore:
    """At most `bound_bytes` are held at a time. A larger request is granted when none is held."""

    def __init__(self, bound_bytes: int) -> None:
        self._bound_bytes = bound_bytes
        self._used_bytes = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @property
    def used_bytes(self) -> int:
        return self._used_bytes

    @asynccontextmanager
    async def holding(self, size_bytes: int) -> AsyncIterator[None]:
        """Holds `size_bytes` until the block ends. A cancelled wait holds nothing."""
        if self._waiting or not self._fits(size_bytes):
            grant: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append((size_bytes, grant))
            try:
                await grant
            except BaseException:
                if grant.done() and not grant.cancelled():
                    self._release(size_bytes)
                else:
                    grant.cancel()
                    # A smaller request behind this one may fit now.
                    self._release(0)
                raise
        else:
            self._used_bytes += size_bytes
        try:
            yield
        finally:
            self._release(size_bytes)

    def _fits(self, size_bytes: int) -> bool:
        return not self._used_bytes or self._used_bytes + size_bytes <= self._bound_bytes

    def _release(self, size_bytes: int) -> None:
        self._used_bytes -= size_bytes
        while self._waiting and (self._waiting[0][1].done() or self._fits(self._waiting[0][0])):
            size, grant = self._waiting.popleft()
            if not grant.done():
                self._used_bytes += size
                grant.set_result(None)
