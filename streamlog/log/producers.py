"""Idempotent producers of one partition and what each appended last.

1. `check` compares a batch with its producer's remembered batches and changes nothing.
2. `account` notes a batch that has been sequenced; it is called in offset order, at append and
   again when attributes are replayed, so that both come to the same state.
3. State advances at sequencing and is provisional until the data is durable: whoever cannot make it
   durable drops the whole log object, state and all.

Source: KIP-98, Kafka's ProducerStateManager. Kafka remembers 5 batches, a shared log 32.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from streamlog.codec.batch import SEQUENCE_MAX, BatchHeader
from streamlog.errors import OutOfOrderSequence, ProducerFenced
from streamlog.log.batch_facts import BatchFacts
from streamlog.log.meta_codec import ProducerBatch, ProducerRecord

BATCHES_REMEMBERED = 32
NO_PRODUCER_ID = -1


@dataclass(slots=True)
class _Producer:
    epoch: int
    last_append_ms: int
    batches: deque[ProducerBatch]
    """Of `epoch` only, oldest first; never empty."""


class ProducerStates:
    """By producer id. An entry unused for `expiration_ms` counts as unknown."""

    def __init__(self, expiration_ms: int, batches_remembered: int = BATCHES_REMEMBERED) -> None:
        self._expiration_ms = expiration_ms
        self._remembered = batches_remembered
        self._producers: dict[int, _Producer] = {}

    def __len__(self) -> int:
        return len(self._producers)

    def check(self, header: BatchHeader, now_ms: int) -> ProducerBatch | None:
        """The original, where the batch is a duplicate of a remembered one; None where it is new.

        Errors: ProducerFenced, OutOfOrderSequence.
        """
        producer = self._producers.get(header.producer_id)
        if producer is None or self._is_expired(producer, now_ms):
            return None
        if header.producer_epoch < producer.epoch:
            raise ProducerFenced(
                f"producer {header.producer_id} has epoch {producer.epoch} here, the batch has "
                f"{header.producer_epoch}: a newer instance took over; stop this one",
                producer_id=header.producer_id,
                expected=producer.epoch,
                actual=header.producer_epoch,
            )
        if header.producer_epoch > producer.epoch:
            if header.base_sequence != 0:
                raise _out_of_order(header, 0, "a new epoch starts at sequence 0")
            return None
        first, last = header.base_sequence, header.last_sequence
        for batch in reversed(producer.batches):
            if batch.base_sequence == first and batch.last_sequence == last:
                return batch
        expected = (producer.batches[-1].last_sequence + 1) & SEQUENCE_MAX
        if first != expected:
            raise _out_of_order(
                header, expected, "batches in between are missing, or it is too old to be known"
            )
        return None

    def account(self, base_offset: int, span: int, facts: BatchFacts) -> None:
        """Notes a sequenced batch."""
        if facts.producer_id <= NO_PRODUCER_ID:
            return
        producer = self._producers.get(facts.producer_id)
        # What an expired entry remembers must not pass for originals of what follows.
        if (
            producer is None
            or producer.epoch != facts.producer_epoch
            or self._is_expired(producer, facts.append_time_ms)
        ):
            producer = self._producers[facts.producer_id] = _Producer(
                facts.producer_epoch, facts.append_time_ms, deque(maxlen=self._remembered)
            )
        producer.last_append_ms = facts.append_time_ms
        producer.batches.append(
            ProducerBatch(
                facts.base_sequence, facts.last_sequence(span), base_offset, base_offset + span - 1
            )
        )

    def expire(self, now_ms: int) -> int:
        """Forgets producers that have been silent for too long; how many."""
        gone = [
            producer_id
            for producer_id, producer in self._producers.items()
            if self._is_expired(producer, now_ms)
        ]
        for producer_id in gone:
            del self._producers[producer_id]
        return len(gone)

    def snapshot(self) -> tuple[ProducerRecord, ...]:
        """By producer id."""
        return tuple(
            ProducerRecord(key, one.epoch, one.last_append_ms, tuple(one.batches))
            for key, one in sorted(self._producers.items(), key=lambda item: item[0])
        )

    def restore(self, records: Iterable[ProducerRecord]) -> None:
        for record in records:
            self._producers[record.producer_id] = _Producer(
                record.producer_epoch,
                record.last_append_ms,
                deque(record.batches, maxlen=self._remembered),
            )

    def _is_expired(self, producer: _Producer, now_ms: int) -> bool:
        return now_ms - producer.last_append_ms >= self._expiration_ms


def _out_of_order(header: BatchHeader, expected: int, reason: str) -> OutOfOrderSequence:
    return OutOfOrderSequence(
        f"producer {header.producer_id} sent sequence {header.base_sequence} where {expected} "
        f"follows: {reason}",
        producer_id=header.producer_id,
        expected=expected,
        actual=header.base_sequence,
    )
