"""A change of a stream's fencing token, in its place among the appends.

1. An append barrier is raised: later appends wait.
2. When all earlier appends are confirmed, the conditions are tested. So a refusal reveals nothing
   that may still vanish, and no append under the old token appears after the change was answered.
3. The token is committed, also where the stream has it already: the stream may have another holder
   by now, which changed it, and only a commit shows that.
4. Then the barrier is lifted, and not before: with wal=disk an append under the new token would
   otherwise be acknowledged out of the WAL, although a crash brings the old token back.

Once the commit is sent, the change continues even if its caller is cancelled; it keeps the barrier
until it is done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack

from streamlog.engine.engine import Engine
from streamlog.engine.stream_core import StreamCore
from streamlog.errors import (
    Closed,
    DeadlinePassed,
    OffsetConflict,
    OutcomeUnknown,
    TokenMismatch,
)
from streamlog.metadata.interface import CommitEntry, TokenEntry
from streamlog.model.batch import AppendContext
from streamlog.model.batch_limits import check_condition, check_deadline
from streamlog.model.fencing_token import check_token
from streamlog.runtime.concurrency.keyed_lock import KeyedLock


class TokenChange:
    """One change. `check_kept(core, stripped)` raises if the stream was lost."""

    def __init__(
        self,
        engine: Engine,
        changing: KeyedLock[int],
        check_kept: Callable[[StreamCore, frozenset[int]], None],
        core: StreamCore,
        token: bytes,
        context: AppendContext,
    ) -> None:
        check_token(token)
        check_condition(context)
        check_deadline(context.deadline)
        self._engine = engine
        self._changing = changing
        self._check_kept = check_kept
        self._core = core
        self._token = token
        self._context = context
        self._is_sent = False

    async def apply(self) -> None:
        """Errors: as Stream.set_fencing_token."""
        deadline = self._context.deadline
        left_s = None if deadline is None else deadline - self._engine.parts.clock.monotonic()
        try:
            async with asyncio.timeout(left_s) as timeout:
                await self._change()
        except TimeoutError:
            if not timeout.expired():
                raise
            if self._is_sent:
                raise OutcomeUnknown(
                    "the change of the fencing token is not durable yet and may still become so; "
                    "describe the stream before a retry"
                ) from None
            raise DeadlinePassed(
                "the fencing token was not changed; what was appended before is under way"
            ) from None

    async def _change(self) -> None:
        engine, core = self._engine, self._core
        async with AsyncExitStack() as held:
            # Excludes opens, closes and staged commits of the stream.
            await held.enter_async_context(self._changing.holding(core.stream_id))
            if core.stop is not None:
                raise core.stop()
            if core.is_closing:
                raise Closed(f"stream {core.stream_id} is being closed; open it again")
            engine.sequencer.raise_barrier(core)
            held.callback(engine.sequencer.lift_barrier, core)
            await self._all_confirmed()
            self._check_conditions()
            self._is_sent = True
            await engine.background.shielded_holding(held, self._commit, name="set_token")

    async def _all_confirmed(self) -> None:
        confirmed = self._core.wait_for(self._core.next)
        if self._engine.group_commit is None:
            self._engine.request_flush()
        try:
            await confirmed
        finally:
            self._core.forget(confirmed)

    def _check_conditions(self) -> None:
        core, expected = self._core, self._context.expected_next_offset
        if expected is not None and expected != core.next:
            raise OffsetConflict(
                f"the next offset is {core.next}, not {expected}",
                expected=expected,
                actual=core.next,
            )
        token = self._context.fencing_token
        if token is not None and token != core.token:
            raise TokenMismatch("the stream has another token; nothing was changed")

    async def _commit(self) -> None:
        core = self._core
        entry = TokenEntry(core.stream_id, core.epoch, self._token)
        committed = await self._engine.metadata.commit(CommitEntry(tokens=[entry]))
        self._check_kept(core, committed.stripped)
        core.token = self._token
