"""A bounded LRU cache in which a missing value is loaded once, whoever asks for it.

1. `peek` finds a loaded value. `pending` finds one that is being loaded.
2. `begin` announces a load; `finish` or `fail` ends it and tells everybody who waits.
3. A load belongs to whoever began it, never to a waiter: a cancelled waiter stops nothing.
4. Values of one group share memory: they are used and dropped together.
5. The bound covers what is loaded and what was reserved for loads under way.
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
    """Values by key; the least recently used group goes while the bytes pass the bound."""

    def __init__(self, bound_bytes: int) -> None:
        self.bound_bytes = bound_bytes
        self.size_bytes = 0
        self.reserved_bytes = 0
        self._loaded: dict[K, tuple[V, Hashable]] = {}
        self._groups: OrderedDict[Hashable, _Group[K]] = OrderedDict()
        self._retired: OrderedDict[Hashable, _Group[K]] = OrderedDict()
        """Groups of which everything was retired, the first one first: somebody else may be behind
        whoever went past the last one."""
        self._loading: dict[K, asyncio.Future[V] | None] = {}
        """None: nobody has asked for it yet."""

    def peek(self, key: K) -> V | None:
        """The value, its group made the most recently used one; None when it is not loaded."""
        found = self._loaded.get(key)
        if found is None:
            return None
        self._use(found[1])
        return found[0]

    def __contains__(self, key: K) -> bool:
        """Loaded, or being loaded."""
        return key in self._loaded or key in self._loading

    def pending(self, key: K) -> asyncio.Future[V] | None:
        """The load under way. Wait for it through `asyncio.shield`."""
        future = self._loading.get(key)
        if future is None and key in self._loading:
            future = self._loading[key] = asyncio.get_running_loop().create_future()
            # A waiter may have gone when the load fails: the next reader loads again.
            future.add_done_callback(lambda done: done.cancelled() or done.exception())
        return future

    def begin(self, key: K) -> None:
        """Announces the load of a key that is neither loaded nor being loaded."""
        self._loading[key] = None

    def reserve(self, size_bytes: int) -> None:
        """Makes room for a load whose bytes are on their way; give it back with a negative size."""
        self.reserved_bytes += size_bytes
        self._evict()

    def finish(self, key: K, value: V, size_bytes: int, group: Hashable = None) -> None:
        """Ends a load; the value is kept, and told to everybody even if it fits no bound.

        `group`: what else lies in the same memory; None: nothing.
        """
        future = self._loading.pop(key)
        if future is not None and not future.done():
            future.set_result(value)
        name: Hashable = (key,) if group is None else group
        self._loaded[key] = (value, name)
        if name in self._retired or name in self._groups:
            # It may have been retired as far as it was here.
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
        """The value will hardly be asked for again: once all of its group are, it goes first."""
        found = self._loaded.get(key)
        if found is not None:
            name = found[1]
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
