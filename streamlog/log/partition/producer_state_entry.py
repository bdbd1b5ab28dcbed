"""What a partition remembers of one idempotent producer (Kafka's ProducerStateEntry). Pure.

A partition may have very many producers, so an entry holds its batches packed as they are stored:
about 300 bytes of memory for a producer with one batch and 1 KiB with 32, where objects took 1.2
and 5.3 KiB.
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct
from typing import NamedTuple

PRODUCER_BATCH = Struct(">iiqq")
"""A ProducerBatch's fields."""
_LAST_SEQUENCE = Struct(">i")
_LAST_SEQUENCE_FROM_END = PRODUCER_BATCH.size - _LAST_SEQUENCE.size


class ProducerBatch(NamedTuple):
    """A remembered batch: sequences and offsets of its first and last record."""

    base_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int


class ProducerStateEntry(NamedTuple):
    """`packed`: the remembered batches, oldest first, all of this epoch; none behind the marker of
    a new epoch."""

    producer_id: int
    producer_epoch: int
    last_append_ms: int
    packed: bytes
    coordinator_epoch: int = -1
    """Of the newest marker; -1 without one."""
    txn_first_offset: int = -1
    """First offset of the open transaction; -1: none is open."""

    @classmethod
    def of(
        cls,
        producer_id: int,
        producer_epoch: int,
        last_append_ms: int,
        batches: Iterable[ProducerBatch],
    ) -> ProducerStateEntry:
        packed = b"".join(PRODUCER_BATCH.pack(*batch) for batch in batches)
        return cls(producer_id, producer_epoch, last_append_ms, packed)

    @property
    def batches(self) -> list[ProducerBatch]:
        """Oldest first."""
        return [ProducerBatch._make(fields) for fields in PRODUCER_BATCH.iter_unpack(self.packed)]

    @property
    def has_transactions(self) -> bool:
        """Whether the entry holds more than that of a producer without transactions does."""
        return self.txn_first_offset >= 0 or self.coordinator_epoch >= 0 or not self.packed

    @property
    def last_sequence(self) -> int:
        """The same field of the newest batch; -1 where there is none."""
        packed = self.packed
        if not packed:
            return -1
        sequence: int = _LAST_SEQUENCE.unpack_from(packed, len(packed) - _LAST_SEQUENCE_FROM_END)[0]
        return sequence
