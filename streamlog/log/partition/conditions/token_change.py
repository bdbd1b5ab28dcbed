"""A change of a log's fencing token, in its place among the appends.

1. It takes the turn of appends: later ones wait.
2. When all earlier appends are durable, its condition is tested. So a refusal reveals nothing that
   may still vanish, and no append under the old token appears after the change was answered.
3. The token is written where the log keeps it, also where the log has it already: the log may be
   led elsewhere by now, which only a write shows.
4. Then the turn ends, and not before: an append under the new token must not be stored by a log
   that has the old one after a crash.

Once the token is under way the change goes on even if its caller is cancelled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import NamedTuple

from streamlog.errors import Closed, Conflict, DeadlinePassed, OutcomeUnknown, StreamlogError
from streamlog.log.partition.lifecycle import LogLifecycle
from streamlog.model.append_condition import AppendCondition
from streamlog.model.partition import TopicPartition
from streamlog.runtime.clock import Clock
from streamlog.runtime.concurrency.background import Background
from streamlog.runtime.concurrency.turn import Turn


class TokenKeeper(NamedTuple):
    """What a change of the token asks of its log.

    `durable()` returns the log's end when all before it is durable; `write(token)` when the token
    is. Errors of both: why the log cannot. `refusal` is that of AppendConditions.
    """

    partition: TopicPartition
    clock: Clock
    lifecycle: LogLifecycle
    background: Background
    turn: Turn
    refusal: Callable[[AppendCondition, int], Conflict | None]
    durable: Callable[[], Awaitable[int]]
    write: Callable[[bytes], Awaitable[None]]


class LogTokenChange:
    """One change to a token that was checked."""

    def __init__(self, keeper: TokenKeeper, token: bytes, condition: AppendCondition) -> None:
        self._keeper = keeper
        self._token = token
        self._condition = condition
        self._is_sent = False

    async def apply(self, deadline: float | None) -> None:
        """Errors: as AbstractLog.set_fencing_token."""
        left_s = None if deadline is None else deadline - self._keeper.clock.monotonic()
        try:
            async with asyncio.timeout(left_s) as timeout:
                await self._change()
        except TimeoutError:
            if not timeout.expired():
                raise
            if self._is_sent:
                raise self._unknown("is not durable yet and may still become so") from None
            raise DeadlinePassed(
                f"the fencing token of {self._keeper.partition} was not changed before the "
                "deadline; what was appended before is under way"
            ) from None

    async def _change(self) -> None:
        keeper = self._keeper
        async with AsyncExitStack() as held:
            await held.enter_async_context(keeper.turn)
            keeper.lifecycle.check_open()
            end = await keeper.durable()
            refusal = keeper.refusal(self._condition, end)
            if refusal is not None:
                raise refusal
            self._is_sent = True
            try:
                await keeper.background.shielded_holding(held, self._write, name="set_token")
            except Closed as error:
                raise self._unknown(f"may not be stored: {error}") from error

    async def _write(self) -> None:
        """A token that may or may not be there fails the log: the next open tells."""
        try:
            await self._keeper.write(self._token)
        except StreamlogError as error:
            self._keeper.lifecycle.fail(error)
            raise self._unknown(f"may not be stored: {error}") from error

    def _unknown(self, fault: str) -> OutcomeUnknown:
        return OutcomeUnknown(
            f"the new fencing token of {self._keeper.partition} {fault}; describe the partition "
            "before a retry"
        )
