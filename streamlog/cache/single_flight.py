"""A bounded LRU cache in which a missing value is loaded once, whoever asks for it.

1. `peek` finds a loaded value. `pending` finds one that is being loaded.
2. `begin` announces a load; `finish` or `fail` ends it and tells everybody who waits.
3. A load belongs to whoever began it, never to a waiter: a cancelled waiter stops nothing.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class SingleFlightCache(Generic[K, V]):
    """Values by key, the least recently used dropped while their bytes pass the bound."""

    def __init__(self, bound_bytes: int) -> None:
        self.bound_bytes = bound_bytes
        self.size_bytes = 0
        self.hits = 0
        self.misses = 0
        self._loaded: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self._loading: dict[K, asyncio.Future[V]] = {}

    def peek(self, key: K) -> V | None:
        """The value, made the most recently used one; None when it is not loaded."""
        found = self._loaded.get(key)
        if found is None:
            return None
        self._loaded.move_to_end(key)
        return found[0]

    def __contains__(self, key: K) -> bool:
        """Loaded, or being loaded."""
        return key in self._loaded or key in self._loading

    def pending(self, key: K) -> asyncio.Future[V] | None:
        """The load under way. Wait for it through `asyncio.shield`."""
        return self._loading.get(key)

    def begin(self, key: K) -> asyncio.Future[V]:
        """Announces the load of a key that is neither loaded nor being loaded."""
        future: asyncio.Future[V] = asyncio.get_running_loop().create_future()
        # A load that nobody waits for may fail without a word: the next reader loads again.
        future.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._loading[key] = future
        return future

    def finish(self, key: K, value: V, size_bytes: int) -> None:
        """Ends a load; the value is kept, and told to everybody even if it fits no bound."""
        future = self._loading.pop(key)
        if not future.done():
            future.set_result(value)
        self._loaded[key] = (value, size_bytes)
        self.size_bytes += size_bytes
        while self.size_bytes > self.bound_bytes and self._loaded:
            _, (_, dropped_bytes) = self._loaded.popitem(last=False)
            self.size_bytes -= dropped_bytes

    def fail(self, key: K, error: BaseException) -> None:
        """Ends a load with an error; nothing is kept."""
        future = self._loading.pop(key)
        if not future.done():
            future.set_exception(error)

    def discard(self, key: K) -> None:
        """Forgets a loaded value."""
        found = self._loaded.pop(key, None)
        if found is not None:
            self.size_bytes -= found[1]
