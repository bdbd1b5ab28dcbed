"""A change of a log's fencing token, in its place among the appends.

1. It takes the turn of appends: later ones wait.
2. When all earlier appends are durable, its condition is tested. So a refusal reveals nothing that
   may still vanish, and no append under the old token appears after the change was answered.
3. The token is written to the meta stream, also where the log has it already: the log may be led
   elsewhere by now, which only a write shows.
4. Then the turn ends, and not before: an append under the new token must not be stored by a log
   that has the old one after a crash.

Why the meta stream, and not the data stream's own token: it is replayed at each open with the rest
of the log's state, lies in the objects like the data, and asks nothing more of a medium.
Once the record is under way the change goes on even if its caller is cancelled.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

from streamlog.errors import Closed, DeadlinePassed, OutcomeUnknown, StreamlogError
from streamlog.log.partition.append_conditions import AppendConditions
from streamlog.log.shared.meta.codec import FencingToken
from streamlog.log.shared.parts import LogParts
from streamlog.model.append_condition import AppendCondition
from streamlog.runtime.concurrency.background import Background
from streamlog.runtime.concurrency.turn import Turn


class LogTokenChange:
    """One change to a token that was checked."""

    def __init__(
        self,
        parts: LogParts,
        turn: Turn,
        conditions: AppendConditions,
        background: Background,
        token: bytes,
        condition: AppendCondition,
    ) -> None:
        self._parts = parts
        self._turn = turn
        self._conditions = conditions
        self._background = background
        self._token = token
        self._condition = condition
        self._is_sent = False

    async def apply(self, deadline: float | None) -> None:
        """Errors: as AbstractLog.set_fencing_token."""
        left_s = None if deadline is None else deadline - self._parts.environment.clock.monotonic()
        try:
            async with asyncio.timeout(left_s) as timeout:
                await self._change()
        except TimeoutError:
            if not timeout.expired():
                raise
            if self._is_sent:
                raise self._unknown("is not durable yet and may still become so") from None
            raise DeadlinePassed(
                f"the fencing token of {self._parts.partition} was not changed before the "
                "deadline; what was appended before is under way"
            ) from None

    async def _change(self) -> None:
        parts = self._parts
        async with AsyncExitStack() as held:
            await held.enter_async_context(self._turn)
            parts.lifecycle.check_open()
            end = await parts.visibility.wait_durable(parts.tail.end_offset)
            refusal = self._conditions.refusal(self._condition, end)
            if refusal is not None:
                raise refusal
            self._is_sent = True
            try:
                await self._background.shielded_holding(held, self._write, name="set_token")
            except Closed as error:
                raise self._unknown(f"may not be stored: {error}") from error

    async def _write(self) -> None:
        """A record that may or may not be there fails the log: the next open tells."""
        try:
            await self._parts.streams.meta.write((FencingToken(self._token),))
        except StreamlogError as error:
            self._parts.lifecycle.fail(error)
            raise self._unknown(f"may not be stored: {error}") from error

    def _unknown(self, fault: str) -> OutcomeUnknown:
        return OutcomeUnknown(
            f"the new fencing token of {self._parts.partition} {fault}; describe the partition "
            "before a retry"
        )
