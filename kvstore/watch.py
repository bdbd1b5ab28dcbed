"""Watchers: cursors into the history, woken by changes in their range; they hold no changes.

1. A watcher without a `pending` change has delivered all changes up to the store's revision.
2. `pending` is the revision of the first change that it has not delivered. The history holds the
   change; if it no longer does, the watcher raises RevisionCompacted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from streamlog.errors import RevisionCompacted, StreamlogError
from streamlog.kvstore.history import History
from streamlog.kvstore.interface import Change, WatchBatch


class Watcher:
    """Iterates over the changes in [start, end), for one task at a time, until `aclose`."""

    def __init__(
        self,
        history: History,
        start: bytes,
        end: bytes,
        from_revision: int,
        on_close: Callable[[Watcher], None],
    ) -> None:
        self._history = history
        self._start = start
        self._end = end
        self._on_close = on_close
        self._from = from_revision
        self._failure: StreamlogError | None = None
        self._is_closed = False
        self._waiting: asyncio.Future[None] | None = None
        self._pending: int | None = None
        try:
            history.check_watch(from_revision)
        except RevisionCompacted as error:
            self._failure = error
        else:
            self._pending = self._first_match(from_revision)

    def __aiter__(self) -> Watcher:
        return self

    async def __anext__(self) -> WatchBatch:
        while True:
            if self._is_closed:
                raise StopAsyncIteration
            if self._failure is not None:
                raise self._failure
            batch = self._next()
            if batch is not None:
                return batch
            self._waiting = asyncio.get_running_loop().create_future()
            try:
                await self._waiting
            finally:
                self._waiting = None

    async def aclose(self) -> None:
        """Ends the iteration, also for a task that waits for the next item."""
        self._is_closed = True
        self._on_close(self)
        self._wake()

    def offer(self, batch: WatchBatch) -> None:
        """Called with every batch in order, after the history has it."""
        if self._pending is not None or batch.revision < self._from:
            return
        if any(self._is_mine(change) for change in batch.changes):
            self._pending = batch.revision
            self._wake()

    def fail(self, error: StreamlogError) -> None:
        self._failure = error
        self._wake()

    def _next(self) -> WatchBatch | None:
        if self._pending is None:
            return None
        self._history.check_watch(self._pending)
        batch = next(self._history.since(self._pending))
        self._pending = self._first_match(batch.revision + 1)
        return WatchBatch(batch.revision, tuple(c for c in batch.changes if self._is_mine(c)))

    def _first_match(self, revision: int) -> int | None:
        for batch in self._history.since(revision):
            if any(self._is_mine(change) for change in batch.changes):
                return batch.revision
        return None

    def _is_mine(self, change: Change) -> bool:
        return self._start <= change.key < self._end

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)


class Watchers:
    """Every watcher of one store."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._watchers: dict[Watcher, None] = {}

    def __len__(self) -> int:
        return len(self._watchers)

    def add(self, start: bytes, end: bytes, from_revision: int) -> Watcher:
        watcher = Watcher(self._history, start, end, from_revision, self._forget)
        self._watchers[watcher] = None
        return watcher

    def publish(self, batch: WatchBatch) -> None:
        for watcher in self._watchers:
            watcher.offer(batch)

    def fail(self, error: StreamlogError) -> None:
        """Ends every watch with the error."""
        for watcher in self._watchers:
            watcher.fail(error)
        self._watchers.clear()

    def _forget(self, watcher: Watcher) -> None:
        self._watchers.pop(watcher, None)
