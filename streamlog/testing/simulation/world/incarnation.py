"""One process lifetime, the trace of a history, and a clock that may be wrong."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

from streamlog.runtime.rand import SeededRandom

T = TypeVar("T")

EPOCH_MS = 1_700_000_000_000
TASKS_MIN = 256

CURRENT: contextvars.ContextVar[Incarnation | None] = contextvars.ContextVar(
    "incarnation", default=None
)
NETWORK = contextvars.Context()
"""The context of requests under way: they belong to no incarnation, and outlive a crash."""


@dataclass
class Trace:
    """The events of a history in order; equal for equal seeds."""

    loop: asyncio.AbstractEventLoop
    events: list[tuple[object, ...]] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)

    def add(self, kind: str, *details: object) -> None:
        """`details` must not change later: they are formatted when the trace is looked at."""
        counts = self.counts
        counts[kind] = counts.get(kind, 0) + 1
        self.events.append((self.loop.time(), kind, *details))

    def lines(self) -> list[str]:
        return [f"{event[0]:.6f} " + " ".join(map(str, event[1:])) for event in self.events]


class SimulationClock:
    """The loop's time; `skew_ms` moves the wall clock only."""

    def __init__(self, loop: asyncio.AbstractEventLoop, skew_ms: int = 0) -> None:
        self._loop = loop
        self.skew_ms = skew_ms

    def now_ms(self) -> int:
        return EPOCH_MS + int(self._loop.time() * 1000) + self.skew_ms

    def monotonic(self) -> float:
        return self._loop.time()


class Incarnation:
    """One process lifetime: its tasks, and its way to the world.

    After `crash` it has no effect any more: its calls into the world never return, and its tasks
    are cancelled. Effects that were under way may still land, as on a real network.
    """

    def __init__(
        self, name: str, loop: asyncio.AbstractEventLoop, random: SeededRandom, trace: Trace
    ) -> None:
        self.name = name
        self.loop = loop
        self.random = random
        self.trace = trace
        self.is_alive = True
        self.set_aside: list[Any] = []
        """Callbacks that became ready while it was paused."""
        self.untaken: list[BaseException] = []
        """What tasks ended with before its end, and nobody had taken by then."""
        self._tasks: list[asyncio.Task[Any]] = []
        self._tasks_max = TASKS_MIN

    def start(self, work: Coroutine[Any, Any, T], *, name: str) -> asyncio.Task[T]:
        """Runs `work`, and all tasks that it makes, as part of this incarnation."""
        context = contextvars.copy_context()
        context.run(CURRENT.set, self)
        return self.loop.create_task(work, name=f"{self.name}.{name}", context=context)

    def adopt(self, task: asyncio.Task[Any]) -> None:
        if len(self._tasks) >= self._tasks_max:
            self._tasks = [task for task in self._tasks if not task.done() or _is_untaken(task)]
            self._tasks_max = max(TASKS_MIN, 2 * len(self._tasks))
        self._tasks.append(task)

    async def wait_while_crashed(self) -> None:
        """Returns while alive, never after the crash."""
        if not self.is_alive:
            await asyncio.get_running_loop().create_future()

    def latency(self, typical_s: float) -> float:
        """A random delay: mostly near `typical_s`, in 2 % of the draws twenty times as long."""
        random = self.random.random
        delay_s = typical_s * (0.2 + random())
        return delay_s * 20.0 if random() < 0.02 else delay_s

    def crash(self) -> None:
        if self.is_alive:
            self.trace.add("crash", self.name)
            self.end()

    def end(self) -> None:
        """Cancels all its tasks."""
        self.is_alive = False
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            if _is_untaken(task):
                error = task.exception()
                assert error is not None
                self.untaken.append(error)
            task.cancel()


def _is_untaken(task: asyncio.Task[Any]) -> bool:
    """It has ended with an error that nobody asked for. asyncio would tell so once the task is
    collected, which a history does not wait for, and never where somebody holds it."""
    return task.done() and bool(task._log_traceback)


def task_factory(
    loop: asyncio.AbstractEventLoop,
    coro: Coroutine[Any, Any, Any],
    context: contextvars.Context | None = None,
) -> asyncio.Task[Any]:
    """Makes a task that belongs to the incarnation in whose context it is made."""
    task: asyncio.Task[Any] = asyncio.Task(coro, loop=loop, context=context)
    owner = CURRENT.get() if context is None else context.get(CURRENT)
    if owner is not None:
        owner.adopt(task)
        if not owner.is_alive:
            task.cancel()
    return task


def answer(
    node: Incarnation, done: asyncio.Future[Any], result: Any, error: BaseException | None
) -> None:
    """Ends a wait of `node`, unless the node has crashed or the wait has ended."""
    if done.done() or not node.is_alive:
        return
    if error is not None:
        done.set_exception(error)
    else:
        done.set_result(result)
