"""Runs a scenario again and again; each run fails or cancels another one of its awaits.

1. All tasks of the engine run under a trampoline that sees each of their suspensions. They are
   counted from `arm` on; the order is the same in each run: time, randomness and ports are virtual.
2. At the n-th suspension the striker throws a RuntimeError into the coroutine in place of the wait
   (`fail`), or cancels the scenario's call, wherever that waits (`cancel`).
3. Ports suspend before and after each call takes effect, so that a strike hits calls that did
   nothing as well as calls that took effect without an answer.
4. The first run in which no await was left to strike is the last one.
"""

from __future__ import annotations

import asyncio
import contextvars
import gc
import logging
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any, Literal, TypeVar, TypeVarTuple

from prometheus_client import CollectorRegistry

from streamlog.kvstore.memory.store import MemoryKVStore
from streamlog.objectstore.memory import MemoryObjectStore
from streamlog.runtime.offload import Lane
from streamlog.runtime.rand import SeededRandom
from streamlog.testing.simulation.world.incarnation import SimulationClock
from streamlog.testing.simulation.world.loop import SimulationLoop
from streamlog.testing.torn_disk import TornDisk
from streamlog.wiring import Components

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
Kind = Literal["fail", "cancel"]
VICTIM = "victim"
OBSERVERS = ("main", "other ")
"""Prefixes of the names of the test's own tasks, whose awaits are not struck."""
UNFAILING = "TaskGroup.__aexit__"
"""An await of the standard library that raises only what its tasks raise."""
LIMIT_S = 3600.0


class Injected(RuntimeError):
    """An error that no caller expects."""


class Striker:
    """Counts suspensions while it is armed, and strikes number `at` (0: none)."""

    def __init__(self, kind: Kind, at: int) -> None:
        self._kind = kind
        self._at = at
        self._count = 0
        self._is_armed = False
        self._victim: asyncio.Task[Any] | None = None
        self.struck = ""
        """The await that was struck; empty before the strike."""

    def arm(self, call: Awaitable[object]) -> asyncio.Task[Any]:
        """Starts `call`, which a strike may cancel, and begins to count."""
        self._is_armed = True
        self._victim = start(VICTIM, call)
        return self._victim

    def disarm(self) -> None:
        self._is_armed = False

    def crossing(self, coroutine: Coroutine[Any, Any, Any]) -> Injected | None:
        """Called before a task waits; returns the error to throw in place of the wait, if any."""
        if not self._is_armed:
            return None
        task = asyncio.current_task()
        assert task is not None
        name = task.get_name()
        if name.startswith(OBSERVERS):
            return None
        if self._kind == "fail":
            if _where(coroutine).endswith(UNFAILING):
                return None
        elif self._victim is None or self._victim.done():
            # Nothing is left to cancel.
            return None
        self._count += 1
        if self._count != self._at:
            return None
        self.struck = f"{self._kind} at await {self._at}, in {name}: {_where(coroutine)}"
        if self._kind == "cancel":
            assert self._victim is not None
            asyncio.get_running_loop().call_soon(self._victim.cancel)
            return None
        return Injected(self.struck)


def start(name: str, call: Awaitable[object]) -> asyncio.Task[Any]:
    """Runs `call` as a task with that name."""

    async def run() -> object:
        return await call

    return asyncio.get_running_loop().create_task(run(), name=name)


