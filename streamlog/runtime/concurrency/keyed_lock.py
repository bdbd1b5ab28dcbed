"""Turns by key: one user of each at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class KeyTurns(Generic[K]):
    """First come, first served; a key is kept while somebody has or awaits its turn."""

    def __init__(self) -> None:
        self._turns: dict[K, _Turn] = {}

    def __len__(self) -> int:
        return len(self._turns)

    @asynccontextmanager
    async def alone(self, key: K) -> AsyncIterator[None]:
        # A lock is not locked while the next of its waiters wakes up: users are counted.
        turn = self._turns.setdefault(key, _Turn())
        turn.users += 1
        try:
            async with turn.lock:
                yield
        finally:
            turn.users -= 1
            if not turn.users:
                del self._turns[key]


class _Turn:
    __slots__ = ("lock", "users")

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.users = 0
