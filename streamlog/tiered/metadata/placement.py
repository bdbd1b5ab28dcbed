"""Which partition of `__remote_log_metadata` tells of a partition: Kafka's rule. Pure.

toPositive(murmur2(h, an int32 in 4 bytes)) % n, where h is Java's Objects.hash of the topic id's
low and high half and of the partition's number. The topic's name says nothing. Source: Kafka's
RemoteLogMetadataTopicPartitioner.
"""

from __future__ import annotations

from streamlog.codec.murmur2 import partition_for_key
from streamlog.tiered.api import TopicIdPartition

_INT = (1 << 32) - 1


def metadata_partition_of(partition: TopicIdPartition, partitions: int) -> int:
    high, low = divmod(partition.topic_id.int, 1 << 64)
    hashed = 1
    for part in (_long_hash(low), _long_hash(high), partition.partition):
        hashed = (31 * hashed + part) & _INT
    return partition_for_key(hashed.to_bytes(4, "big"), partitions)


def _long_hash(number: int) -> int:
    """Java's Long.hashCode, unsigned."""
    return (number ^ number >> 32) & _INT
