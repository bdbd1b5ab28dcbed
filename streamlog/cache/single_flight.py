"""A bounded LRU cache that loads a missing value once, for all its readers.

1. `peek` returns a loaded value, `pending` the future of one that is being loaded.
2. `begin` announces a load; `finish` or `fail` ends it and wakes all waiters.
3. The caller of `begin` owns the load, never a waiter: a cancelled waiter stops no load.
4. Values of one group share memory: they are used and dropped together.
5. The bound covers loaded values, and bytes reserved for loads under way.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class _Group(Generic[K]):
    __slots__ = ("keys", "retired", "size_bytes")

    def __init__(self) -> None:
        self.keys: list[K] = []
        self.size_bytes = 0
        self.retired: set[K] = set()


class SingleFlightCache(Generic[K, V]):
    """Values by key. While the bytes exceed the bound, the least recently used group is dropped."""

    def __init__(self, bound_bytes: int) -> None:
        self.bound_bytes = bound_bytes
        self.size_bytes = 0
        self.reserved_bytes = 0
        self._loaded: dict[K, tuple[V, Hashable]] = {}
        self._groups: OrderedDict[Hashable, _Group[K]] = OrderedDict()
        self._retired: OrderedDict[Hashable, _Group[K]] = OrderedDict()
        """Groups whose values are all retired, oldest first: a second reader may still need the
        latest ones."""
        self._loading: dict[K, asyncio.Future[V] | None] = {}
        """None: no reader waits for it yet."""

    def peek(self, key: K) -> V | None:
        """The value, its group made the most recently used one; None when it is not loaded."""
        loaded = self._loaded.get(key)
        if loaded is None:
            return None
        self._use(loaded[1])
        return loaded[0]

    def __contains__(self, key: K) -> bool:
        """Whether the value is loaded or being loaded."""
        return key in self._loaded or key in self._loading

    def pending(self, key: K) -> asyncio.Future[V] | None:
        """The load under way, or None. Wait for it through `asyncio.shield`."""
        future = self._loading.get(key)
        if future is None and key in self._loading:
            future = self._loading[key] = asyncio.get_running_loop().create_future()
            # Without a waiter nothing else retrieves a failed load's error.
            future.add_done_callback(lambda done: done.cancelled() or done.exception())
        return future

    def begin(self, key: K) -> None:
        """Announces the load of a key that is neither loaded nor being loaded."""
        self._loading[key] = None

    def reserve(self, size_bytes: int) -> None:
        """Reserves room for a load under way; a negative size releases it."""
        self.reserved_bytes += size_bytes
        self._evict()

    def finish(self, key: K, value: V, size_bytes: int, group: Hashable = None) -> None:
        """Ends a load: keeps the value, and hands it to all waiters even if it exceeds the bound.

        `group`: values in the same memory have the same group; None: the value has its own memory.
        """
        future = self._loading.pop(key)
        if future is not None and not future.done():
            future.set_result(value)
        name: Hashable = (key,) if group is None else group
        self._loaded[key] = (value, name)
        if name in self._retired or name in self._groups:
            # The values loaded so far may all be retired.
            self._use(name)
            members = self._groups[name]
        else:
            members = self._groups[name] = _Group()
        members.keys.append(key)
        members.size_bytes += size_bytes
        self.size_bytes += size_bytes
        self._evict()

    def fail(self, key: K, error: BaseException) -> None:
        """Ends a load with an error; nothing is kept."""
        future = self._loading.pop(key)
        if future is not None and not future.done():
            future.set_exception(error)

    def retire(self, key: K) -> None:
        """Marks a value that is hardly needed any more: a group of such values is dropped first."""
        loaded = self._loaded.get(key)
        if loaded is not None:
            name = loaded[1]
            group = self._groups.get(name) or self._retired[name]
            group.retired.add(key)
            if len(group.retired) == len(group.keys):
                self._groups.pop(name, None)
                self._retired[name] = group

    def discard(self, wanted: Callable[[K], bool]) -> None:
        """Forgets loaded values, and their groups with them. Looks at every key."""
        for name in {name for key, (_, name) in self._loaded.items() if wanted(key)}:
            self._drop(name)

    def _use(self, name: Hashable) -> None:
        if name in self._retired:
            self._groups[name] = self._retired.pop(name)
        else:
            self._groups.move_to_end(name)

    def _evict(self) -> None:
        while self.size_bytes + self.reserved_bytes > self.bound_bytes:
            name = next(iter(self._retired), None) or next(iter(self._groups), None)
            if name is None:
                return
            self._drop(name)

    def _drop(self, name: Hashable) -> None:
        group = self._groups.pop(name, None) or self._retired.pop(name)
        self.size_bytes -= group.size_bytes
        for key in group.keys:
            del self._loaded[key]
