"""Which partition a record goes to.

With a key: Kafka's murmur2, so that a key lands where Kafka's own clients put it. Without one: the
topic's sticky partition, which changes at random each time a batch of it closes, so that batches
are full and partitions get equally many (KIP-794).
"""

from __future__ import annotations

import random
from collections.abc import Callable

from streamlog.codec.murmur2 import partition_for_key, partitions_for_keys
from streamlog.runtime.buffers import Buffer

Partitioner = Callable[[str, Buffer | None, int], int]
"""(topic, key, partition count) → partition; given by the user, called for every record."""

__all__ = ["Partitioner", "next_sticky", "partition_for_key", "partitions_for_keys"]


def next_sticky(
    current: int, partitions: int, choose: Callable[[int], int] = random.randrange
) -> int:
    """Another partition than `current`, all others being equally likely."""
    if partitions < 2:
        return 0
    other = choose(partitions - 1)
    return other if other < current else other + 1
