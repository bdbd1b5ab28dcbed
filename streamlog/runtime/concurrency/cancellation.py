"""Whose a CancelledError is: the running task's own, or of something that it waited for."""

from __future__ import annotations

import asyncio


def is_being_cancelled() -> bool:
    """The running task itself was cancelled, not only the call that it waits for.

    gRPC raises CancelledError for both, and marks the call as cancelled in both cases; other code
    does that awaits what somebody else has cancelled. A task that mistakes its own cancellation for
    the call's never ends, and `asyncio.run` waits for it.
    """
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
