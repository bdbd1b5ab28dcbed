"""What services know of the transaction coordinator: its calls, and the values that they take.

Source: KIP-98, KIP-360, KIP-664, KIP-890; Kafka's TransactionCoordinator.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple, Protocol

from streamlog.errors import StreamlogError
from streamlog.model.partition import TopicPartition

TRANSACTION_STATE_TOPIC = "__transaction_state"


class ProducerIdAndEpoch(NamedTuple):
    """Who writes under a transactional id: the newest pair is the only one that may."""

    producer_id: int
    producer_epoch: int


class TransactionState(IntEnum):
    """Kafka's numbers, as they are stored."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7


@dataclass(frozen=True, slots=True)
class TransactionDescription:
    """A transactional id at one moment. `start_ms` -1: none was begun since its initialisation.

    `partitions`: those of the open transaction, or of the one whose markers are being written.
    """

    transactional_id: str
    state: TransactionState
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    start_ms: int
    partitions: tuple[TopicPartition, ...]
    application_epoch: int = -1
    """The application's number of its newest committed transaction; -1: it named none."""


@dataclass(frozen=True, slots=True)
class TransactionFilter:
    """Which transactions a list has; an empty field stands for any.

    `open_longer_than_ms` -1: any; else those that are open, or being ended, for longer.
    `id_pattern`: a regular expression for the whole id (`coordinator/patterns.py`).
    """

    states: frozenset[TransactionState] = frozenset()
    producer_ids: frozenset[int] = frozenset()
    open_longer_than_ms: int = -1
    id_pattern: str = ""


class TransactionCoordinator(Protocol):
    """Every call answers when what it decided, or saw, is durable in the coordinator's log.

    Errors of all calls that name a transactional id: NotCoordinator, CoordinatorLoadInProgress,
    CoordinatorNotAvailable, Invalid (an empty id). A caller that is cancelled leaves the call under
    way: the next one finds what it did.
    """

    def partition_of(self, transactional_id: str) -> TopicPartition:
        """The partition of `__transaction_state` that has the id; its leader coordinates it."""
        ...

    async def ensure_topic(self) -> None:
        """Creates `__transaction_state` where there is none. Errors: CoordinatorNotAvailable."""
        ...

    async def init_producer_id(
        self,
        transactional_id: str,
        timeout_ms: int,
        expected: ProducerIdAndEpoch | None = None,
    ) -> ProducerIdAndEpoch:
        """Fences older instances, aborts what they left open, and gives the newest pair.

        `expected`: the pair that the caller has (KIP-360): it gets the next epoch if it still is
        the newest, and TransactionalIdFenced otherwise.
        Errors: InvalidTransactionTimeout, ConcurrentTransactions (markers of the last transaction
        are being written: ask again), TransactionalIdFenced, and those of taking a producer id.
        """
        ...

    async def add_partitions(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partitions: Sequence[TopicPartition],
    ) -> None:
        """Makes the partitions part of the open transaction, or begins one.

        Waits for the markers of the last transaction, but not for long.
        Errors: InvalidProducerIdMapping, TransactionalIdFenced, ConcurrentTransactions (they are
        still being written).
        """
        ...

    async def verify_partitions(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partitions: Sequence[TopicPartition],
    ) -> Mapping[TopicPartition, StreamlogError]:
        """Those that are not part of the open transaction → TransactionAbortable (KIP-890).

        Errors of the whole call: as of `add_partitions`.
        """
        ...

    async def end(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        *,
        is_commit: bool,
        bumps_epoch: bool = False,
        application_epoch: int | None = None,
    ) -> ProducerIdAndEpoch:
        """Decides the transaction; markers follow. The pair of the producer's next transaction.

        `application_epoch`: kept with the decision to commit. It rises: InvalidTxnState where the
        open transaction's is not above the last one.

        `bumps_epoch`: the next transaction has the next epoch (KIP-890, version 2); a repeated call
        with the epoch before gets the same answer. Errors: InvalidProducerIdMapping,
        TransactionalIdFenced, InvalidTxnState (nothing is open, or it was decided otherwise),
        ConcurrentTransactions (markers of the same decision are being written, without
        `bumps_epoch`: ask again).
        """
        ...

    async def describe(self, transactional_id: str) -> TransactionDescription:
        """Errors: TransactionalIdNotFound."""
        ...

    async def transactions(self, wanted: TransactionFilter) -> Sequence[TransactionDescription]:
        """Of all partitions that this node coordinates, by id. Errors: Invalid (the pattern)."""
        ...

    async def abort(self, transactional_id: str) -> TransactionDescription:
        """Fences whoever has the id, and aborts the open transaction; describes what was found.

        Errors: TransactionalIdNotFound, ConcurrentTransactions.
        """
        ...
