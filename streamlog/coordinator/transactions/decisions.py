"""What calls other than the end of a transaction make of a transactional id. Pure.

A function takes the id's state and returns a `Decision`: the state that replaces it, and the
answer. Source: Kafka's TransactionCoordinator; KIP-360.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from streamlog.coordinator.api import (
    ProducerIdAndEpoch,
    TransactionDescription,
    TransactionState,
)
from streamlog.coordinator.transactions.state import (
    EPOCH_LAST,
    IDLE,
    NONE,
    Transaction,
    transition_to,
)
from streamlog.errors import (
    ConcurrentTransactions,
    InvalidProducerIdMapping,
    StreamlogError,
    TransactionAbortable,
    TransactionalIdFenced,
    TransactionalIdNotFound,
)
from streamlog.model.partition import TopicPartition

T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Decision(Generic[T_co]):
    """`answer`: what the caller gets, or the error that it gets. `after` None: nothing changes."""

    answer: T_co | StreamlogError
    after: Transaction | None = None


class NeedsProducerId(Exception):
    """The decision needs a new producer id: decide again with one."""


@dataclass(frozen=True, slots=True)
class Init:
    """A call of `init_producer_id`."""

    transactional_id: str
    timeout_ms: int
    expected: ProducerIdAndEpoch | None
    fresh_id: int | None
    """A producer id that nobody has yet; the call may do without."""

    def decide(self, known: Transaction | None, now_ms: int) -> Decision[ProducerIdAndEpoch]:
        """Errors: NeedsProducerId."""
        if known is None:
            first = Transaction(self.transactional_id, self._fresh(), 0, self.timeout_ms, now_ms)
            return Decision(first.pair, first)
        if not self._knows_the_producer(known):
            return Decision(fenced(known))
        if known.is_prepared:
            return Decision(still_ending(known))
        if self._is_repeated(known):
            return Decision(known.pair)
        if self.expected is not None and self.expected != known.pair:
            return Decision(fenced(known))
        if known.state is TransactionState.ONGOING:
            # Nobody gets this epoch: the caller asks again, and gets the one behind it.
            return Decision(still_ending(known), fence(known, now_ms))
        after = self._next(known, now_ms)
        return Decision(after.pair, after)

    def _next(self, known: Transaction, now_ms: int) -> Transaction:
        last = NONE if self.expected is None else known.producer_epoch
        producer_id, epoch = known.producer_id, known.producer_epoch + 1
        if known.is_exhausted:
            producer_id, epoch = self._fresh(), 0
        return transition_to(
            known,
            TransactionState.EMPTY,
            now_ms,
            producer_id=producer_id,
            producer_epoch=epoch,
            last_producer_epoch=last,
            timeout_ms=self.timeout_ms,
            start_ms=NONE,
        )

    def _fresh(self) -> int:
        if self.fresh_id is None:
            raise NeedsProducerId
        return self.fresh_id

    def _knows_the_producer(self, known: Transaction) -> bool:
        """Whether the caller names the id's producer, or the one whose epochs were used up."""
        expected = self.expected
        if expected is None or expected.producer_id == known.producer_id:
            return True
        is_replaced = expected.producer_id == known.previous_producer_id
        return is_replaced and expected.producer_epoch >= EPOCH_LAST

    def _is_repeated(self, known: Transaction) -> bool:
        """Whether the caller's last call was done, and its answer lost."""
        expected = self.expected
        return (
            expected is not None
            and known.last_producer_epoch != NONE
            and expected.producer_epoch == known.last_producer_epoch
            and known.producer_epoch <= EPOCH_LAST
        )


def fence(known: Transaction, now_ms: int) -> Transaction:
    """The open transaction's abort under the next epoch: its producer can write no more.

    A producer of version 2 that asks for the abort gets that epoch, unless a newer instance came.
    """
    return transition_to(
        known,
        TransactionState.PREPARE_ABORT,
        now_ms,
        producer_epoch=known.producer_epoch + 1,
        last_producer_epoch=NONE,
        client_version=2,
    )


