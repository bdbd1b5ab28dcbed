"""The answer that the appends of one run share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from streamlog.errors import StreamlogError


class RunAck:
    """How many batches of a run are durable, counted from the first: one answer for all of them.

    The medium calls `confirm` and `fail`; one caller follows with `reached`. A run is not durable
    at once as a whole: its batches become so in order, as single appends would.
    """

    __slots__ = ("_waiting", "durable", "error")

    def __init__(self) -> None:
        self.durable = 0
        """Batches that are durable; it only rises."""
        self.error: StreamlogError | None = None
        """Why the batches that are not durable yet will not be confirmed here."""
        self._waiting: asyncio.Future[None] | None = None

    def confirm(self, batches: int) -> None:
        """So many more batches are durable."""
        self.durable += batches
        self._wake()

    def fail(self, error: Callable[[], StreamlogError]) -> None:
        """The batches that are not durable end with the error; a later call changes nothing."""
        if self.error is None:
            self.error = error()
            self._wake()

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
