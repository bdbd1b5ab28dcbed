"""A producer's transactions without their I/O. Pure; the producer's lock is held around each call.

    application  init, begin, commit, abort  → state, and an TransactionOperation to wait for
    sender       request → one call to the coordinator at a time → answered or refused
    core         may_send_to (before a batch is sent), batch_failed, lost_sequence

Invariants
1. An open batch exists only IN_TRANSACTION: `commit` is called with all batches closed right after,
   and a state of WITHOUT_BATCHES gives them up. So `check_sending` is asked only where a batch is
   opened, and a send into an open batch costs nothing more.
2. A batch is sent only once the coordinator has its partition in the transaction.
3. EndTransaction(commit) goes out only when every batch is stored; one that failed makes an abort
   the only way on.
4. Each transaction has the epoch that the end of the one before gave (KIP-890). So whatever is late
   of an aborted transaction is refused, and an abort waits for no batch.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from streamlog.client.calls.topic import PARTITIONS_PER_REQUEST, TopicPartition, partition_limit_of
from streamlog.client.calls.transaction import (
    Refusals,
    add_partitions,
    end_transaction,
    init_transactional_producer,
)
from streamlog.client.producer_identity import NO_IDENTITY, ProducerIdentity
from streamlog.client.settings import UNKNOWN_TOPIC_ATTEMPTS_MAX, ProducerSettings, backoff_s
from streamlog.client.transactions import outcomes
from streamlog.client.transactions.requests import (
    NEVER,
    Goal,
    OperationWaiter,
    RequestKind,
    TransactionOperation,
    TransactionRequest,
)
from streamlog.client.transactions.state import (
    OPEN,
    SENDING,
    TRANSITIONS,
    UNCONFIRMED,
    WITHOUT_BATCHES,
    TransactionPhase,
)
from streamlog.errors import (
    ConcurrentTransactions,
    Fenced,
    InvalidProducerIdMapping,
    InvalidTxnState,
    OutcomeUnknown,
    StreamlogError,
    TlsHandshakeFailed,
    TransactionAbortable,
    Unauthorized,
    UnknownTopicOrPartition,
    UnsupportedVersion,
)

log = logging.getLogger(__name__)

ENDING_BACKOFF_MS = 2.0
ENDING_TRIES = 8
"""The last transaction's markers are written within some milliseconds: so many tries come with the
first wait, and only then do waits grow."""
LAST_ATTEMPT_S = 1.0
"""A commit that was refused so far is not asked again in its last second, or the last quarter of a
shorter time."""


class TransactionManager:
    """`give_up(why)` fails every batch that is not done; `granted(identity)` renews the core's."""

    def __init__(
        self,
        settings: ProducerSettings,
        server: str,
        *,
        give_up: Callable[[StreamlogError], None],
        granted: Callable[[ProducerIdentity], None],
    ) -> None:
        self._settings = settings
        self._id = settings.transactional_id
        self._server = server
        self._give_up = give_up
        self._granted = granted
        self.state = TransactionPhase.UNINITIALIZED
        self.error: StreamlogError | None = None
        """Why only an abort leads on, or nothing does."""
        self.last_refusal: StreamlogError | None = None
        """Why the last call to the coordinator failed; None once one succeeds."""
        self.identity = NO_IDENTITY
        self.operation: TransactionOperation | None = None
        """The last one; it is kept until its result was taken."""
        self._added: set[TopicPartition] = set()
        self._is_begun = False
        """The coordinator has partitions of the transaction: it has to be ended there."""
        self._must_initialise = False
        """The abort takes InitProducerId: the coordinator may have the transaction or not, and
        refuses the end of one that it does not have."""
        self._asked: TransactionRequest | None = None
        self._retry_at = 0.0
        self._failures = 0
        self._unknown_topics = 0
        self._partitions_max = PARTITIONS_PER_REQUEST

    # -- what the application does

    def check_sending(self) -> None:
        """Errors: InvalidTxnState outside of a transaction; TransactionAbortable; the fatal one."""
        if self.state is TransactionPhase.IN_TRANSACTION:
            return
        self._check_usable()
        if self.state is TransactionPhase.ABORTABLE_ERROR:
            raise outcomes.only_abort(self.error)
        raise outcomes.no_transaction("send()", self.state)

    def initialise(self, waiter: OperationWaiter, now: float) -> TransactionOperation:
        """Asks for id and epoch, which fences older producers of the transactional id.

        Ended at once where that has happened. Errors: InvalidTxnState in a transaction.
        """
        running = self._running(Goal.INITIALIZED)
        if running is not None:
            return running
        self._check_usable()
        if self.state not in (
            TransactionPhase.UNINITIALIZED,
            TransactionPhase.READY,
        ):
            raise outcomes.no_call("init_transactions()", self.state)
        operation = self._begin_operation(Goal.INITIALIZED, waiter)
        if self.state is TransactionPhase.READY:
            operation.end(None)
            return operation
        operation.deadline = now + self._settings.max_block_ms / 1000
        self._transition_to(TransactionPhase.INITIALIZING)
        return operation

    def begin(self) -> None:
        """Errors: InvalidTxnState; TransactionAbortable; the fatal one."""
        self._check_usable()
        if self.state is TransactionPhase.ABORTABLE_ERROR:
            raise outcomes.only_abort(self.error)
        if self.state is not TransactionPhase.READY:
            raise outcomes.no_call("begin_transaction()", self.state)
        # A result that nobody took belongs to the transaction before.
        self.operation = None
        self._transition_to(TransactionPhase.IN_TRANSACTION)

    def commit(self, waiter: OperationWaiter) -> TransactionOperation:
        """Takes no more records; the transaction is committed once all are stored.

        Errors: InvalidTxnState; TransactionAbortable where a record failed; the fatal one.
        """
        running = self._running(Goal.COMMITTED)
        if running is not None:
            return running
        self._check_usable()
        if self.state is TransactionPhase.ABORTABLE_ERROR:
            raise outcomes.only_abort(self.error)
        is_again = self.state is TransactionPhase.COMMIT_UNKNOWN
        if not is_again and self.state is not TransactionPhase.IN_TRANSACTION:
            raise outcomes.no_call("commit_transaction()", self.state)
        operation = self._begin_operation(Goal.COMMITTED, waiter)
        operation.may_have_happened = is_again
        self._transition_to(TransactionPhase.COMMITTING)
        return operation

    def abort(self, waiter: OperationWaiter, now: float) -> TransactionOperation:
        """Gives up all records of the transaction. Errors: InvalidTxnState; the fatal one."""
        running = self._running(Goal.ABORTED)
        if running is not None:
            return running
        self._check_usable()
        if self.state not in OPEN:
            raise outcomes.no_call("abort_transaction()", self.state)
        operation = self._begin_operation(Goal.ABORTED, waiter)
        operation.deadline = now + self._settings.delivery_timeout_ms / 1000
        self._transition_to(TransactionPhase.ABORTING, outcomes.aborted(self.error))
        return operation

    def abort_again(self, waiter: OperationWaiter, now: float) -> TransactionOperation | None:
        """The abort that was asked for and is not confirmed: the one under way, or a new one where
        its time was over. None where there is none. Errors: as of `abort`."""
        operation = self.operation
        if operation is None or operation.goal is not Goal.ABORTED or self.state not in UNCONFIRMED:
            return None
        # What it failed with tells nothing of now.
        operation.is_taken = operation.done
        return self.abort(waiter, now)

    def ending(self, waiter: OperationWaiter, now: float) -> TransactionOperation | None:
        """For the producer's end: aborts what is open; the operation under way, if there is one."""
        if self.state in OPEN:
            return self.abort(waiter, now)
        return None if self.operation is None or self.operation.done else self.operation

    def _check_usable(self) -> None:
        if self.state is TransactionPhase.FATAL_ERROR and self.error is not None:
            raise self.error.with_traceback(None)

    def _running(self, goal: Goal) -> TransactionOperation | None:
        """An operation of this kind whose result nobody has."""
        operation = self.operation
        if operation is None or operation.goal is not goal or operation.is_taken:
            return None
        return operation

    def _begin_operation(self, goal: Goal, waiter: OperationWaiter) -> TransactionOperation:
        self.operation = TransactionOperation(goal, waiter)
        self._retry_at, self._failures = 0.0, 0
        return self.operation

    # -- batches

    def may_send_to(self, partition: TopicPartition) -> bool:
        """The partition is part of the transaction."""
        return partition in self._added

    def batch_failed(self, error: StreamlogError) -> None:
        """A record of the transaction is not stored, or that is not known."""
        if self.state not in SENDING:
            return
        if isinstance(error, Fenced):
            self._fail_for_good(outcomes.fenced(self._id, error))
        else:
            self._fail_transaction(error)

    # -- what the coordinator is asked

    def request(
        self, now: float, active: Iterable[TopicPartition], *, has_incomplete: bool
    ) -> TransactionRequest | None:
        """The call to make now. `active`: partitions that have batches which are not done."""
        if self._asked is not None or now < self._retry_at:
            return None
        state = self.state
        request: TransactionRequest | None = None
        if state is TransactionPhase.INITIALIZING:
            request = self._init_request(NO_IDENTITY, now)
        elif state in SENDING:
            request = self._add_request(active, now)
            if request is None and state is TransactionPhase.COMMITTING and not has_incomplete:
                request = self._end_request(now, is_commit=True)
        elif state is TransactionPhase.ABORTING:
            if self._must_initialise:
                request = self._init_request(self.identity, now)
            else:
                request = self._end_request(now, is_commit=False)
        self._asked = request
        return request

    def _init_request(self, identity: ProducerIdentity, now: float) -> TransactionRequest:
        timeout_ms = self._settings.transaction_timeout_ms
        call = init_transactional_producer(self._id, timeout_ms, identity)
        return TransactionRequest(RequestKind.INIT_PRODUCER_ID, call, self._timeout_s(now))

    def _add_request(
        self, active: Iterable[TopicPartition], now: float
    ) -> TransactionRequest | None:
        wanted = tuple(tp for tp in active if tp not in self._added)[: self._partitions_max]
        if not wanted:
            return None
        call = add_partitions(self._id, self.identity, wanted)
        return TransactionRequest(RequestKind.ADD_PARTITIONS, call, self._timeout_s(now), wanted)

    def _end_request(self, now: float, *, is_commit: bool) -> TransactionRequest | None:
        """None: the coordinator has nothing of the transaction, so that it ends here."""
        if not self._is_begun:
            self._succeeded()
            return None
        if self.operation is not None and self.operation.deadline == NEVER:
            # Not before the records are stored, which has a time limit of its own.
            self.operation.deadline = now + self._settings.delivery_timeout_ms / 1000
        call = end_transaction(self._id, self.identity, is_commit=is_commit)
        return TransactionRequest(RequestKind.END_TRANSACTION, call, self._timeout_s(now))

    def _timeout_s(self, now: float) -> float:
        """Of one attempt: within the operation's time, so that it is answered when that is over."""
        limit_s = self._settings.request_timeout_ms / 1000
        operation = self.operation
        left_s = NEVER if operation is None or operation.done else operation.deadline - now
        return max(0.001, min(limit_s, left_s))

    def wake_at(self, now: float) -> float:
        """When there is something to ask or to give up, if no event comes before."""
        if self._asked is not None:
            return NEVER
        operation = self.operation
        wake = NEVER if operation is None or operation.done else operation.deadline
        return min(wake, self._retry_at) if self._retry_at > now else wake

    def expire(self, now: float) -> None:
        """Ends an operation whose time is over between two attempts."""
        operation = self.operation
        is_over = operation is not None and not operation.done and operation.deadline <= now
        if is_over and self._asked is None:
            self._timed_out()

    # -- answers

    def answered(
        self, request: TransactionRequest, result: ProducerIdentity | Refusals, now: float
    ) -> None:
        if request is not self._asked:
            return
        self._asked = None
        if isinstance(result, ProducerIdentity):
            self._note_success()
            self._set_identity(result)
            self._succeeded()
        elif result and not self._is_too_late(request):
            self._partitions_refused(request, result, now)
        else:
            self._note_success()
            self._unknown_topics = 0
            self._is_begun, self._must_initialise = True, False
            self._added.update(request.partitions)

    def refused(self, request: TransactionRequest, error: StreamlogError, now: float) -> None:
        """The call failed, or its outcome is unknown."""
        if request is not self._asked:
            return
        self._asked = None
        self.last_refusal = error
        operation = self.operation
        if request.kind is RequestKind.ADD_PARTITIONS and not error.has_no_side_effects:
            self._must_initialise = not self._is_begun
        if self._is_too_late(request) and not isinstance(error, Fenced):
            return
        if request.kind is RequestKind.END_TRANSACTION and operation is not None:
            operation.may_have_happened |= not error.has_no_side_effects
        if isinstance(error, Fenced | Unauthorized | UnsupportedVersion):
            self._refused_for_good(request, error)
        elif self._lower_partition_limit(error):
            return
        elif _is_repeatable(error) and not (
            # People have to mend that.
            self.state is TransactionPhase.INITIALIZING and isinstance(error, TlsHandshakeFailed)
        ):
            self._retry_later(error, now)
        elif self.state is TransactionPhase.INITIALIZING:
            self._not_initialised(error)
        elif request.kind is RequestKind.INIT_PRODUCER_ID:
            self._fail_for_good(error)
        elif self.state is TransactionPhase.ABORTING:
            # There is nothing to abort: the next epoch comes with a new start.
            self._must_initialise = True
        else:
            self._must_initialise = isinstance(error, InvalidProducerIdMapping | InvalidTxnState)
            self._fail_transaction(error)

    def _is_too_late(self, request: TransactionRequest) -> bool:
        """The transaction is given up, so that it does not matter which partitions are in it."""
        return request.kind is RequestKind.ADD_PARTITIONS and self.state not in SENDING

    def _partitions_refused(
        self, request: TransactionRequest, refusals: Refusals, now: float
    ) -> None:
        (topic, partition), error = min(
            refusals.items(), key=lambda item: (item[1].is_retryable, item[0])
        )
        self.last_refusal = error
        self._unknown_topics += isinstance(error, UnknownTopicOrPartition)
        if isinstance(error, Fenced):
            self._fail_for_good(outcomes.fenced(self._id, error))
        elif error.is_retryable and self._unknown_topics < UNKNOWN_TOPIC_ATTEMPTS_MAX:
            self._retry_later(error, now)
        else:
            self._fail_transaction(outcomes.not_added(topic, partition, error))

    def _refused_for_good(self, request: TransactionRequest, error: StreamlogError) -> None:
        operation = self.operation
        if self.state is TransactionPhase.INITIALIZING and not isinstance(error, Fenced):
            self._not_initialised(error)
            return
        fatal = outcomes.fenced(self._id, error) if isinstance(error, Fenced) else error
        told = fatal
        is_commit = operation is not None and operation.goal is Goal.COMMITTED
        if is_commit and operation is not None and operation.may_have_happened:
            told = outcomes.commit_unknown_for_good(fatal)
        self._fail_for_good(fatal, told)

    def _lower_partition_limit(self, error: StreamlogError) -> bool:
        limit = partition_limit_of(error)
        if limit is None or limit >= self._partitions_max:
            return False
        self._partitions_max = limit
        return True

    def _note_success(self) -> None:
        self.last_refusal = None
        self._failures = 0

    def _retry_later(self, error: StreamlogError, now: float) -> None:
        self._failures += 1
        failures, first_ms = self._failures, self._settings.retry_backoff_ms
        if isinstance(error, ConcurrentTransactions):
            failures = max(1, failures - ENDING_TRIES)
            first_ms = min(first_ms, ENDING_BACKOFF_MS)
        self._retry_at = now + backoff_s(failures, first_ms, self._settings.retry_backoff_max_ms)
        operation = self.operation
        is_commit = operation is not None and self.state is TransactionPhase.COMMITTING
        if operation is not None and is_commit and not operation.may_have_happened:
            # Its time may end before the answer, and then nobody knows what is known now.
            last_s = min(LAST_ATTEMPT_S, self._settings.delivery_timeout_ms / 4000)
            if self._retry_at > operation.deadline - last_s:
                self._retry_at = NEVER

    def _timed_out(self) -> None:
        """The operation's time is over, and no attempt is under way."""
        operation, last = self.operation, self.last_refusal
        assert operation is not None
        if operation.goal is Goal.INITIALIZED:
            self._not_initialised(outcomes.not_reached(self._server, self._settings, last))
        elif operation.goal is Goal.ABORTED:
            self._fail_transaction(outcomes.abort_unanswered(self._server, self._settings, last))
        elif operation.may_have_happened:
            self._transition_to(TransactionPhase.COMMIT_UNKNOWN)
            operation.end(outcomes.commit_unknown(self._server, self._settings, last))
        else:
            self._fail_transaction(outcomes.commit_unsent(self._server, self._settings, last))

    # -- transitions

    def _set_identity(self, identity: ProducerIdentity) -> None:
        self.identity = identity
        self._granted(identity)

    def _succeeded(self) -> None:
        """What the state strives for is reached."""
        self._added.clear()
        self._is_begun = self._must_initialise = False
        self._retry_at, self._failures, self._unknown_topics = 0.0, 0, 0
        self.error = None
        self._transition_to(TransactionPhase.READY)
        self._end_operation(None)

    def _not_initialised(self, error: StreamlogError) -> None:
        self._transition_to(TransactionPhase.UNINITIALIZED)
        self._end_operation(error)

    def _fail_transaction(self, error: StreamlogError) -> None:
        """The transaction can only be aborted; a commit or abort under way ends with that."""
        self.error = error
        goal = None if self.operation is None else self.operation.goal
        told = error if goal is Goal.ABORTED else outcomes.only_abort(error)
        self._transition_to(TransactionPhase.ABORTABLE_ERROR, outcomes.given_up(error))
        self._end_operation(told)

    def _fail_for_good(self, error: StreamlogError, told: StreamlogError | None = None) -> None:
        if self.state is TransactionPhase.FATAL_ERROR:
            return
        log.warning("the transactional producer has ended: %s", error)
        self.error = error
        self._asked = None
        self._transition_to(TransactionPhase.FATAL_ERROR, error)
        self._end_operation(told or error)

    def abandon(self, why: StreamlogError) -> None:
        """The producer has ended: nothing is asked any more. Its batches are given up elsewhere."""
        self._asked = None
        if self.state is TransactionPhase.FATAL_ERROR:
            return
        self.error = why
        self.state = TransactionPhase.FATAL_ERROR
        operation = self.operation
        if operation is not None and not operation.done:
            is_commit = operation.goal is Goal.COMMITTED and operation.deadline != NEVER
            operation.end(outcomes.commit_unknown_for_good(why) if is_commit else why)

    def after_fork(self, why: StreamlogError) -> None:
        """In the child process. The operation is the parent's, and so are its waiter's locks."""
        self.operation = None
        self.abandon(why)

    def _end_operation(self, error: StreamlogError | None) -> None:
        if self.operation is not None and not self.operation.done:
            self.operation.end(error)

    def _transition_to(self, state: TransactionPhase, why: StreamlogError | None = None) -> None:
        """`why`: what the batches that are given up fail with."""
        if state not in TRANSITIONS[self.state]:
            raise AssertionError(f"{self.state} does not lead to {state}")
        self.state = state
        if state in WITHOUT_BATCHES:
            assert why is not None
            self._give_up(why)


def _is_repeatable(error: StreamlogError) -> bool:
    """Every call to the coordinator is idempotent, so that an unknown outcome is asked again."""
    if isinstance(error, TransactionAbortable):
        return False
    return error.is_retryable or isinstance(error, OutcomeUnknown)
