"""The idempotent producers of one partition and the last batches of each.

1. `check` compares a batch with its producer's remembered batches and changes nothing.
2. `account` notes a batch that has been sequenced; it is called in offset order, at append and
   again when attributes are replayed, so that both come to the same state.
3. State advances at sequencing and is provisional until the data is durable: a log that cannot make
   a batch durable is given up as a whole, with this state.
4. Producers are kept in the order of their last appends, so that the expired ones, and those that
   make room at the bound, come first and need no search.
5. Each producer has one immutable entry: a snapshot copies references, and appends that follow do
   not change it while it is written.

Source: KIP-98, Kafka's ProducerStateManager. Kafka remembers 5 batches of a producer, this program
32. Kafka does not bound the number of producers, except by expiry (`producer.id.expiration.ms`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice

from streamlog.codec.batch import SEQUENCE_MAX, BatchHeader
from streamlog.errors import OutOfOrderSequence, ProducerFenced, QuotaExceeded
from streamlog.log.partition.batch_metadata import LogBatchMetadata
from streamlog.log.partition.producer_state_entry import (
    PRODUCER_BATCH,
    ProducerBatch,
    ProducerStateEntry,
)

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
        self._on_count: Callable[[int], None] = _uncounted

    def __len__(self) -> int:
        return len(self._producers)

    def count_by(self, on_count: Callable[[int], None]) -> None:
        """Calls `on_count` with the number of producers, then with each change of it."""
        self._on_count = on_count
        on_count(len(self._producers))

    def check(self, header: BatchHeader, now_ms: int) -> ProducerBatch | None:
        """The original, where the batch is a duplicate of a remembered one; None where it is new.

        Errors: ProducerFenced, OutOfOrderSequence, QuotaExceeded (a new producer, and no room).
        """
        producer = self._producers.get(header.producer_id)
        if producer is None:
            self._check_room(header.producer_id, now_ms)
            return None
        if self._is_expired(producer, now_ms):
            return None
        if header.producer_epoch < producer.producer_epoch:
            raise ProducerFenced(
                f"producer {header.producer_id} has epoch {producer.producer_epoch} here, the "
                f"batch has {header.producer_epoch}: a newer instance took over; stop this one",
                producer_id=header.producer_id,
                expected=producer.producer_epoch,
                actual=header.producer_epoch,
            )
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

    def _check_room(self, producer_id: int, now_ms: int) -> None:
        limits = self._limits
        if len(self._producers) < limits.ids_max:
            return
        oldest = next(iter(self._producers.values()))
        if now_ms - oldest.last_append_ms < self._idle_ms_min:
            raise QuotaExceeded(
                f"{len(self._producers)} producers appended to the partition, all of them within "
                f"{self._idle_ms_min} ms; there is no room for producer {producer_id} "
                "(log.producer_ids_max): share producers, or try again later",
                retry_after_ms=NO_ROOM_RETRY_MS,
            )

    def account(self, base_offset: int, span: int, metadata: LogBatchMetadata) -> None:
        """Notes a sequenced batch."""
        producer_id = metadata.producer_id
        if producer_id <= NO_PRODUCER_ID:
            return
        packed = PRODUCER_BATCH.pack(
            metadata.base_sequence,
            metadata.last_sequence(span),
            base_offset,
            base_offset + span - 1,
        )
        entry = self._producers.pop(producer_id, None)
        if entry is None:
            self._make_room(metadata.append_time_ms)
            self._on_count(1)
        # Batches of an expired entry must not pass for originals of later batches.
        elif entry.producer_epoch == metadata.producer_epoch and not self._is_expired(
            entry, metadata.append_time_ms
        ):
            packed = (entry.packed + packed)[-self._packed_bytes_max :]
        self._producers[producer_id] = ProducerStateEntry(
            producer_id, metadata.producer_epoch, metadata.append_time_ms, packed
        )

    def _make_room(self, now_ms: int) -> None:
        """Forgets the producers that are silent for longest; at least one, if there is no room."""
        most = self._limits.ids_max
        if len(self._producers) < most:
            return
        count = len(self._producers) - most + max(1, most // FORGOTTEN_AT_ONCE)
        oldest = list(islice(self._producers.values(), count))
        kept_from = now_ms - self._idle_ms_min
        idle = [entry.producer_id for entry in oldest if entry.last_append_ms <= kept_from]
        self._forget(idle or [oldest[0].producer_id])

    def expire(self, now_ms: int) -> int:
        """Forgets producers whose time has expired; returns how many."""
        expired: list[int] = []
        for producer in self._producers.values():
            if not self._is_expired(producer, now_ms):
                break
            expired.append(producer.producer_id)
        self._forget(expired)
        return len(expired)

    def forget_all(self) -> None:
        """Forgets every producer, because the log is given up."""
        self._forget(list(self._producers))

    def _forget(self, producer_ids: list[int]) -> None:
        for producer_id in producer_ids:
            del self._producers[producer_id]
        if producer_ids:
            self._on_count(-len(producer_ids))

    def snapshot(self) -> tuple[ProducerStateEntry, ...]:
        """In the order of their last appends."""
        return tuple(self._producers.values())

    def restore(self, entries: Iterable[ProducerStateEntry]) -> None:
        """Takes the producers of a checkpoint."""
        before = len(self._producers)
        most = self._packed_bytes_max
        for entry in sorted(entries, key=lambda entry: entry.last_append_ms):
            is_whole = len(entry.packed) <= most
            kept = entry if is_whole else entry._replace(packed=entry.packed[-most:])
            self._producers[entry.producer_id] = kept
        self._on_count(len(self._producers) - before)

    def _is_expired(self, producer: ProducerStateEntry, now_ms: int) -> bool:
        return now_ms - producer.last_append_ms >= self._limits.expiration_ms


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
