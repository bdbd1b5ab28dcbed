"""Kafka's default partitioner: a key lands in the partition where Kafka's own clients put it."""

from __future__ import annotations

from collections.abc import Sequence

from streamlog.codec.choice import native
from streamlog.codec.pure import murmur2 as pure_murmur2
from streamlog.runtime.buffers import Buffer

SEED = pure_murmur2.SEED


def murmur2(data: Buffer) -> int:
    """Kafka's 32-bit murmur2, unsigned."""
    return native.murmur2(data) if native else pure_murmur2.murmur2(data)


def _partition_for_key(key: Buffer, partitions: int) -> int:
    """Kafka's `toPositive(murmur2(key)) % partitions`."""
    return (pure_murmur2.murmur2(key) & 0x7FFFFFFF) % partitions


partition_for_key = native.partition_for_key if native else _partition_for_key


def partitions_for_keys(
    keys: Sequence[Buffer | None], partitions: int, otherwise: int
) -> list[int]:
    """The partition of each key; `otherwise` for None."""
    if native:
        return native.partitions_for_keys(keys, partitions, otherwise)
    return [otherwise if key is None else _partition_for_key(key, partitions) for key in keys]
