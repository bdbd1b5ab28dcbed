"""Whose a CancelledError is, and work that it must not cut off."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")


def is_being_cancelled() -> bool:
    """The running task itself was cancelled, not only the call that it waits for.

    gRPC raises CancelledError for both, and marks the call as cancelled in both cases; other code
    does that awaits what somebody else has cancelled. A task that mistakes its own cancellation for
    the call's never ends, and `asyncio.run` waits for it.
    """
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def to_its_end(work: Awaitable[T], stop: Callable[[], object] = lambda: None) -> T:
    """Awaits `work` although the caller is cancelled; the cancellation is raised when it has ended.
    `stop` tells the work of it, so that it may end sooner.

    For a write that a later delete must not overtake: what is stored behind the delete would stay
    for ever.
    """
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        stop()
        # The caller hears of its cancellation alone, also of a second one, which ends the wait.
        task.add_done_callback(_heard)
        await asyncio.wait({task})
        raise


def _heard(task: asyncio.Future[T]) -> None:
    if not task.cancelled():
        task.exception()
