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


class ProducerBatch(NamedTuple):
    """A remembered batch: sequences and offsets of its first and last record."""

    base_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int


class ProducerStateEntry(NamedTuple):
    """`packed`: the remembered batches, oldest first, all of this epoch."""

    producer_id: int
    producer_epoch: int
    last_append_ms: int
    packed: bytes

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
    def last_sequence(self) -> int:
        """The same field of the newest batch."""
        newest = len(self.packed) - PRODUCER_BATCH.size
        sequence: int = PRODUCER_BATCH.unpack_from(self.packed, newest)[1]
        return sequence
