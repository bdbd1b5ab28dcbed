"""An asyncio event loop on virtual time.

1. Callbacks run in the order in which they became ready; timers by time, then by insertion.
2. When nothing is ready the clock jumps to the next timer: an hour of waiting costs nothing.
3. There are no threads and sockets: code that needs one is a bug in the seam and fails at once.
4. Nothing ready and no timer is a deadlock: an error that lists the waiting tasks.
5. Callbacks of a paused incarnation are set aside until it resumes; its timers fire meanwhile.
"""

from __future__ import annotations

import asyncio
import gc
import selectors
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, copy_context
from heapq import heappop, heappush
from typing import Any

from streamlog.testing.simulation.world.incarnation import CURRENT, Incarnation, task_factory

LIMIT_S = 10 * 24 * 3600.0
GARBAGE_MAX = 200_000
"""Allocations after which garbage is collected between histories."""


class Deadlock(AssertionError):
    """Every task waits for an event that can no longer happen."""


class TimeLimit(AssertionError):
    """Virtual time ran past the limit: a task does not end."""


class _Call(asyncio.TimerHandle):
    """A callback, with a time if it is a timer. Without the base's debug bookkeeping."""

    __slots__ = ()

    def __init__(
        self,
        callback: Callable[..., Any],
        args: tuple[Any, ...],
        loop: SimulationLoop,
        context: Context | None,
        when: float = 0.0,
    ) -> None:
        self._callback = callback
        self._args = args
        self._loop = loop
        self._context = copy_context() if context is None else context
        self._cancelled = False
        self._repr = None
        self._source_traceback = None
        self._when = when
        self._scheduled = False

    def cancel(self) -> None:
        self._cancelled = True
        self._callback = _nothing
        self._args = ()


def _nothing() -> None:
    """Replaces the callback of a cancelled call, which frees what the callback holds."""


class _NoSelector(selectors.BaseSelector):
    """There is nothing to select from."""

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        raise RuntimeError("the simulation has no sockets")

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        raise RuntimeError("the simulation has no sockets")

    def get_map(self) -> Any:
        return {}

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        raise RuntimeError("the simulation has no sockets")


class SimulationLoop(asyncio.BaseEventLoop):
    """`time()` is virtual seconds from 0."""

    def __init__(self, *, limit_s: float = LIMIT_S) -> None:
        super().__init__()
        self._virtual = 0.0
        self._limit_s = limit_s
        self._selector = _NoSelector()
        self._calls: deque[_Call] = deque()
        self._timers: list[tuple[float, int, _Call]] = []
        self._timer_count = 0
        self.paused: set[Incarnation] = set()

    def time(self) -> float:
        return self._virtual

    def describe_waiting(self) -> str:
        waiting = sorted(
            f"{task.get_name()}: {task.get_coro()}" for task in asyncio.all_tasks(self)
        )
        return "waiting: " + "; ".join(waiting)

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> _Call:
        call = _Call(callback, args, self, context)
        self._calls.append(call)
        return call

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> _Call:
        call = _Call(callback, args, self, context, when)
        self._timer_count += 1
        heappush(self._timers, (when, self._timer_count, call))
        return call

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> _Call:
        return self.call_at(self._virtual + delay, callback, *args, context=context)

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> _Call:
        return self.call_soon(callback, *args, context=context)

    def pause(self, node: Incarnation) -> None:
        """Stops all callbacks of `node` until `resume`."""
        self.paused.add(node)

    def resume(self, node: Incarnation) -> None:
        """Runs the callbacks that were set aside, in the order in which they became ready."""
        self.paused.discard(node)
        self._calls.extend(node.set_aside)
        node.set_aside.clear()

    def _run_once(self) -> None:
        while not self._stopping:  # type: ignore[attr-defined]
            self._run_ready()

    def _run_ready(self) -> None:
        calls, timers = self._calls, self._timers
        if not calls:
            while timers and timers[0][2]._cancelled:
                heappop(timers)
            if not timers:
                raise Deadlock(self.describe_waiting())
            self._virtual = max(self._virtual, timers[0][0])
            if self._virtual > self._limit_s:
                raise TimeLimit(self.describe_waiting())
        now, paused = self._virtual, self.paused
        while timers and timers[0][0] <= now:
            calls.append(heappop(timers)[2])
        for _ in range(len(calls)):
            call = calls.popleft()
            if call._cancelled:
                continue
            context = call._context
            if paused and (owner := context.get(CURRENT)) in paused and owner is not None:
                owner.set_aside.append(call)
                continue
            try:
                context.run(call._callback, *call._args)
            except (SystemExit, KeyboardInterrupt):
                raise
            except BaseException as error:  # noqa: BLE001 - as the base does: told, not raised
                self.call_exception_handler({"message": "a callback failed", "exception": error})

    def close(self) -> None:
        super().close()
        self._calls.clear()
        self._timers.clear()

    def _process_events(self, event_list: list[Any]) -> None:
        """There are no events but timers."""

    def _write_to_self(self) -> None:
        """There is no other thread to wake the loop from."""

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Any, *args: Any
    ) -> Any:
        raise RuntimeError(f"{func} went to a thread past the injected Offload")


def run(main: Callable[[], Coroutine[Any, Any, None]], *, limit_s: float = LIMIT_S) -> None:
    """Runs `main` to its end on a new virtual loop; tasks that are left are cancelled.

    Errors: TimeLimit after so much virtual time, those of `main`.

    Garbage is collected only afterwards: finalizers would run at moments that the seed does not
    determine, and make histories differ.
    """
    loop = SimulationLoop(limit_s=limit_s)
    loop.set_task_factory(task_factory)  # type: ignore[arg-type]
    asyncio.set_event_loop(None)
    gc.disable()
    try:
        loop.run_until_complete(main())
    finally:
        loop.set_exception_handler(lambda _loop, _context: None)
        for node in list(loop.paused):
            loop.resume(node)
        for _ in range(100):
            left = asyncio.all_tasks(loop)
            if not left:
                break
            for task in left:
                task.cancel()
            loop.run_until_complete(asyncio.sleep(0))
        loop.close()
        gc.enable()
        if gc.get_count()[0] > GARBAGE_MAX:
            gc.collect()
