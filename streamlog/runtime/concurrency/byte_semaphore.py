"""Lets so many bytes through at a time, first come, first served."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class ByteGate:
    """What is larger than the bound passes alone."""

    def __init__(self, bound_bytes: int) -> None:
        self._bound_bytes = bound_bytes
        self._used_bytes = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @asynccontextmanager
    async def passing(self, size_bytes: int) -> AsyncIterator[None]:
        """Holds room for `size_bytes`; cancellation gives it back."""
        if self._waiting or not self._fits(size_bytes):
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append((size_bytes, turn))
            try:
                await turn
            except BaseException:
                if turn.done() and not turn.cancelled():
                    self._leave(size_bytes)
                else:
                    turn.cancel()
                    # Those behind may fit where this one did not.
                    self._leave(0)
                raise
        else:
            self._used_bytes += size_bytes
        try:
            yield
        finally:
            self._leave(size_bytes)

    def _fits(self, size_bytes: int) -> bool:
        return not self._used_bytes or self._used_bytes + size_bytes <= self._bound_bytes

    def _leave(self, size_bytes: int) -> None:
        self._used_bytes -= size_bytes
        while self._waiting and (self._waiting[0][1].done() or self._fits(self._waiting[0][0])):
            size, turn = self._waiting.popleft()
            if not turn.done():
                self._used_bytes += size
                turn.set_result(None)
