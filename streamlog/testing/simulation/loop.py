"""An asyncio event loop on virtual time.

1. Callbacks run in the order in which they became ready; timers by time, then by insertion.
2. When nothing is ready the clock jumps to the next timer: an hour of waiting costs nothing.
3. No threads, no sockets: whatever would need one is a bug in the seam and fails at once.
4. Nothing ready and no timer is a deadlock, and is an error with the waiting tasks in it.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any

from streamlog.testing.simulation.world import task_factory


class Deadlock(AssertionError):
    """Every task waits for something that can no longer happen."""


class TimeLimit(AssertionError):
    """Virtual time ran past the limit: some task never came to its end."""


class _NoSelector(selectors.BaseSelector):
    """Selects nothing; waiting moves the clock."""

    def __init__(self, loop: SimulationLoop) -> None:
        self._loop = loop

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        raise RuntimeError("the simulation has no sockets")

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        raise RuntimeError("the simulation has no sockets")

    def get_map(self) -> Any:
        return {}

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise Deadlock(self._loop.describe_waiting())
        self._loop.advance(timeout)
        return []


class SimulationLoop(asyncio.BaseEventLoop):
    """`time()` is virtual seconds from 0."""

    def __init__(self, *, limit_s: float = 10 * 24 * 3600.0) -> None:
        super().__init__()
        self._virtual = 0.0
        self._limit_s = limit_s
        self._selector = _NoSelector(self)
        self._clock_resolution = 1e-9

    def time(self) -> float:
        return self._virtual

    def advance(self, seconds: float) -> None:
        if seconds > 0:
            self._virtual += seconds
            if self._virtual > self._limit_s:
                raise TimeLimit(self.describe_waiting())

    def describe_waiting(self) -> str:
        waiting = sorted(
            f"{task.get_name()}: {task.get_coro()}" for task in asyncio.all_tasks(self)
        )
        return "waiting: " + "; ".join(waiting)

    def _process_events(self, event_list: list[Any]) -> None:
        """There are no events but timers."""

    def _write_to_self(self) -> None:
        """There is no other thread to wake the loop from."""

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Any, *args: Any
    ) -> Any:
        raise RuntimeError(f"{func} went to a thread past the injected Offload")


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Runs `main` to its end on a new virtual loop; what is left over is dropped."""
    loop = SimulationLoop()
    loop.set_task_factory(task_factory)  # type: ignore[arg-type]
    asyncio.set_event_loop(None)
    try:
        loop.run_until_complete(main())
    finally:
        loop.set_exception_handler(lambda _loop, _context: None)
        for _ in range(100):
            left = asyncio.all_tasks(loop)
            if not left:
                break
            for task in left:
                task.cancel()
            loop.run_until_complete(asyncio.sleep(0))
        loop.close()
