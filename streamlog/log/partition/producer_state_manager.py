"""The idempotent producers of one partition, the last batches of each, and their transactions.

1. `check` compares a batch with its producer's remembered batches and changes nothing, but notes,
   where room is needed, which producers appended at a time that the clock has not reached.
2. `account` notes a batch that has been sequenced; it is called in offset order, at append and
   again when attributes are replayed, so that both come to the same state.
3. State advances at sequencing and is provisional until the data is durable: a log that cannot make
   a batch durable is given up as a whole, with this state.
4. Producers are kept in the order of their last appends, so that those that make room at the bound
   come first and need no search. The order of their times is another where the clock was set.
5. Each producer has one immutable entry: a snapshot copies references, and appends that follow do
   not change it while it is written.
6. A producer in a transaction is neither expired nor forgotten for room. The marker that ends it
   may come long after its batches, and must find where the transaction began.

Source: KIP-98, KIP-890, Kafka's ProducerStateManager. Kafka remembers 5 batches of a producer, this
program 32. Kafka does not bound the number of producers, except by expiry
(`producer.id.expiration.ms`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice

from streamlog.codec.batch import CONTROL, NO_SEQUENCE, SEQUENCE_MAX, TRANSACTIONAL, BatchHeader
from streamlog.codec.control import ControlType
from streamlog.errors import (
    CoordinatorFenced,
    InvalidTxnState,
    OutOfOrderSequence,
    ProducerFenced,
    QuotaExceeded,
)
from streamlog.format.kafka_files.transaction_index import AbortedTxn
from streamlog.log.api.abstract_log import TransactionMarker
from streamlog.log.partition.batch_metadata import TRANSACTION_BITS, LogBatchMetadata
from streamlog.log.partition.producer_state_entry import (
    PRODUCER_BATCH,
    ProducerBatch,
    ProducerStateEntry,
)
from streamlog.log.partition.transactions.unstable_offsets import UnstableOffsets
from streamlog.log.partition.transactions.verification import Verifications

_pack_batch = PRODUCER_BATCH.pack

NO_PRODUCER_ID = -1
NO_ROOM_RETRY_MS = 10_000
FORGOTTEN_AT_ONCE = 100
"""At the bound a hundredth of the producers is forgotten at once: finding the first entry of a dict
means a scan over the slots of those deleted before."""


@dataclass(frozen=True, slots=True)
class ProducerLimits:
    """How long and how many producers and batches are remembered.

    `idle_ms_min`: a producer that appended more recently is not forgotten to make room for another.
    """

    expiration_ms: int
    batches_remembered: int = 32
    ids_max: int = 1 << 62
    idle_ms_min: int = 0


class ProducerStateManager:
    """By producer id. An entry unused for `expiration_ms` counts as unknown."""

    def __init__(self, limits: ProducerLimits) -> None:
        self._limits = limits
        self._idle_ms_min = min(limits.idle_ms_min, limits.expiration_ms)
        self._packed_bytes_max = limits.batches_remembered * PRODUCER_BATCH.size
        self._producers: dict[int, ProducerStateEntry] = {}
        self._in_transaction: dict[int, ProducerStateEntry] = {}
        """Those with an open transaction, in the order in which the transactions began."""
        self._seen_ahead: dict[int, tuple[int, int]] = {}
        """Of producers that appended later than now: the time of that append, and what the clock
        said when room was needed first."""
        self.unstable = UnstableOffsets()
        self._verifications = Verifications()
        self._on_count: Callable[[int], None] = _uncounted

    def __len__(self) -> int:
        return len(self._producers) + len(self._in_transaction)

    def count_by(self, on_count: Callable[[int], None]) -> None:
        """Calls `on_count` with the number of producers, then with each change of it."""
        self._on_count = on_count
        on_count(len(self))

    def check(self, header: BatchHeader, now_ms: int) -> ProducerBatch | None:
        """The original, where the batch is a duplicate of a remembered one; None where it is new.

        Errors: ProducerFenced, OutOfOrderSequence, InvalidTxnState, QuotaExceeded (a new producer,
        and no room).
        """
        producer = self._producers.get(header.producer_id)
        # The next batch of a producer without transactions: nearly all are.
        if (
            producer is not None
            and not header.attributes & TRANSACTIONAL
            and header.producer_epoch == producer.producer_epoch
            and header.base_sequence == (producer.last_sequence + 1) & SEQUENCE_MAX
        ):
            return None
        producer = self._known(header.producer_id, now_ms)
        if producer is None:
            if header.attributes & TRANSACTIONAL:
                self._check_transaction(header, None)
            if header.producer_id not in self._producers:
                self._check_room(header.producer_id, now_ms)
            return None
        if header.producer_epoch < producer.producer_epoch:
            raise _fenced(producer, header.producer_epoch, "the batch")
        original = _original(producer, header)
        if original is None and (
            header.attributes & TRANSACTIONAL or producer.txn_first_offset >= 0
        ):
            self._check_transaction(header, producer)
        return original

    def check_attach(self, producer_id: int, producer_epoch: int, now_ms: int) -> None:
        """Whether staged batches of the producer's transaction may come in.

        Errors: ProducerFenced, InvalidTxnState, QuotaExceeded.
        """
        producer = self._known(producer_id, now_ms)
        if producer is not None and producer_epoch < producer.producer_epoch:
            raise _fenced(producer, producer_epoch, "the attach")
        self._check_verified(producer_id, producer_epoch, producer)
        if producer is None and producer_id not in self._producers:
            self._check_room(producer_id, now_ms)

    def check_marker(self, marker: TransactionMarker, now_ms: int) -> None:
        """Errors: ProducerFenced, CoordinatorFenced."""
        producer = self._known(marker.producer_id, now_ms)
        if producer is None:
            return
        if marker.producer_epoch < producer.producer_epoch:
            raise _fenced(producer, marker.producer_epoch, "the marker")
        if marker.coordinator_epoch < producer.coordinator_epoch:
            raise CoordinatorFenced(
                f"the marker for producer {marker.producer_id} has coordinator epoch "
                f"{marker.coordinator_epoch}, and one of epoch {producer.coordinator_epoch} came "
                "before: a newer coordinator took over; stop this one",
                expected=producer.coordinator_epoch,
                actual=marker.coordinator_epoch,
            )

    def needs_verification(self, producer_id: int, producer_epoch: int, now_ms: int) -> bool:
        """As AbstractLog.needs_verification. A fenced producer needs none: it is refused anyway."""
        producer = self._known(producer_id, now_ms)
        if producer is not None and (
            producer_epoch < producer.producer_epoch
            or (producer.txn_first_offset >= 0 and producer_epoch == producer.producer_epoch)
        ):
            return False
        return not self._verifications.is_verified(producer_id, producer_epoch)

    @property
    def verification_guard(self) -> int:
        """As AbstractLog.verification_guard."""
        return self._verifications.guard

    def verified(self, producer_id: int, producer_epoch: int, guard: int) -> None:
        """As AbstractLog.verified."""
        self._verifications.verified(producer_id, producer_epoch, guard)

    def _known(self, producer_id: int, now_ms: int) -> ProducerStateEntry | None:
        """The producer's entry, unless its time has expired."""
        producer = self._producers.get(producer_id)
        if producer is None:
            return self._in_transaction.get(producer_id)
        return None if self._is_expired(producer, now_ms) else producer

    def _check_transaction(self, header: BatchHeader, producer: ProducerStateEntry | None) -> None:
        """Whether the batch may come into the open transaction, or begin one.

        Errors: InvalidTxnState.
        """
        if not header.attributes & TRANSACTIONAL:
            raise InvalidTxnState(
                f"producer {header.producer_id} sent a batch without the transactional flag inside "
                "its open transaction: end the transaction first",
                producer_id=header.producer_id,
            )
        self._check_verified(header.producer_id, header.producer_epoch, producer)

    def _check_verified(
        self, producer_id: int, producer_epoch: int, producer: ProducerStateEntry | None
    ) -> None:
        """Errors: InvalidTxnState."""
        is_open = producer is not None and producer.txn_first_offset >= 0
        if is_open and producer is not None and producer.producer_epoch == producer_epoch:
            return
        if not self._verifications.is_verified(producer_id, producer_epoch):
            raise InvalidTxnState(
                f"producer {producer_id} (epoch {producer_epoch}) has no open transaction here, "
                "and its coordinator was not asked for one: add the partition to the transaction "
                "(AddPartitionsToTxn), or abort it and begin anew",
                producer_id=producer_id,
            )

    def _check_room(self, producer_id: int, now_ms: int) -> None:
        limits = self._limits
        if len(self) < limits.ids_max:
            return
        self._note_ahead(now_ms)
        oldest = next(iter(self._producers.values()), None)
        if oldest is None or now_ms - self._silent_since_ms(oldest, now_ms) < self._idle_ms_min:
            raise QuotaExceeded(
                f"{len(self)} producers appended to the partition, all of them within "
                f"{self._idle_ms_min} ms or in an open transaction; there is no room for producer "
                f"{producer_id} (log.producer_ids_max): share producers, or try again later",
                retry_after_ms=NO_ROOM_RETRY_MS,
            )

    def _note_ahead(self, now_ms: int) -> None:
        """The oldest producers that appended later than now make room as if they had appended now.

        Their times stay. Where the clock is behind for a while, and was right before, they count
        again as soon as it is right: with the wrong ones all these producers would be forgotten,
        and their retries stored twice. Those that append while it is behind are forgotten early.
        A time that is never below the newest one would keep them, and would keep all for as long
        as a clock was ever ahead.
        """
        for number, entry in enumerate(self._producers.values()):
            if entry.last_append_ms <= now_ms:
                if number == 0:
                    self._seen_ahead.clear()
                return
            if self._seen_ms(entry, now_ms) is not None:
                return
            self._seen_ahead[entry.producer_id] = (entry.last_append_ms, now_ms)

    def _silent_since_ms(self, entry: ProducerStateEntry, now_ms: int) -> int:
        if entry.last_append_ms <= now_ms:
            return entry.last_append_ms
        seen_ms = self._seen_ms(entry, now_ms)
        return now_ms if seen_ms is None else seen_ms

    def _seen_ms(self, entry: ProducerStateEntry, now_ms: int) -> int | None:
        """None: its last append has not been seen to be ahead, or only by a clock that was ahead of
        now, too."""
        append_ms, seen_ms = self._seen_ahead.get(entry.producer_id, (-1, 0))
        return seen_ms if append_ms == entry.last_append_ms and seen_ms <= now_ms else None

    def account(self, base_offset: int, span: int, metadata: LogBatchMetadata) -> AbortedTxn | None:
        """Notes a sequenced batch; the transaction that it aborts, if there is one."""
        producer_id = metadata.producer_id
        if producer_id <= NO_PRODUCER_ID:
            return None
        if metadata.attributes & TRANSACTION_BITS:
            if metadata.attributes & CONTROL:
                return self._account_marker(base_offset, metadata)
            self._account_transactional(base_offset, span, metadata)
            return None
        entry = self._producers.pop(producer_id, None)
        if entry is None:
            self._make_room(metadata.append_time_ms)
            self._on_count(1)
        self._producers[producer_id] = self._with_batch(entry, base_offset, span, metadata)
        return None

    def _with_batch(
        self,
        entry: ProducerStateEntry | None,
        base_offset: int,
        span: int,
        metadata: LogBatchMetadata,
        txn_first_offset: int = -1,
    ) -> ProducerStateEntry:
        producer_id, append_time_ms = metadata.producer_id, metadata.append_time_ms
        packed = b""  # A batch without a sequence was staged: nobody sends it again.
        first = metadata.base_sequence
        if first != NO_SEQUENCE:
            last = (first + span - 1) & SEQUENCE_MAX
            packed = _pack_batch(first, last, base_offset, base_offset + span - 1)
        epoch = metadata.producer_epoch
        # Batches of an expired entry must not pass for originals of later batches.
        if entry is None or self._is_expired(entry, append_time_ms):
            return ProducerStateEntry(
                producer_id, epoch, append_time_ms, packed, -1, txn_first_offset
            )
        if entry.producer_epoch == epoch:
            packed = (entry.packed + packed)[-self._packed_bytes_max :]
        return ProducerStateEntry(
            producer_id, epoch, append_time_ms, packed, entry.coordinator_epoch, txn_first_offset
        )

    def _account_transactional(
        self, base_offset: int, span: int, metadata: LogBatchMetadata
    ) -> None:
        producer_id = metadata.producer_id
        entry = self._in_transaction.get(producer_id)
        if entry is not None:
            first_offset = entry.txn_first_offset
        else:
            entry = self._taken(metadata)
            first_offset = base_offset
            self.unstable.begin(first_offset)
            self._verifications.begun(producer_id)
        self._in_transaction[producer_id] = self._with_batch(
            entry, base_offset, span, metadata, first_offset
        )

    def _account_marker(self, base_offset: int, metadata: LogBatchMetadata) -> AbortedTxn | None:
        """A marker of a higher epoch makes the producer begin anew, at sequence 0."""
        marker, producer_id = metadata.marker, metadata.producer_id
        assert marker is not None
        self._verifications.ended(producer_id)
        entry = self._in_transaction.pop(producer_id, None)
        first_offset = -1 if entry is None else entry.txn_first_offset
        if entry is None:
            entry = self._taken(metadata)
        packed = b""
        if entry is not None and entry.producer_epoch == metadata.producer_epoch:
            packed = entry.packed
        self._producers[producer_id] = ProducerStateEntry(
            producer_id,
            metadata.producer_epoch,
            metadata.append_time_ms,
            packed,
            marker.coordinator_epoch,
        )
        if first_offset < 0:
            return None
        self.unstable.end(first_offset, base_offset + 1)
        if marker.control_type is ControlType.COMMIT:
            return None
        others = next(iter(self._in_transaction.values()), None)
        stable = base_offset + 1 if others is None else others.txn_first_offset
        return AbortedTxn(producer_id, first_offset, base_offset, stable)

    def _taken(self, metadata: LogBatchMetadata) -> ProducerStateEntry | None:
        """Takes out the producer's entry outside of transactions, to put another in its place;
        None if there is none, or its time has expired."""
        entry = self._producers.pop(metadata.producer_id, None)
        if entry is None:
            self._make_room(metadata.append_time_ms)
            self._on_count(1)
        elif self._is_expired(entry, metadata.append_time_ms):
            return None
        return entry

    def _make_room(self, now_ms: int) -> None:
        """Forgets the producers that are silent for longest; at least one, if there is no room."""
        most = self._limits.ids_max
        if len(self) < most:
            return
        count = len(self) - most + max(1, most // FORGOTTEN_AT_ONCE)
        oldest = list(islice(self._producers.values(), count))
        kept_from = now_ms - self._idle_ms_min
        idle = [
            entry.producer_id
            for entry in oldest
            if self._silent_since_ms(entry, now_ms) <= kept_from
        ]
        self._forget(idle or [entry.producer_id for entry in oldest[:1]])

    def expire(self, now_ms: int) -> int:
        """Forgets producers whose time has expired; returns how many."""
        expired = [
            producer.producer_id
            for producer in self._producers.values()
            if self._is_expired(producer, now_ms)
        ]
        self._forget(expired)
        return len(expired)

    def forget_all(self) -> None:
        """Forgets every producer, because the log is given up."""
        self._on_count(-len(self))
        self._producers.clear()
        self._in_transaction.clear()

    def _forget(self, producer_ids: list[int]) -> None:
        for producer_id in producer_ids:
            del self._producers[producer_id]
        if producer_ids:
            self._on_count(-len(producer_ids))

    def snapshot(self) -> tuple[ProducerStateEntry, ...]:
        """In the order of their last appends; then those with an open transaction, in the order of
        the transactions."""
        return (*self._producers.values(), *self._in_transaction.values())

    def restore(self, entries: Iterable[ProducerStateEntry]) -> None:
        """Takes the producers of a checkpoint."""
        before = len(self)
        most = self._packed_bytes_max
        open_ones: list[ProducerStateEntry] = []
        for entry in sorted(entries, key=lambda entry: entry.last_append_ms):
            is_whole = len(entry.packed) <= most
            kept = entry if is_whole else entry._replace(packed=entry.packed[-most:])
            if kept.txn_first_offset >= 0:
                open_ones.append(kept)
            else:
                self._producers[kept.producer_id] = kept
        for entry in sorted(open_ones, key=lambda entry: entry.txn_first_offset):
            self._in_transaction[entry.producer_id] = entry
            self.unstable.begin(entry.txn_first_offset)
        self._on_count(len(self) - before)

    def _is_expired(self, producer: ProducerStateEntry, now_ms: int) -> bool:
        return (
            now_ms - producer.last_append_ms >= self._limits.expiration_ms
            and producer.txn_first_offset < 0
        )


def _original(producer: ProducerStateEntry, header: BatchHeader) -> ProducerBatch | None:
    """As ProducerStateManager.check, for a batch whose epoch is not too old.

    Errors: OutOfOrderSequence.
    """
    if header.producer_epoch > producer.producer_epoch:
        if header.base_sequence != 0:
            raise _out_of_order(header, 0, "a new epoch starts at sequence 0")
        return None
    first, last = header.base_sequence, header.last_sequence
    expected = (producer.last_sequence + 1) & SEQUENCE_MAX
    if first == expected:
        return None
    for batch in reversed(producer.batches):
        if batch.base_sequence == first and batch.last_sequence == last:
            return batch
    raise _out_of_order(
        header, expected, "batches in between are missing, or it is too old to be known"
    )


def _fenced(producer: ProducerStateEntry, actual: int, what: str) -> ProducerFenced:
    return ProducerFenced(
        f"producer {producer.producer_id} has epoch {producer.producer_epoch} here, {what} has "
        f"{actual}: a newer instance took over; stop this one",
        producer_id=producer.producer_id,
        expected=producer.producer_epoch,
        actual=actual,
    )


def _uncounted(change: int) -> None:
    """The default `on_count`."""


def _out_of_order(header: BatchHeader, expected: int, reason: str) -> OutOfOrderSequence:
    return OutOfOrderSequence(
        f"producer {header.producer_id} sent sequence {header.base_sequence} where {expected} "
        f"follows: {reason}",
        producer_id=header.producer_id,
        expected=expected,
        actual=header.base_sequence,
    )
