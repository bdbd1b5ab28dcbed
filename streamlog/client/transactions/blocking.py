"""Transactions as threads call them: each call starts an operation and waits for its end.

The producer's sender asks the coordinator; nothing here waits longer than the operation's own time
limit, because the sender ends the operation by then, and also where it fails or is closed.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from streamlog.client.settings import wait_s
from streamlog.client.transactions import outcomes
from streamlog.client.transactions.manager import TransactionManager
from streamlog.client.transactions.requests import TransactionOperation
from streamlog.client.transactions.state import NEW, OPEN, TransactionPhase
from streamlog.errors import Closed, StreamlogError

log = logging.getLogger(__name__)

now_s = time.monotonic

INTERRUPTED_ABORT_S = 5.0
"""How long `transaction()` waits for the abort after KeyboardInterrupt or SystemExit."""


class TransactionHost(Protocol):
    """The producer's sender. `work` is a condition of `lock`; both are new after a fork."""

    lock: threading.Lock
    work: threading.Condition
    is_closed: bool
    failure: StreamlogError | None

    def start(self) -> None: ...


class ProducerTransactions:
    """`close_batches` and `check_may_wait` are the producer's; the latter is told the call's name
    and raises Invalid in a delivery callback, whose thread brings the answers."""

    def __init__(
        self,
        manager: TransactionManager | None,
        host: TransactionHost,
        *,
        close_batches: Callable[[], object],
        check_may_wait: Callable[[str], None],
    ) -> None:
        self._given = manager
        self._host = host
        self._close_batches = close_batches
        self._check_may_wait = check_may_wait

    def initialise(self, timeout: float | None = None) -> None:
        limit_s = wait_s(timeout)

        def start(manager: TransactionManager) -> TransactionOperation:
            return manager.initialise(threading.Event(), now_s())

        self._wait(self._start("init_transactions()", start), limit_s)

    def begin(self) -> None:
        manager = self._manager("begin_transaction()")
        with self._host.lock:
            self._check_open()
            is_new = manager.state in NEW
        if is_new:
            self.initialise()
        with self._host.lock:
            self._check_open()
            manager.begin()

    def commit(self, timeout: float | None = None) -> None:
        limit_s = wait_s(timeout)

        def start(manager: TransactionManager) -> TransactionOperation:
            operation = manager.commit(threading.Event())
            self._close_batches()
            return operation

        self._wait(self._start("commit_transaction()", start), limit_s)

    def abort(self, timeout: float | None = None) -> None:
        limit_s = wait_s(timeout)

        def start(manager: TransactionManager) -> TransactionOperation:
            return manager.abort(threading.Event(), now_s())

        self._wait(self._start("abort_transaction()", start), limit_s)

    @contextmanager
    def block(self) -> Iterator[None]:
        """A transaction that is committed at the block's end, and aborted where that raises. An
        abort before it that was not confirmed is tried again first, since nobody else does."""
        self._abort_again()
        self.begin()
        try:
            yield
            if not self._is_ended:
                self.commit()
        except BaseException as error:
            self._abort_after(error)
            raise

    def _abort_again(self) -> None:
        manager = self._manager("transaction()")
        self._check_may_wait("transaction()")
        with self._host.lock:
            self._check_open()
            operation = manager.abort_again(threading.Event(), now_s())
            self._host.work.notify_all()
        if operation is not None:
            self._wait(operation, None)

    @property
    def _is_ended(self) -> bool:
        """The block itself committed or aborted."""
        return self._manager("transaction()").state is TransactionPhase.READY

    def _abort_after(self, error: BaseException) -> None:
        """Where the abort fails, too, a note of the error says so: the block's own error counts."""
        if self._manager("transaction()").state not in OPEN:
            return
        try:
            self.abort(None if isinstance(error, Exception) else INTERRUPTED_ABORT_S)
        except (StreamlogError, TimeoutError) as failure:
            log.warning("a transaction was not aborted: %s", failure)
            error.add_note(outcomes.left_open(failure))

    def end(self, timeout_s: float | None) -> None:
        """For the producer's end: aborts what is open, and waits for what is being ended.

        What could not be ended in time is logged: the coordinator aborts it after its time-out.
        """
        if self._given is None:
            return
        with self._host.lock:
            operation = self._given.ending(threading.Event(), now_s())
            self._host.work.notify_all()
        if operation is None:
            return
        try:
            self._wait(operation, timeout_s)
        except (StreamlogError, TimeoutError) as failure:
            log.warning("closed with a transaction: %s", outcomes.left_open(failure))

    def _start(
        self, call: str, start: Callable[[TransactionManager], TransactionOperation]
    ) -> TransactionOperation:
        manager = self._manager(call)
        self._check_may_wait(call)
        with self._host.lock:
            self._check_open()
            self._host.start()
            operation = start(manager)
            self._host.work.notify_all()
        return operation

    def _manager(self, call: str) -> TransactionManager:
        """Errors: InvalidTxnState where the producer has no transactional id."""
        if self._given is None:
            raise outcomes.without_transactional_id(call)
        return self._given

    def _check_open(self) -> None:
        """With the lock held. Errors: Closed; the failure that ended the producer."""
        if self._host.failure is not None:
            raise self._host.failure.with_traceback(None)
        if self._host.is_closed:
            raise Closed("the producer is closed; open another one")

    @staticmethod
    def _wait(operation: TransactionOperation, timeout_s: float | None) -> None:
        """Errors: the operation's; TimeoutError, and it goes on."""
        assert isinstance(operation.waiter, threading.Event)
        if not operation.waiter.wait(timeout_s):
            raise outcomes.still_under_way(operation.goal.value, timeout_s)
        operation.result()
