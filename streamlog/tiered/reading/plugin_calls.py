"""Calls of a plug-in that end for their callers, also where the plug-in does not end them.

1. A call has a time. When it is up, or its caller is cancelled, the call is cancelled, and has
   GRACE_S to end: a thread that writes is waited for.
2. A call that does not end then, such as a thread that hangs on a mounted folder, is left behind:
   nobody can end it but the process's end. Its caller goes on, and the alarm names it.
3. What a call that was left may still write is `is_under_way`: nobody may delete it yet, because
   what is written behind a deletion would stay for ever.
4. A partition has one call left behind at most, and the node `left_max`: beyond them a call is
   waited for as long as it takes, or an outage would take every thread there is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import TypeAlias, TypeVar

from streamlog.errors import StoreUnavailable
from streamlog.runtime.concurrency.background import Background
from streamlog.runtime.concurrency.cancellation import is_being_cancelled
from streamlog.tiered.api.segments import RemoteLogSegmentId, TopicIdPartition
from streamlog.tiered.reading.failures import RemoteFailures

T = TypeVar("T")
CallKey: TypeAlias = RemoteLogSegmentId | TopicIdPartition
"""What a call writes or deletes: a segment, or what there is of a partition."""

GRACE_S = 60
"""How long a call that is cancelled is waited for: longer than a write of a slow disk takes."""


class PluginCalls:
    """Of one node."""

    def __init__(self, failures: RemoteFailures, background: Background, left_max: int) -> None:
        self._failures = failures
        self._background = background
        self._left_max = left_max
        self._left: dict[asyncio.Task[None], CallKey | None] = {}
        """Calls that were given up and have not ended, in the order in which they were."""

    def is_under_way(self, segment_id: RemoteLogSegmentId) -> bool:
        """Whether a call that was given up may still write the segment, or delete it."""
        return segment_id in self._left.values()

    def has_left(self, partition: TopicIdPartition) -> bool:
        """Whether a call that was given up is still under way in the partition."""
        return any(_partition_of(key) == partition for key in self._left.values())

    async def run(
        self,
        doing: str,
        timeout_ms: int,
        work: Callable[[], Awaitable[T]],
        key: CallKey | None = None,
        held: AsyncExitStack | None = None,
    ) -> T:
        """`held` is closed when the call ends, also when it was left behind.

        Errors: TimeoutError (the call may still be under way); what the call raises.
        """
        kept = AsyncExitStack() if held is None else held.pop_all()
        outcome: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        is_begun = False

        async def call() -> None:
            nonlocal is_begun
            is_begun = True
            async with kept:
                with self._failures.watched(doing, timeout_ms):
                    try:
                        outcome.set_result(await work())
                    except Exception as error:  # noqa: BLE001 - a plug-in may raise anything
                        outcome.set_exception(error)
                    except asyncio.CancelledError:
                        if is_being_cancelled():
                            raise
                        outcome.set_exception(StoreUnavailable("it has cancelled its own call"))

        task = self._background.spawn(call(), name="call")
        try:
            await asyncio.wait({task}, timeout=timeout_ms / 1000)
        finally:
            if not task.done():
                await self._give_up(task, key)
            if not is_begun:
                await kept.aclose()
            if outcome.done():
                outcome.exception()  # A caller that was cancelled hears of that alone.
        if not outcome.done():
            raise TimeoutError(f"it has not ended within {timeout_ms / 1000:g} s")
        return outcome.result()

    async def _give_up(self, task: asyncio.Task[None], key: CallKey | None) -> None:
        """Returns when the call has ended, or is left behind."""
        task.cancel()
        try:
            await asyncio.wait({task}, timeout=GRACE_S)
            if not task.done() and not self._may_leave(key):
                await asyncio.wait({task})
        finally:
            # Also where the caller is cancelled a second time.
            if not task.done():
                self._left[task] = key
                task.add_done_callback(self._left.pop)

    def _may_leave(self, key: CallKey | None) -> bool:
        partition = _partition_of(key)
        if partition is not None and self.has_left(partition):
            return False
        return len(self._left) < self._left_max


def _partition_of(key: CallKey | None) -> TopicIdPartition | None:
    return key.topic_id_partition if isinstance(key, RemoteLogSegmentId) else key
