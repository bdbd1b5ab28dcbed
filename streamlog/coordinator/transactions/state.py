"""What the coordinator knows of a transactional id, and the table of its transitions.

A state is a value: a call makes another one of it, and a record holds all of it. So whoever replays
records comes to the same state, whichever records a compaction has left.

Source: Kafka's TransactionState and TransactionMetadata.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from streamlog.coordinator.api import (
    ProducerIdAndEpoch,
    TransactionDescription,
    TransactionState,
)
from streamlog.errors import Internal
from streamlog.model.partition import TopicPartition

NONE = -1
EPOCH_LAST = (1 << 15) - 2
"""The last epoch that a producer gets. One more is left, to fence it."""

_EMPTY, _ONGOING = TransactionState.EMPTY, TransactionState.ONGOING
COMPLETED = frozenset({TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT})
PREPARED = frozenset({TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT})
"""The transaction is decided, and markers are being written."""
IDLE = COMPLETED | {_EMPTY}
"""No transaction is open: the id may be forgotten, or begin one."""

BEFORE = {
    _EMPTY: IDLE,
    _ONGOING: IDLE | {_ONGOING},
    TransactionState.PREPARE_COMMIT: frozenset({_ONGOING}),
    # A client of version 2 ends what it cannot know to be open.
    TransactionState.PREPARE_ABORT: IDLE | {_ONGOING},
    TransactionState.COMPLETE_COMMIT: frozenset({TransactionState.PREPARE_COMMIT}),
    TransactionState.COMPLETE_ABORT: frozenset({TransactionState.PREPARE_ABORT}),
}
"""State → those that it may follow. Fencing is one transition here, and Dead is a tombstone, so
Kafka's PrepareEpochFence and Dead are never stored."""


@dataclass(frozen=True, slots=True)
class Transaction:
    """One transactional id. -1 (NONE) where there is no producer, epoch or time."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    updated_ms: int
    state: TransactionState = TransactionState.EMPTY
    partitions: frozenset[TopicPartition] = frozenset()
    """Of the open transaction, or of the one that is being ended."""
    start_ms: int = NONE
    last_producer_epoch: int = NONE
    """The epoch that the same instance had before: it may ask again with it (KIP-360)."""
    previous_producer_id: int = NONE
    """The producer id that the last transition replaced."""
    next_producer_id: int = NONE
    """Takes over when the markers are written, because epochs of this one are used up."""
    client_version: int = 0
    """The transaction version of the client's last call: 2 bumps the epoch with each end."""
    application_epoch: int = NONE
    """The application's own number of the newest transaction that was decided to be committed."""

    @property
    def pair(self) -> ProducerIdAndEpoch:
        return ProducerIdAndEpoch(self.producer_id, self.producer_epoch)

    @property
    def next_pair(self) -> ProducerIdAndEpoch:
        """That of the producer's next transaction."""
        if self.next_producer_id != NONE:
            return ProducerIdAndEpoch(self.next_producer_id, 0)
        return self.pair

    @property
    def is_exhausted(self) -> bool:
        return self.producer_epoch >= EPOCH_LAST

    @property
    def is_prepared(self) -> bool:
        return self.state in PREPARED

    def described(self) -> TransactionDescription:
        return TransactionDescription(
            self.transactional_id,
            self.state,
            self.producer_id,
            self.producer_epoch,
            self.timeout_ms,
            self.start_ms,
            tuple(sorted(self.partitions)),
            self.application_epoch,
        )


def transition_to(
    before: Transaction, state: TransactionState, now_ms: int, **changes: Any
) -> Transaction:
    """The next state; a replaced producer id is remembered. Errors: Internal, outside the table."""
    changes.setdefault("producer_id", before.producer_id)
    is_rotated = changes["producer_id"] != before.producer_id
    after = replace(
        before,
        state=state,
        previous_producer_id=before.producer_id if is_rotated else NONE,
        updated_ms=max(now_ms, before.updated_ms),
        **changes,
    )
    if before.state not in BEFORE[state] or not 0 <= after.producer_epoch <= EPOCH_LAST + 1:
        raise Internal(f"a transactional id went from {before} to {after}")
    return after
