"""The errors of transactions, in the words that the application gets: what happened, what to do."""

from __future__ import annotations

from streamlog.client.settings import ProducerSettings
from streamlog.client.transactions.state import TransactionPhase
from streamlog.errors import (
    Fenced,
    InvalidTxnState,
    OutcomeUnknown,
    StreamlogError,
    TransactionAbortable,
    Unavailable,
)

_WHAT_TO_DO = {
    TransactionPhase.UNINITIALIZED: "call begin_transaction() first",
    TransactionPhase.INITIALIZING: "wait for init_transactions()",
    TransactionPhase.READY: "call begin_transaction() first",
    TransactionPhase.IN_TRANSACTION: "commit_transaction() or abort_transaction() ends it first",
    TransactionPhase.COMMITTING: "wait for commit_transaction()",
    TransactionPhase.COMMIT_UNKNOWN: "call commit_transaction() again, which asks once more",
    TransactionPhase.ABORTING: "wait for abort_transaction()",
    TransactionPhase.ABORTABLE_ERROR: "call abort_transaction()",
}


def without_transactional_id(call: str) -> InvalidTxnState:
    return InvalidTxnState(
        f"{call} needs a transactional producer: give Producer(…, transactional_id=…), a name that "
        "is this application's alone and that stays the same when it is started again"
    )


def no_call(call: str, state: TransactionPhase) -> InvalidTxnState:
    return InvalidTxnState(f"{call} while the producer is {state.value}; {_WHAT_TO_DO[state]}")


def no_transaction(call: str, state: TransactionPhase) -> InvalidTxnState:
    """For what is done only inside a transaction."""
    return InvalidTxnState(
        f"{call} outside of a transaction: the producer is {state.value}; {_WHAT_TO_DO[state]}"
    )


def only_abort(cause: StreamlogError | None) -> TransactionAbortable:
    error = TransactionAbortable(
        f"the transaction cannot be committed, and nothing of it will be visible: {cause}; call "
        "abort_transaction(), then begin anew"
    )
    error.__cause__ = cause
    return error


def given_up(cause: StreamlogError) -> TransactionAbortable:
    """For records of a transaction in which another one failed."""
    return TransactionAbortable(f"the record's transaction can only be aborted: {cause}")


def aborted(cause: StreamlogError | None) -> TransactionAbortable:
    """For records that were not done when the application aborted."""
    why = "" if cause is None else f": {cause}"
    return TransactionAbortable(f"the record's transaction was aborted{why}")


def not_added(topic: str, partition: int, cause: StreamlogError) -> StreamlogError:
    return type(cause)(
        f"{topic}-{partition} cannot become part of the transaction: {cause}", **cause.fields
    )


def fenced(transactional_id: str, cause: Fenced) -> Fenced:
    error = type(cause)(
        f"this producer may not write as {transactional_id!r} any more: another producer has the "
        "transactional id, its transaction was aborted by an operator, or was open for longer than "
        "transaction_timeout_ms; close it, and open another where this one should go on",
        **cause.fields,
    )
    error.__cause__ = cause
    return error


def not_reached(
    server: str, settings: ProducerSettings, last: StreamlogError | None
) -> StreamlogError:
    kind = type(last) if last is not None and last.is_retryable else Unavailable
    return kind(
        f"{server} gave no producer id for {settings.transactional_id!r} within max_block_ms = "
        f"{settings.max_block_ms}: {last}; begin_transaction() asks again"
    )


def commit_unsent(
    server: str, settings: ProducerSettings, last: StreamlogError | None
) -> StreamlogError:
    return Unavailable(
        f"{server} took no commit within delivery_timeout_ms = {settings.delivery_timeout_ms}: "
        f"{last}"
    )


def commit_unknown(
    server: str, settings: ProducerSettings, last: StreamlogError | None
) -> OutcomeUnknown:
    return OutcomeUnknown(
        f"{server} did not answer the commit within delivery_timeout_ms = "
        f"{settings.delivery_timeout_ms}, so the transaction is committed as a whole or will be "
        f"aborted as a whole: {last}. Call commit_transaction() again, which asks once more; or "
        "close the producer, open another with the same transactional id, whose init_transactions()"
        " ends what is open, and read back (read_committed) what is there"
    )


def commit_unknown_for_good(cause: StreamlogError) -> OutcomeUnknown:
    error = OutcomeUnknown(
        "the transaction is committed as a whole or will be aborted as a whole, because no answer "
        f"to the commit came before the producer ended: {cause}. Open another producer with the "
        "same transactional id, whose init_transactions() ends what is open, and read back "
        "(read_committed) what is there"
    )
    error.__cause__ = cause
    return error


def abort_unanswered(
    server: str, settings: ProducerSettings, last: StreamlogError | None
) -> StreamlogError:
    return Unavailable(
        f"{server} did not confirm the abort within delivery_timeout_ms = "
        f"{settings.delivery_timeout_ms}: {last}. Nothing of the transaction becomes visible: call "
        "abort_transaction() again, as the next transaction() does, or close the producer; the "
        "coordinator aborts by itself after transaction_timeout_ms"
    )


def left_open(failure: BaseException) -> str:
    if isinstance(failure, Fenced):
        return f"the transaction is aborted already ({failure}); nothing of it becomes visible"
    return (
        f"the transaction was not aborted ({failure}); nothing of it becomes visible, and the "
        "coordinator aborts it after transaction_timeout_ms"
    )


def still_under_way(call: str, timeout_s: float | None) -> TimeoutError:
    return TimeoutError(
        f"{call}: no answer after {timeout_s} s; it goes on: call it again to wait for its end"
    )