class _Stepped:
    """Awaits a coroutine; the striker sees each of its suspensions."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], striker: Striker) -> None:
        self._coroutine = coroutine
        self._striker = striker

    def __await__(self) -> Generator[Any, None, Any]:
        coroutine = self._coroutine
        error: BaseException | None = None
        while True:
            try:
                future = coroutine.send(None) if error is None else coroutine.throw(error)
            except StopIteration as stop:
                return stop.value
            error = self._striker.crossing(coroutine)
            if error is None:
                try:
                    yield future
                except BaseException as thrown:  # noqa: BLE001 - handed on to the coroutine
                    error = thrown


def _where(coroutine: Any) -> str:
    """The innermost functions that wait."""
    names: list[str] = []
    while coroutine is not None and hasattr(coroutine, "cr_await"):
        names.append(coroutine.__qualname__)
        coroutine = coroutine.cr_await
    return " > ".join(names[-6:])


class _Suspending:
    """A port whose calls suspend before and after they take effect."""

    def __init__(self, inner: Any, names: frozenset[str]) -> None:
        self._inner = inner
        self._names = names

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if name not in self._names:
            return found

        async def call(*arguments: Any, **options: Any) -> Any:
            await asyncio.sleep(0)
            result = await found(*arguments, **options)
            await asyncio.sleep(0)
            return result

        return call


class SteppingOffload:
    """Runs the work inline, between two suspensions."""

    async def run(self, lane: Lane, fn: Callable[[*Ts], T], *arguments: *Ts) -> T:
        await asyncio.sleep(0)
        result = fn(*arguments)
        await asyncio.sleep(0)
        return result

    async def close(self) -> None:
        """There are no threads."""


KV_CALLS = frozenset(
    ["txn", "get", "range", "grant_lease", "keep_alive", "revoke_lease", "compact", "revision"]
)
STORE_CALLS = frozenset(["put", "put_if_match", "get", "get_pieces", "head", "list", "delete"])


class Lab:
    """Store, metadata and disk, which outlive the engines of one run, on the run's virtual loop."""

    def __init__(self, loop: SimulationLoop, striker: Striker) -> None:
        self.loop = loop
        self.striker = striker
        self.clock = SimulationClock(loop)
        self._store = MemoryObjectStore(self.clock)
        self._kv = MemoryKVStore(self.clock)
        self._disk = TornDisk(SeededRandom(3), lambda operation, name: None)

    def components(self, *, has_disk: bool) -> Components:
        store: Any = _Suspending(self._store, STORE_CALLS)
        kv: Any = _Suspending(self._kv, KV_CALLS)
        return Components(
            clock=self.clock,
            random=SeededRandom(5),
            offload=SteppingOffload(),
            registry=CollectorRegistry(),
            store=store,
            kv=kv,
            disk=self._disk if has_disk else None,
        )

    def restart(self) -> None:
        """Ends the handles of the last process on the disk."""
        self._disk.restart()

    async def calm_down(self) -> None:
        """Strikes no more, and lets the last strike come to those who have to know of it: what it
        ended is told some turns of the loop later, and a call in between may still succeed."""
        self.striker.disarm()
        await asyncio.sleep(0.001)

    async def close(self) -> None:
        """Closes the stores, after the last engine."""
        await self._kv.close()
        await self._store.close()

    def engine_tasks(self) -> list[asyncio.Task[Any]]:
        """Tasks that neither the test nor the KV store runs."""
        return [
            task
            for task in asyncio.all_tasks(self.loop)
            if not task.get_name().startswith((*OBSERVERS, "kvstore."))
        ]

    async def answered(self, *tasks: asyncio.Task[Any], within_s: float = 300.0) -> None:
        """Waits until each task has a result or an error; fails when one has neither in time."""
        _, waiting = await asyncio.wait(tasks, timeout=within_s)
        assert not waiting, (
            f"{self.striker.struck}: never answered: {[one.get_name() for one in waiting]}; "
            f"{self.loop.describe_waiting()}"
        )


def once(kind: Kind, at: int, scenario: Callable[[Lab], Awaitable[None]]) -> Striker:
    """One run. Tasks that are left at its end are cancelled."""
    striker = Striker(kind, at)
    loop = SimulationLoop(limit_s=LIMIT_S)

    async def stepped(coroutine: Coroutine[Any, Any, Any]) -> Any:
        return await _Stepped(coroutine, striker)

    def factory(
        loop: asyncio.AbstractEventLoop,
        coroutine: Coroutine[Any, Any, Any],
        context: contextvars.Context | None = None,
    ) -> asyncio.Task[Any]:
        task = asyncio.Task(stepped(coroutine), loop=loop, context=context)
        # A task that is cancelled before its first step never closes its coroutine.
        task.add_done_callback(lambda _: coroutine.close())
        return task

    loop.set_task_factory(factory)  # type: ignore[arg-type]
    asyncio.set_event_loop(None)

    async def main() -> None:
        await scenario(Lab(loop, striker))

    try:
        loop.run_until_complete(loop.create_task(main(), name="main"))
    finally:
        loop.set_exception_handler(lambda _loop, _context: None)
        for _ in range(100):
            left = asyncio.all_tasks(loop)
            if not left:
                break
            for task in left:
                task.cancel()
            loop.run_until_complete(loop.create_task(asyncio.sleep(0), name="main"))
        loop.close()
    return striker


def every(kind: Kind, scenario: Callable[[Lab], Awaitable[None]], *, runs_max: int = 2000) -> int:
    """Strikes each await in turn and returns how many there are."""
    gc.disable()
    logging.disable(logging.CRITICAL)
    try:
        for at in range(1, runs_max):
            if not once(kind, at, scenario).struck:
                return at - 1
            if at % 50 == 0:
                gc.collect()
    finally:
        logging.disable(logging.NOTSET)
        gc.enable()
    raise AssertionError(f"the scenario has more than {runs_max} awaits")
