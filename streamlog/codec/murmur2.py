"""Kafka's default partitioner: a key lands in the partition where Kafka's own clients put it."""

from __future__ import annotations

import murmurhash2

from streamlog.runtime.buffers import Buffer

SEED = 0x9747B28C


def murmur2(data: Buffer) -> int:
    """Kafka's 32-bit murmur2, unsigned."""
    return murmurhash2.murmurhash2(bytes(data), SEED)


def partition_for_key(key: Buffer, partitions: int) -> int:
    """Kafka's `toPositive(murmur2(key)) % partitions`."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions
