"""The byte bound on appends under way: who gets room, and in which order.

1. Room is taken at once while there is some and nobody waits.
2. Otherwise callers wait, first come, first served; BACKGROUND ones after all others.
3. A charge larger than the whole bound is let in when nothing else is under way.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable

from streamlog.errors import Overloaded, StreamlogError
from streamlog.model.batch import Priority, Reservation

ErrorFactory = Callable[[], StreamlogError]


class Waiter:
    """One caller that waits for room; exactly one of `granted` and `refused` is called.

    One that has ended is in no queue: what its caller holds does not wait for those before it.
    """

    __slots__ = ("charge", "granted", "is_done", "queue", "refused", "timer")

    def __init__(
        self, charge: int, granted: Callable[[], None], refused: Callable[[StreamlogError], None]
    ) -> None:
        self.charge = charge
        self.granted = granted
        self.refused = refused
        self.timer: asyncio.TimerHandle | None = None
        self.queue: OrderedDict[Waiter, None] | None = None
        self.is_done = False

    def end(self) -> bool:
        """False when it had ended before."""
        if self.is_done:
            return False
        self.is_done = True
        if self.timer is not None:
            self.timer.cancel()
        if self.queue is not None:
            del self.queue[self]
        return True


class Budget:
    """0 ≤ used_bytes; above the bound only by a reservation's append or one oversized charge."""

    def __init__(self, bound_bytes: int, on_pressure: Callable[[], None]) -> None:
        self.bound_bytes = bound_bytes
        self.used_bytes = 0
        self._on_pressure = on_pressure
        self._waiting: dict[Priority, OrderedDict[Waiter, None]] = {
            Priority.NORMAL: OrderedDict(),
            Priority.BACKGROUND: OrderedDict(),
        }
        self._waiters = 0
        self._is_serving = False

    @property
    def waiters(self) -> int:
        return self._waiters

    def try_take(self, charge: int) -> bool:
        """Takes room if there is some and nobody waits for it."""
        used = self.used_bytes
        if self._waiters or (used and used + charge > self.bound_bytes):
            return False
        self.used_bytes = used + charge
        return True

    def take_unbounded(self, charge: int) -> None:
        """Takes room that is there already: recovered data, and a reservation's excess."""
        self.used_bytes += charge

    def wait(self, waiter: Waiter, priority: Priority, delay_s: float | None) -> None:
        """Queues the waiter; Overloaded after delay_s."""
        if delay_s is not None:
            if delay_s <= 0:
                waiter.end()
                waiter.refused(self._overloaded())
                return
            waiter.timer = asyncio.get_running_loop().call_later(delay_s, self._expire, waiter)
        waiter.queue = self._waiting[priority]
        waiter.queue[waiter] = None
        self._waiters += 1
        self._on_pressure()

    def give_up(self, waiter: Waiter) -> None:
        """The caller no longer wants room; nothing is called."""
        if waiter.end():
            self._waiters -= 1
            self._serve()

    def release(self, charge: int) -> None:
        """Gives room back, and to those who wait."""
        self.used_bytes -= charge
        if self._waiters:
            self._serve()

    def refuse_all(self, error: ErrorFactory) -> None:
        """Ends everybody's wait with an error."""
        for queue in self._waiting.values():
            while queue:
                waiter = next(iter(queue))
                waiter.end()
                self._waiters -= 1
                waiter.refused(error())

    def _serve(self) -> None:
        # A grant may release at once (a refused append): the outer call then goes on serving.
        if self._is_serving:
            return
        self._is_serving = True
        try:
            for queue in self._waiting.values():
                while queue:
                    waiter = next(iter(queue))
                    used = self.used_bytes
                    if used and used + waiter.charge > self.bound_bytes:
                        return
                    waiter.end()
                    self._waiters -= 1
                    self.used_bytes = used + waiter.charge
                    waiter.granted()
        finally:
            self._is_serving = False
            if self._waiters:
                self._on_pressure()

    def _expire(self, waiter: Waiter) -> None:
        if waiter.end():
            self._waiters -= 1
            waiter.refused(self._overloaded())
            self._serve()

    def _overloaded(self) -> Overloaded:
        return Overloaded(
            f"{self.used_bytes} bytes of appends are under way and the bound is "
            f"{self.bound_bytes}; nothing was stored, retry with back-off",
            queued_bytes=self.used_bytes,
            bound_bytes=self.bound_bytes,
        )


class BudgetReservation(Reservation):
    """Room held until an append uses it or it is released."""

    __slots__ = ("_budget", "charge")

    def __init__(self, budget: Budget, size_bytes: int, charge: int) -> None:
        super().__init__(size_bytes)
        self._budget = budget
        self.charge = charge

    def use(self, charge: int) -> None:
        """Turns the reservation into the charge of one append."""
        held, self.charge = self.charge, 0
        if charge > held:
            self._budget.take_unbounded(charge - held)
        else:
            self._budget.release(held - charge)

    def release(self) -> None:
        held, self.charge = self.charge, 0
        if held:
            self._budget.release(held)
