"""Transactions as asyncio tasks call them: each call starts an operation and awaits its end."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from streamlog.client.settings import wait_s
from streamlog.client.transactions import outcomes
from streamlog.client.transactions.blocking import INTERRUPTED_ABORT_S
from streamlog.client.transactions.manager import TransactionManager
from streamlog.client.transactions.requests import TransactionOperation
from streamlog.client.transactions.state import NEW, OPEN, TransactionPhase
from streamlog.errors import StreamlogError

log = logging.getLogger(__name__)

now_s = time.monotonic


class ProducerTransactions:
    """`check_open`, `close_batches` and `wake` are the producer's. A call that is cancelled leaves
    its operation under way."""

    def __init__(
        self,
        manager: TransactionManager | None,
        *,
        check_open: Callable[[], None],
        close_batches: Callable[[], object],
        wake: Callable[[], None],
    ) -> None:
        self._given = manager
        self._check_open = check_open
        self._close_batches = close_batches
        self._wake = wake

    async def initialise(self, timeout: float | None = None) -> None:
        manager, limit_s = self._manager("init_transactions()"), wait_s(timeout)
        self._check_open()
        await self._wait(manager.initialise(asyncio.Event(), now_s()), limit_s)

    async def begin(self) -> None:
        manager = self._manager("begin_transaction()")
        self._check_open()
        if manager.state in NEW:
            await self.initialise()
        self._check_open()
        manager.begin()

    async def commit(self, timeout: float | None = None) -> None:
        manager, limit_s = self._manager("commit_transaction()"), wait_s(timeout)
        self._check_open()
        operation = manager.commit(asyncio.Event())
        self._close_batches()
        await self._wait(operation, limit_s)

    async def abort(self, timeout: float | None = None) -> None:
        manager, limit_s = self._manager("abort_transaction()"), wait_s(timeout)
        self._check_open()
        await self._wait(manager.abort(asyncio.Event(), now_s()), limit_s)

    @asynccontextmanager
    async def block(self) -> AsyncIterator[None]:
        """A transaction that is committed at the block's end, and aborted where that raises, also
        where its task is cancelled. An abort before it that was not confirmed is tried again first,
        since nobody else does."""
        manager = self._manager("transaction()")
        self._check_open()
        unconfirmed = manager.abort_again(asyncio.Event(), now_s())
        if unconfirmed is not None:
            await self._wait(unconfirmed, None)
        await self.begin()
        try:
            yield
            if manager.state is not TransactionPhase.READY:
                await self.commit()
        except BaseException as error:
            if manager.state in OPEN:
                await self._abort_after(error)
            raise

    async def _abort_after(self, error: BaseException) -> None:
        """Where the abort fails, too, a note of the error says so: the block's own error counts."""
        try:
            await self.abort(None if isinstance(error, Exception) else INTERRUPTED_ABORT_S)
        except (StreamlogError, TimeoutError) as failure:
            log.warning("a transaction was not aborted: %s", failure)
            error.add_note(outcomes.left_open(failure))

    async def end(self, timeout_s: float | None) -> None:
        """As `streamlog.client.transactions.blocking.ProducerTransactions.end`."""
        if self._given is None:
            return
        operation = self._given.ending(asyncio.Event(), now_s())
        if operation is None:
            return
        try:
            await self._wait(operation, timeout_s)
        except (StreamlogError, TimeoutError) as failure:
            log.warning("closed with a transaction: %s", outcomes.left_open(failure))

    def _manager(self, call: str) -> TransactionManager:
        """Errors: InvalidTxnState where the producer has no transactional id."""
        if self._given is None:
            raise outcomes.without_transactional_id(call)
        return self._given

    async def _wait(self, operation: TransactionOperation, timeout_s: float | None) -> None:
        """Errors: the operation's; TimeoutError, and it goes on."""
        self._wake()
        assert isinstance(operation.waiter, asyncio.Event)
        try:
            async with asyncio.timeout(timeout_s):
                await operation.waiter.wait()
        except TimeoutError:
            raise outcomes.still_under_way(operation.goal.value, timeout_s) from None
        operation.result()
