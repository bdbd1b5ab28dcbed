"""Offload without threads: the work runs inline after a virtual delay."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, TypeVar, TypeVarTuple

from streamlog.errors import StreamlogError
from streamlog.runtime.offload import THREADS, Lane
from streamlog.testing.simulation.world.incarnation import Incarnation, answer

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

TYPICAL_S = {
    Lane.WAL: 0.001,
    Lane.FILES: 0.001,
    Lane.META: 0.001,
    Lane.STORE: 0.005,
    Lane.GET: 0.005,
    Lane.READ: 0.005,
    Lane.CPU: 0.0005,
    Lane.TLS: 0.001,
}
DISK_LANES = (Lane.WAL, Lane.FILES)


class ProcessDied(BaseException):
    """The process ends within a call that a thread makes: none of its code runs any more."""


class SimulationOffload:
    """Lanes with one thread keep their order. A crash before the work began means it never runs.

    `stall` draws how many seconds a disk access stalls. `wal_s`: what a sync of the log takes.
    """

    def __init__(
        self,
        incarnation: Incarnation,
        stall: Callable[[Lane], float],
        wal_s: float = TYPICAL_S[Lane.WAL],
    ) -> None:
        self._typical_s = {**TYPICAL_S, Lane.WAL: wal_s}
        self._incarnation = incarnation
        self._stall = stall
        self._free_at = dict.fromkeys(Lane, 0.0)
        self._handed_over: dict[object, Callable[[], Any]] = {}

    async def run(self, lane: Lane, fn: Callable[[*Ts], T], *args: *Ts) -> T:
        node = self._incarnation
        await node.wait_while_crashed()
        loop = node.loop
        done: asyncio.Future[T] = loop.create_future()
        half_s = self._typical_s[lane] / 2
        start = max(loop.time(), self._free_at[lane]) + node.latency(half_s)
        answer_after = node.latency(half_s)
        if lane in DISK_LANES:
            # A slow sync is on the disk early or late; either way it holds up what follows.
            stall_s = self._stall(lane)
            start += stall_s / 2
            answer_after += stall_s / 2
            self._handed_over[done] = lambda: fn(*args)
        if THREADS[lane] == 1:
            self._free_at[lane] = start

        def work() -> None:
            if not node.is_alive:
                return
            self._handed_over.pop(done, None)
            try:
                result = fn(*args)
            except Exception as error:  # noqa: BLE001 - carried to the caller, as a thread would
                loop.call_later(answer_after, answer, node, done, None, error)
            else:
                loop.call_later(answer_after, answer, node, done, result, None)

        loop.call_at(start, work)
        return await done

    @property
    def is_in_disk_access(self) -> bool:
        """Whether a thread is in one, or is about to be."""
        return bool(self._handed_over)

    def cut_off(self, works_max: int = 1) -> None:
        """At a crash: runs the disk work that so many threads were in, for the disk to tear it, or
        to end the process within it."""
        for work in list(self._handed_over.values())[:works_max]:
            with contextlib.suppress(OSError, StreamlogError, ProcessDied):
                work()
        self._handed_over.clear()

    async def close(self) -> None:
        """Work under way is ended by the timers."""


class InlineOffload:
    """Runs the work at once, for checks while no node runs."""

    async def run(self, lane: Lane, fn: Callable[[*Ts], T], *args: *Ts) -> T:
        return fn(*args)

    async def close(self) -> None:
        """Nothing is under way."""
