"""An append that was called and has no offsets yet: it waits for room, or at an append barrier.

1. `wait_for_room`: the budget grants the charge, or refuses it at the deadline.
2. `wait_at_barrier`: the charge is taken, and the append waits until the barrier is lifted.
3. It ends once: it is sequenced (`proceed`), or abandoned. An append that was refused, or whose
   caller cancelled it, releases its charge and payload at that moment: while a store is away, only
   appends with a waiting caller take memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from streamlog.engine.append.budget import Budget, Waiter
from streamlog.engine.stream_core import StreamAppend
from streamlog.errors import Overloaded, StreamlogError
from streamlog.model.batch import AppendResult


class QueuedAppend:
    """`sequence` is called once the charge is taken and no barrier is in the way."""

    __slots__ = (
        "_append",
        "_budget",
        "_core",
        "_future",
        "_has_room",
        "_sequence",
        "_timer",
        "_waiter",
    )

    def __init__(
        self, append: StreamAppend, budget: Budget, sequence: Callable[[StreamAppend], None]
    ) -> None:
        assert append.future is not None
        self._append: StreamAppend | None = append
        """None once it has ended."""
        self._core = append.core
        self._future = append.future
        self._budget = budget
        self._sequence = sequence
        self._waiter: Waiter | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._has_room = False
        self._core.queued[self] = None
        self._future.add_done_callback(self._on_answered)

    def wait_for_room(self, delay_s: float | None) -> None:
        """Refused with Overloaded after `delay_s`."""
        append = self._append
        assert append is not None
        self._waiter = Waiter(append.charge, self._granted, self.refuse)
        self._budget.wait(self._waiter, append.context.priority, delay_s)

    def wait_at_barrier(self, delay_s: float | None) -> None:
        """The charge is taken. Refused with Overloaded after `delay_s`."""
        assert self._core.append_barrier is not None
        self._has_room = True
        self._core.append_barrier[self] = None
        if delay_s is not None:
            self._timer = asyncio.get_running_loop().call_later(max(0.0, delay_s), self._expire)

    def proceed(self) -> None:
        """Sequences the append: it has room, and no barrier is in the way."""
        append = self._append
        if self._future.done():
            self._abandon()
        elif append is not None:
            self._end()
            self._sequence(append)
            self._core.progressed()

    def refuse(self, error: StreamlogError) -> None:
        """Answers with the error, and abandons the append."""
        if not self._future.done():
            self._future.set_exception(error)
        self._abandon()

    def _granted(self) -> None:
        self._has_room = True
        self.proceed()

    def _expire(self) -> None:
        self.refuse(
            Overloaded(
                "the append waited until the deadline behind a staged commit or a change of the "
                "stream's fencing token; nothing was stored: retry with back-off"
            )
        )

    def _on_answered(self, _: asyncio.Future[AppendResult]) -> None:
        self._abandon()

    def _abandon(self) -> None:
        append, waiter = self._append, self._waiter
        if append is None:
            return
        self._end()
        if self._has_room:
            self._budget.release(append.charge)
        elif waiter is not None:
            self._budget.give_up(waiter)
        self._core.progressed()

    def _end(self) -> None:
        core = self._core
        self._append = self._waiter = None
        if self._timer is not None:
            self._timer.cancel()
        core.queued.pop(self, None)
        if core.append_barrier is not None:
            core.append_barrier.pop(self, None)
