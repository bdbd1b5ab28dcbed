"""Work that goes on when those who asked for it stop waiting: the next one finds it done, or under
way."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Any, TypeVar

from streamlog.errors import Closed, StreamlogError
from streamlog.runtime.clock import Clock
from streamlog.runtime.concurrency.background import Background

T = TypeVar("T")


class LateResults:
    """By key; the same work has the same key. What it comes to is kept by the work itself."""

    def __init__(self, clock: Clock, background: Background) -> None:
        self._clock = clock
        self._background = background
        self._under_way: dict[Hashable, asyncio.Future[Any]] = {}

    def __len__(self) -> int:
        return len(self._under_way)

    async def get(
        self, key: Hashable, work: Callable[[], Awaitable[T]], deadline: float
    ) -> T | None:
        """The result; None: it is not there by the deadline. Errors: those of the work, Closed."""
        future: asyncio.Future[T] | None = self._under_way.get(key)
        if future is None:
            future = self._begin(key, work)
        await asyncio.wait({future}, timeout=max(deadline - self._clock.monotonic(), 0))
        return future.result() if future.done() else None

    def _begin(self, key: Hashable, work: Callable[[], Awaitable[T]]) -> asyncio.Future[T]:
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._under_way[key] = future

        async def run() -> None:
            try:
                result = await work()
            except StreamlogError as error:
                future.set_exception(error)
            else:
                future.set_result(result)

        def ended(_: object) -> None:
            self._under_way.pop(key, None)
            if not future.done():
                future.set_exception(Closed("the node stops: ask again at another, or later"))
            future.exception()  # Those who wait get it.

        self._background.spawn(run(), name="late").add_done_callback(ended)
        return future