def add_partitions(
    known: Transaction | None,
    producer: ProducerIdAndEpoch,
    partitions: Sequence[TopicPartition],
    now_ms: int,
) -> Decision[None]:
    refusal = _refusal(known, producer)
    if refusal is not None:
        return Decision(refusal)
    assert known is not None
    is_open = known.state is TransactionState.ONGOING
    if is_open and known.partitions.issuperset(partitions):
        return Decision(None)
    after = transition_to(
        known,
        TransactionState.ONGOING,
        now_ms,
        partitions=known.partitions.union(partitions),
        start_ms=known.start_ms if is_open else now_ms,
    )
    return Decision(None, after)


def verify_partitions(
    known: Transaction | None,
    producer: ProducerIdAndEpoch,
    partitions: Sequence[TopicPartition],
) -> Decision[Mapping[TopicPartition, StreamlogError]]:
    refusal = _refusal(known, producer)
    if refusal is not None:
        return Decision(refusal)
    assert known is not None
    missing = [partition for partition in partitions if partition not in known.partitions]
    return Decision({partition: _not_part(known, partition) for partition in missing})


def abort(
    known: Transaction | None, transactional_id: str, fresh_id: int | None, now_ms: int
) -> Decision[TransactionDescription]:
    """As an operator's call: whoever has the id is fenced. Errors: NeedsProducerId."""
    if known is None:
        return Decision(unknown_id(transactional_id))
    if known.is_prepared:
        return Decision(still_ending(known))
    if known.state is TransactionState.ONGOING:
        return Decision(known.described(), fence(known, now_ms))
    fencing = Init(transactional_id, known.timeout_ms, None, fresh_id).decide(known, now_ms)
    return Decision(known.described(), fencing.after)


def describe(known: Transaction | None, transactional_id: str) -> Decision[TransactionDescription]:
    return Decision(unknown_id(transactional_id) if known is None else known.described())


def is_expired(known: Transaction, expiration_ms: int, now_ms: int) -> bool:
    return known.state in IDLE and known.updated_ms <= now_ms - expiration_ms


def _refusal(known: Transaction | None, producer: ProducerIdAndEpoch) -> StreamlogError | None:
    """Why the producer may not go on with the transaction."""
    if known is None or known.producer_id != producer.producer_id:
        return other_producer(producer)
    if known.producer_epoch != producer.producer_epoch or known.producer_epoch > EPOCH_LAST:
        return fenced(known)
    return still_ending(known) if known.is_prepared else None


def shown(transactional_id: str) -> str:
    """As a message has it: an id may be as long as 32 KiB."""
    cut = transactional_id if len(transactional_id) <= 80 else transactional_id[:80] + "…"
    return repr(cut)


def fenced(known: Transaction) -> TransactionalIdFenced:
    return TransactionalIdFenced(
        f"a newer instance has the transactional id {shown(known.transactional_id)}, or its "
        "transaction took too long and was aborted: stop this one",
        producer_id=known.producer_id,
        expected=known.producer_epoch,
    )


def still_ending(known: Transaction) -> ConcurrentTransactions:
    return ConcurrentTransactions(
        f"the last transaction of {shown(known.transactional_id)} is still being ended; retry with "
        "back-off"
    )


def other_producer(producer: ProducerIdAndEpoch) -> InvalidProducerIdMapping:
    return InvalidProducerIdMapping(
        f"the transactional id does not belong to producer id {producer.producer_id}, or was "
        "forgotten because it was unused for long: initialise the producer again"
    )


def unknown_id(transactional_id: str) -> TransactionalIdNotFound:
    return TransactionalIdNotFound(
        f"no transaction is known under {shown(transactional_id)}",
        transactional_id=transactional_id[:1000],
    )


def _not_part(known: Transaction, partition: TopicPartition) -> TransactionAbortable:
    return TransactionAbortable(
        f"{partition} is not part of the open transaction of {shown(known.transactional_id)}: "
        "abort it, then begin anew"
    )
