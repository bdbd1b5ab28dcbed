"""The answer that the appends of one run share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from streamlog.errors import StreamlogError


class RunAck:
    """How many batches of a run are durable, counted from the first: one answer for all of them.

    The medium calls `confirm` and `fail`; one caller follows, with `notify` or with `reached`. A
    run is not durable at once as a whole: its batches become so in order, as single appends would.
    """

    __slots__ = ("_changed", "_waiting", "durable", "error")

    def __init__(self) -> None:
        self.durable = 0
        """Batches that are durable; it only rises."""
        self.error: StreamlogError | None = None
        """Why the batches that are not durable yet will not be confirmed here."""
        self._waiting: asyncio.Future[None] | None = None
        self._changed: Callable[[], None] | None = None

    def confirm(self, batches: int) -> None:
        """So many more batches are durable."""
        self.durable += batches
        self._wake()

    def count(self, batches: int) -> None:
        """As `confirm`, but nobody is told before `tell`."""
        self.durable += batches

    def tell(self) -> None:
        """Tells the follower what was counted, and calls it in this turn of the loop.

        For a medium that has nothing more to change when it calls this: the log answers its callers
        meanwhile. An error of the follower's is told as one in a turn of its own is: other runs
        hear of theirs all the same.
        """
        changed, self._changed = self._changed, None
        self._wake()
        if changed is not None:
            try:
                changed()
            except Exception as error:  # noqa: BLE001 - it is told
                told = {"message": f"an answer to appends failed: {error!r}", "exception": error}
                asyncio.get_running_loop().call_exception_handler(told)

    def fail(self, error: Callable[[], StreamlogError]) -> None:
        """The batches that are not durable end with the error; a later call changes nothing."""
        if self.error is None:
            self.error = error()
            self._wake()

    def notify(self, changed: Callable[[], None]) -> None:
        """Calls `changed` once, after the next `confirm` or `fail` in a later turn of the loop, or
        by the next `tell`.

        For a caller that follows very many runs: a task of its own for each would cost more than
        the rest of their answers.
        """
        self._changed = changed

    async def reached(self, count: int) -> int:
        """Returns how many batches are durable, once there are `count`.

        Cancelling stops the wait only. Errors: those that the awaitable of `Stream.append` raises.
        """
        while self.durable < count:
            if self.error is not None:
                raise self.error
            self._waiting = asyncio.get_running_loop().create_future()
            await self._waiting
        return self.durable

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, None
        if waiting is not None and not waiting.done():
            waiting.set_result(None)
        changed, self._changed = self._changed, None
        if changed is not None:
            asyncio.get_running_loop().call_soon(changed)
