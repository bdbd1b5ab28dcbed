"""Work that goes on when those who asked for it stop waiting: the next one finds it done, or under
way.

What comes late is kept for a while: those who ask again may have as little time, and would begin
the work anew each time, and never get it.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable

from streamlog.errors import StreamlogError
from streamlog.runtime.buffers import Buffer
from streamlog.runtime.clock import Clock
from streamlog.runtime.concurrency.background import Background, why_ended

KEPT_BYTES = 512
"""What a result takes beside its own bytes: its key, and its place here. Most indexes of aborted
transactions are empty."""


class LateResults:
    """By key; the same work has the same key, and comes to the same.

    `size_bytes_max`: of results that came late, with what each takes beside. The last one is kept
    in any case. `pending_max`: how much work is under way at a time; more waits for a place.
    """

    def __init__(
        self, clock: Clock, background: Background, size_bytes_max: int, pending_max: int
    ) -> None:
        self._clock = clock
        self._background = background
        self._pending_max = pending_max
        self.size_bytes_max = size_bytes_max
        self.size_bytes = 0
        """Of the results that are kept, with what each takes beside."""
        self._under_way: dict[Hashable, asyncio.Future[Buffer]] = {}
        self._late: set[Hashable] = set()
        """Those that somebody has stopped waiting for."""
        self._kept: OrderedDict[Hashable, Buffer] = OrderedDict()

    def __len__(self) -> int:
        return len(self._under_way)

    async def get(
        self, key: Hashable, work: Callable[[], Awaitable[Buffer]], deadline: float
    ) -> Buffer | None:
        """The result; None: it is not there by the deadline.

        Errors: those of the work, Closed, Internal (the work fails by a bug).
        """
        while True:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
            left_s = max(deadline - self._clock.monotonic(), 0)
            future = self._under_way.get(key)
            if future is not None:
                break
            if len(self._under_way) < self._pending_max:
                future = self._begin(key, work)
                break
            if not left_s:
                return None
            others = set(self._under_way.values())
            await asyncio.wait(others, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait({future}, timeout=left_s)
        if future.done():
            return future.result()
        self._late.add(key)
        return None

    def _begin(
        self, key: Hashable, work: Callable[[], Awaitable[Buffer]]
    ) -> asyncio.Future[Buffer]:
        future: asyncio.Future[Buffer] = asyncio.get_running_loop().create_future()
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

        def ended(task: asyncio.Task[None]) -> None:
            self._under_way.pop(key, None)
            self._late.discard(key)
            if not future.done():
                future.set_exception(
                    why_ended(task, "the node stops: ask again elsewhere, or later")
                )
            future.exception()  # Those who wait get it.

        self._background.spawn(run(), name="late").add_done_callback(ended)
        return future

    def forget(self, key: Hashable) -> None:
        """What it came to is not right: the next one who asks begins anew."""
        result = self._kept.pop(key, None)
        if result is not None:
            self.size_bytes -= len(result) + KEPT_BYTES

    def _keep(self, key: Hashable, result: Buffer) -> None:
        self.forget(key)
        self._kept[key] = result
        self.size_bytes += len(result) + KEPT_BYTES
        while self.size_bytes > self.size_bytes_max and len(self._kept) > 1:
            self.forget(next(iter(self._kept)))
