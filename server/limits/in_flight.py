"""Bytes of requests that are not answered yet, bounded for each connection.

A listener does not read from a connection that would pass the bound, so flow control holds its
client back; a unary request waits. A single request may pass the bound: it could not be served
otherwise.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from streamlog.server.metrics import ServerMetrics


class ConnectionBudget:
    """The bytes in flight of one connection; first come, first served."""

    __slots__ = ("_bound", "_metrics", "_waiters", "used", "users")

    def __init__(self, bound: int, metrics: ServerMetrics) -> None:
        self._bound = bound
        self._metrics = metrics
        self._waiters: deque[tuple[int, asyncio.Future[None]]] = deque()
        self.used = 0
        self.users = 0

    def try_take(self, size_bytes: int) -> bool:
        """Takes room if there is some now and no other request waits for it."""
        if self._waiters or (self.used and self.used + size_bytes > self._bound):
            return False
        self._add(size_bytes)
        return True

    async def take(self, size_bytes: int) -> None:
        """Waits for room. Cancellation takes nothing."""
        if self.try_take(size_bytes):
            return
        self.note_wait()
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (size_bytes, waiter)
        self._waiters.append(entry)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self.release(size_bytes)
            else:
                if entry in self._waiters:
                    self._waiters.remove(entry)
                self._admit()
            raise

    def charge(self, size_bytes: int) -> None:
        """Takes room for what has been received already, even above the bound."""
        self._add(size_bytes)

    def note_wait(self) -> None:
        """The connection is not read from until there is room."""
        self._metrics.in_flight_waits.inc()

    def release(self, size_bytes: int) -> None:
        self._add(-size_bytes)
        if self._waiters:
            self._admit()

    def _admit(self) -> None:
        while self._waiters:
            size_bytes, waiter = self._waiters[0]
            if waiter.done():
                # Its caller was cancelled and has not run since: room given to it would be lost.
                self._waiters.popleft()
                continue
            if self.used and self.used + size_bytes > self._bound:
                return
            self._waiters.popleft()
            self._add(size_bytes)
            waiter.set_result(None)

    def _add(self, size_bytes: int) -> None:
        self.used += size_bytes
        self._metrics.in_flight.inc(size_bytes)


class Budgets:
    """The budgets of all connections that have a request under way; a peer is a connection."""

    def __init__(self, bound: int, metrics: ServerMetrics) -> None:
        self._bound = bound
        self._metrics = metrics
        self._budgets: dict[str, ConnectionBudget] = {}

    @contextmanager
    def of(self, peer: str) -> Iterator[ConnectionBudget]:
        budget = self._budgets.get(peer)
        if budget is None:
            budget = self._budgets[peer] = ConnectionBudget(self._bound, self._metrics)
        budget.users += 1
        try:
            yield budget
        finally:
            budget.users -= 1
            if not budget.users:
                del self._budgets[peer]
