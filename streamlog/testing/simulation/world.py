"""What outlives a crash (store, metadata, disk), and one process lifetime of access to it."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar, TypeVarTuple

from streamlog.errors import StreamlogError
from streamlog.runtime.offload import THREADS, Lane
from streamlog.runtime.rand import SeededRandom

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

EPOCH_MS = 1_700_000_000_000

_current: contextvars.ContextVar[Incarnation | None] = contextvars.ContextVar(
    "incarnation", default=None
)


@dataclass
class Trace:
    """What happened, in order; equal for equal seeds."""

    events: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)

    def add(self, loop: asyncio.AbstractEventLoop, kind: str, detail: str = "") -> None:
        self.counts[kind] = self.counts.get(kind, 0) + 1
        self.events.append(f"{loop.time():.6f} {kind} {detail}".rstrip())


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
    """One process lifetime: its tasks and the gate to the world.

    After `crash` nothing of it has an effect any more: calls into the world never return, and its
    tasks are cancelled. Effects that were under way may still land, as on a real network.
    """

    def __init__(
        self, name: str, loop: asyncio.AbstractEventLoop, random: SeededRandom, trace: Trace
    ) -> None:
        self.name = name
        self.loop = loop
        self.random = random
        self.trace = trace
        self.is_alive = True
        self._tasks: list[asyncio.Task[Any]] = []

    def start(self, work: Coroutine[Any, Any, T], *, name: str) -> asyncio.Task[T]:
        """Runs `work`, and all tasks that it makes, as part of this incarnation."""
        context = contextvars.copy_context()
        context.run(_current.set, self)
        return self.loop.create_task(work, name=f"{self.name}.{name}", context=context)

    def adopt(self, task: asyncio.Task[Any]) -> None:
        self._tasks.append(task)

    async def gate(self) -> None:
        """Returns while alive, never after the crash."""
        if not self.is_alive:
            await asyncio.get_running_loop().create_future()

    def latency(self, typical_s: float) -> float:
        """A random delay: mostly near `typical_s`, now and then twenty times as long."""
        draw = self.random.random()
        return typical_s * (0.2 + draw) * (20.0 if self.random.random() < 0.02 else 1.0)

    def crash(self) -> None:
        self.is_alive = False
        self.trace.add(self.loop, "crash", self.name)
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()


def task_factory(
    loop: asyncio.AbstractEventLoop,
    coro: Coroutine[Any, Any, Any],
    context: contextvars.Context | None = None,
) -> asyncio.Task[Any]:
    """Makes a task that belongs to the incarnation in whose context it is made."""
    task: asyncio.Task[Any] = asyncio.Task(coro, loop=loop, context=context)
    owner = context[_current] if context is not None and _current in context else _current.get()
    if owner is not None:
        owner.adopt(task)
        if not owner.is_alive:
            task.cancel()
    return task


class SimulationOffload:
    """Offload without threads: the work runs inline after a virtual delay.

    Lanes with one thread keep their order. A crash before the work began means it never runs.
    """

    def __init__(
        self, incarnation: Incarnation, typical_s: dict[Lane, float] | None = None
    ) -> None:
        self._incarnation = incarnation
        self._typical_s = {
            Lane.WAL: 0.001,
            Lane.META: 0.001,
            Lane.STORE: 0.005,
            Lane.READ: 0.005,
            Lane.CPU: 0.0005,
            **(typical_s or {}),
        }
        self._free_at = dict.fromkeys(Lane, 0.0)
        self._handed_over: dict[object, Callable[[], Any]] = {}

    async def run(self, lane: Lane, fn: Callable[[*Ts], T], *args: *Ts) -> T:
        node = self._incarnation
        await node.gate()
        loop = node.loop
        done: asyncio.Future[T] = loop.create_future()
        start = max(loop.time(), self._free_at[lane]) + node.latency(self._typical_s[lane] / 2)
        if THREADS[lane] == 1:
            self._free_at[lane] = start
        answer_after = node.latency(self._typical_s[lane] / 2)
        if lane is Lane.WAL:
            self._handed_over[done] = lambda: fn(*args)

        def work() -> None:
            if not node.is_alive:
                return
            self._handed_over.pop(done, None)
            try:
                result = fn(*args)
            except Exception as error:  # noqa: BLE001 - carried to the caller, as a thread would
                loop.call_later(answer_after, _answer, node, done, None, error)
            else:
                loop.call_later(answer_after, _answer, node, done, result, None)

        loop.call_at(start, work)
        return await done

    def cut_off(self) -> None:
        """At a crash: runs the disk work that a thread was in, for the disk to tear it."""
        for work in list(self._handed_over.values())[:1]:
            with contextlib.suppress(OSError, StreamlogError):
                work()
        self._handed_over.clear()

    async def close(self) -> None:
        """Work under way is ended by the timers."""


def _answer(
    node: Incarnation, done: asyncio.Future[Any], result: Any, error: Exception | None
) -> None:
    if done.done() or not node.is_alive:
        return
    if error is not None:
        done.set_exception(error)
    else:
        done.set_result(result)


async def remote_call(
    node: Incarnation,
    typical_s: float,
    apply: Callable[[], Awaitable[T]],
    *,
    fault: str | None,
    unavailable: Callable[[], Exception],
    unknown: Callable[[], Exception],
) -> T:
    """A call over a network: `apply` takes effect between request and answer.

    `fault` None: it works. "refused": fails without effect. "lost": takes effect, the answer is
    lost. "late": the caller gives up first, the effect lands later, even after a crash. A caller
    that is cancelled or crashes leaves the request under way: it lands or not by its latency.
    """
    await node.gate()
    loop = node.loop
    done: asyncio.Future[T] = loop.create_future()
    request_s, answer_s = node.latency(typical_s / 2), node.latency(typical_s / 2)
    if fault == "refused":
        loop.call_later(request_s, _answer, node, done, None, unavailable())
        return await done
    if fault == "late":
        loop.call_later(request_s + answer_s, _answer, node, done, None, unknown())
        request_s = (request_s + answer_s) * (2 + 10 * node.random.random())

    async def deliver() -> None:
        await asyncio.sleep(request_s)
        try:
            result = await apply()
        except Exception as error:  # noqa: BLE001 - the store's own answer, carried to the caller
            loop.call_later(answer_s, _answer, node, done, None, error)
            return
        if fault == "lost":
            loop.call_later(answer_s, _answer, node, done, None, unknown())
        elif fault is None:
            loop.call_later(answer_s, _answer, node, done, result, None)

    # The request belongs to the network, not to the incarnation: a crash does not call it back.
    network = contextvars.copy_context()
    network.run(_current.set, None)
    task = loop.create_task(deliver(), name=f"{node.name}.network", context=network)
    _under_way.add(task)
    task.add_done_callback(_under_way.discard)
    return await done


_under_way: set[asyncio.Task[None]] = set()
