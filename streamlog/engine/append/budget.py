"""The byte bound on appends under way.

1. A charge is taken at once if it fits and no caller waits.
2. Otherwise callers wait, first come, first served; those of BACKGROUND priority after all others.
3. A charge larger than the whole bound is granted when nothing else is under way.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable

from streamlog.errors import Overloaded, StreamlogError
from streamlog.model.batch import Priority, Reservation

ErrorFactory = Callable[[], StreamlogError]


class Waiter:
    """One caller that waits for room. At most one of `granted` and `refused` is called, once.

    A waiter that has ended leaves its queue at once, so that it keeps no payload alive.
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
        """Returns False if it had ended before."""
        if self.is_done:
            return False
        self.is_done = True
        if self.timer is not None:
            self.timer.cancel()
        if self.queue is not None:
            del self.queue[self]
        return True


class Budget:
    """0 ≤ used_bytes. Only reservations, recovered data or one oversized charge exceed the bound.

    `on_pressure` is called when callers wait for room.
    """

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
        """Takes the charge if it fits and no caller waits."""
        used = self.used_bytes
        if self._waiters or (used and used + charge > self.bound_bytes):
            return False
        self.used_bytes = used + charge
        return True

    def take_unbounded(self, charge: int) -> None:
        """Takes the charge even above the bound: for recovered data, and a reservation's excess."""
        self.used_bytes += charge

    def wait(self, waiter: Waiter, priority: Priority, delay_s: float | None) -> None:
        """Queues the waiter; it is refused with Overloaded after delay_s."""
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
        """Removes the waiter without calling it."""
        if waiter.end():
            self._waiters -= 1
            self._serve()

    def release(self, charge: int) -> None:
        """Returns the charge, and grants what fits now to waiting callers."""
        self.used_bytes -= charge
        if self._waiters:
            self._serve()

    def refuse_all(self, error: ErrorFactory) -> None:
        """Refuses all waiters."""
        for queue in self._waiting.values():
            while queue:
                waiter = next(iter(queue))
                waiter.end()
                self._waiters -= 1
                waiter.refused(error())

    def _serve(self) -> None:
        # A granted append may be refused and release at once: the outer call then serves on.
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
