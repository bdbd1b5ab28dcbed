"""Background tasks: every owner has one `Background`, the only place where tasks are made.

The first failure of a task is kept and reported to the owner once. It stops no other task: the
owner decides what to do, usually to close with this reason for every caller.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack
from typing import Any, TypeVar

from streamlog.errors import Closed, Fenced, Internal, StreamlogError

T = TypeVar("T")

log = logging.getLogger(__name__)


class Background:
    """The tasks of one owner; made inside a running loop, ended by `close`."""

    def __init__(self, owner: str, on_failure: Callable[[BaseException], None]) -> None:
        self._owner = owner
        self._on_failure = on_failure
        self._tasks: dict[asyncio.Task[Any], None] = {}
        """By creation, the order in which `close` cancels them: simulations rely on it."""
        self.failure: BaseException | None = None

    def spawn(self, work: Coroutine[Any, Any, None], *, name: str) -> asyncio.Task[None]:
        """Runs `work`. An exception is the owner's failure."""
        task = asyncio.get_running_loop().create_task(work, name=f"{self._owner}.{name}")
        self._tasks[task] = None
        task.add_done_callback(self._done)
        return task

    def call(self, work: Callable[[], None], *, name: str) -> None:
        """Calls `work` now. An exception is the owner's failure, as a task's is."""
        try:
            work()
        except Exception as error:  # noqa: BLE001 - the owner's to handle
            self._failed(f"{self._owner}.{name}", error)

    def every(
        self, interval_s: Callable[[], float], tick: Callable[[], Awaitable[None]], *, name: str
    ) -> asyncio.Task[None]:
        """Calls `tick` repeatedly, `interval_s()` seconds after its last end."""

        async def loop() -> None:
            while True:
                await asyncio.sleep(interval_s())
                await tick()

        return self.spawn(loop(), name=name)

    async def shielded(self, work: Callable[[], Awaitable[T]], *, name: str) -> T:
        """Runs `work()` to its end even if the caller is cancelled; returns or raises what it does.

        For work that must not stop half-way. Its StreamlogErrors go to the caller and not to the
        owner. Other errors: Closed, if the owner ends first; Internal, if `work` fails by a bug.
        """
        results: list[T] = []
        errors: list[StreamlogError] = []

        async def run() -> None:
            try:
                results.append(await work())
            except StreamlogError as error:
                errors.append(error)

        task = self.spawn(run(), name=name)
        await asyncio.wait({task})
        if errors:
            raise errors[0]
        if not results:
            raise why_ended(task, f"{self._owner} was closed")
        return results[0]

    async def shielded_holding(
        self, held: AsyncExitStack, work: Callable[[], Awaitable[T]], *, name: str
    ) -> T:
        """As `shielded`; the resources in `held` are released only when `work` ends."""
        kept = held.pop_all()

        async def holding() -> T:
            async with kept:
                return await work()

        try:
            return await self.shielded(holding, name=name)
        except Closed:
            # The task may have been cancelled before its first step.
            await kept.aclose()
            raise

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            self._failed(task.get_name(), error)

    def _failed(self, name: str, error: BaseException) -> None:
        if self.failure is None:
            self.failure = error
            self._log(name, error)
            self._on_failure(error)

    def _log(self, name: str, error: BaseException) -> None:
        """Fenced is an expected end, whose message suffices: one line without a traceback, and only
        once if the error ends several owners."""
        if not isinstance(error, Fenced):
            log.error("%s failed", name, exc_info=error)
        elif not error.is_logged:
            error.is_logged = True
            log.error("%s ended: %s: %s", name, type(error).__name__, error)

    async def close(self) -> None:
        """Cancels all tasks and waits for their end."""
        tasks = [task for task in self._tasks if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def why_ended(task: asyncio.Task[Any], closed: str) -> StreamlogError:
    """What those hear who wait for what an ended task has not given: Closed, with this text, where
    its owner ended, and Internal where it failed by a bug."""
    if task.cancelled():
        return Closed(closed)
    return Internal(f"{task.get_name()} failed: {task.exception()!r}")
