"""The cases that every client's program runs, by name."""

from __future__ import annotations

# The last one has no consumer, whose last fetch would be answered in the next client's time.
CASES = {
    "codecs": "records with keys, headers, nulls and empty values come back, by every codec",
    "acks": "records sent with acks 0, 1 and all, without idempotence, are there",
    "idempotent": "an idempotent producer's records come back once, in order",
    "auto_create": "a producer makes the topic that it writes to",
    "positions": "a consumer starts at the earliest, the latest and a timestamp's offset",
    "metadata": "a topic's partitions have leaders, an unknown topic is an error",
    "topics": "topics are created, grown and deleted; wrong names and a second creation refused",
    "delete_records": "the log starts at the offset that records were deleted up to",
    "offsets": "offsets are listed for the earliest, the latest, a timestamp and the largest one",
    "configs": "a topic's setting is described, altered and put back",
    "too_large": "a batch above max.message.bytes is refused, and the next one taken",
    "transactions": "read_committed readers see committed transactions, the others all records",
    "fencing": "a newer instance fences an older one; a time-out above the bound is refused",
    "transaction_timeout": "an open transaction is aborted after its time-out, its producer fenced",
    "cluster": "the cluster has an id, a node and a controller",
}

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
"""By their number in a batch's attributes."""
