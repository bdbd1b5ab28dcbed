"""Work that goes on when those who asked for it stop waiting: the next one finds it done, or under
way.

What comes late is kept for a while: those who ask again may have as little time, and would begin
the work anew each time, and never get it.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from typing import Any, TypeVar

from streamlog.errors import Closed, StreamlogError
from streamlog.runtime.clock import Clock
from streamlog.runtime.concurrency.background import Background

T = TypeVar("T")

KEPT_MAX = 8
"""Results that came late, and are still in memory."""


class LateResults:
    """By key; the same work has the same key, and comes to the same."""

    def __init__(self, clock: Clock, background: Background) -> None:
        self._clock = clock
        self._background = background
        self._under_way: dict[Hashable, asyncio.Future[Any]] = {}
        self._late: set[Hashable] = set()
        """Those that somebody has stopped waiting for."""
        self._kept: OrderedDict[Hashable, Any] = OrderedDict()

    def __len__(self) -> int:
        return len(self._under_way)

    async def get(
        self, key: Hashable, work: Callable[[], Awaitable[T]], deadline: float
    ) -> T | None:
        """The result; None: it is not there by the deadline. Errors: those of the work, Closed."""
        if key in self._kept:
            self._kept.move_to_end(key)
            kept: T = self._kept[key]
            return kept
        future: asyncio.Future[T] | None = self._under_way.get(key)
        if future is None:
            future = self._begin(key, work)
        await asyncio.wait({future}, timeout=max(deadline - self._clock.monotonic(), 0))
        if future.done():
            return future.result()
        self._late.add(key)
        return None

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
                if key in self._late:
                    self._keep(key, result)

        def ended(_: object) -> None:
            self._under_way.pop(key, None)
            self._late.discard(key)
            if not future.done():
                future.set_exception(Closed("the node stops: ask again at another, or later"))
            future.exception()  # Those who wait get it.

        self._background.spawn(run(), name="late").add_done_callback(ended)
        return future

    def forget(self, key: Hashable) -> None:
        """What it came to is not right: the next one who asks begins anew."""
        self._kept.pop(key, None)

    def _keep(self, key: Hashable, result: object) -> None:
        self._kept[key] = result
        if len(self._kept) > KEPT_MAX:
            self._kept.popitem(last=False)
