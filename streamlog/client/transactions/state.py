"""The states of a transactional producer, and which leads to which. Source: Kafka's
TransactionManager, with a state of its own for a commit whose outcome is not known.

    from             to               when
    UNINITIALIZED    INITIALIZING     init_transactions(), or the first begin_transaction()
    INITIALIZING     READY            the coordinator gave an id and an epoch
    INITIALIZING     UNINITIALIZED    it could not be asked, or refused: nothing has happened
    READY            IN_TRANSACTION   begin_transaction()
    IN_TRANSACTION   COMMITTING       commit_transaction(): no record is taken any more
    COMMITTING       READY            the commit is decided
    COMMITTING       COMMIT_UNKNOWN   no answer in time, and an attempt may have decided it
    COMMIT_UNKNOWN   COMMITTING       commit_transaction() again: the decision is idempotent
    IN_TRANSACTION,  ABORTABLE_ERROR  a record failed, or the coordinator refused: only an abort
    COMMITTING                        leads on
    IN_TRANSACTION,  ABORTING         abort_transaction()
    ABORTABLE_ERROR
    ABORTING         READY            the abort is decided, and the next epoch is known
    ABORTING         ABORTABLE_ERROR  no answer in time: the abort may be tried again
    each of them     FATAL_ERROR      fenced, not allowed, closed: for good
"""

from __future__ import annotations

from enum import Enum


class TransactionPhase(Enum):
    UNINITIALIZED = "not initialised"
    INITIALIZING = "being initialised"
    READY = "ready, without a transaction"
    IN_TRANSACTION = "in a transaction"
    COMMITTING = "committing"
    COMMIT_UNKNOWN = "committed or not, which is not known"
    ABORTING = "aborting"
    ABORTABLE_ERROR = "in a transaction that can only be aborted"
    FATAL_ERROR = "ended by an error"


_S = TransactionPhase
TRANSITIONS: dict[TransactionPhase, frozenset[TransactionPhase]] = {
    _S.UNINITIALIZED: frozenset({_S.INITIALIZING, _S.FATAL_ERROR}),
    _S.INITIALIZING: frozenset({_S.READY, _S.UNINITIALIZED, _S.FATAL_ERROR}),
    _S.READY: frozenset({_S.IN_TRANSACTION, _S.FATAL_ERROR}),
    _S.IN_TRANSACTION: frozenset({_S.COMMITTING, _S.ABORTING, _S.ABORTABLE_ERROR, _S.FATAL_ERROR}),
    _S.COMMITTING: frozenset({_S.READY, _S.COMMIT_UNKNOWN, _S.ABORTABLE_ERROR, _S.FATAL_ERROR}),
    _S.COMMIT_UNKNOWN: frozenset({_S.COMMITTING, _S.FATAL_ERROR}),
    _S.ABORTABLE_ERROR: frozenset({_S.ABORTING, _S.FATAL_ERROR}),
    _S.ABORTING: frozenset({_S.READY, _S.ABORTABLE_ERROR, _S.FATAL_ERROR}),
    _S.FATAL_ERROR: frozenset(),
}
WITHOUT_BATCHES = frozenset({_S.ABORTABLE_ERROR, _S.ABORTING, _S.FATAL_ERROR})
"""A producer that comes to one of these gives up the batches that are not done."""
OPEN = frozenset({_S.IN_TRANSACTION, _S.ABORTABLE_ERROR})
"""A transaction is open, and nobody is ending it."""
UNCONFIRMED = frozenset({_S.ABORTING, _S.ABORTABLE_ERROR})
"""Where an abort leaves the producer until the coordinator has confirmed it."""
SENDING = frozenset({_S.IN_TRANSACTION, _S.COMMITTING})
"""Batches of the transaction are sent."""
NEW = frozenset({_S.UNINITIALIZED, _S.INITIALIZING})
"""The producer has no id yet."""
