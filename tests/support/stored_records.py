"""What a node's partitions hold, read by the client over gRPC."""

from __future__ import annotations

from streamlog.client import Consumer

Place = tuple[int, int]
"""Partition and offset."""


def stored_records(server: str, topic: str, partitions: int) -> dict[Place, bytes]:
    """What stands where, from the start to the end of every partition."""
    found: dict[Place, bytes] = {}
    with Consumer(server, auto_offset_reset="earliest") as consumer:
        places = [(topic, partition) for partition in range(partitions)]
        ends = consumer.end_offsets(places)
        consumer.assign(places)
        while any(consumer.position(*place) < end for place, end in ends.items()):
            for record in consumer.poll(5.0, max_records=100_000):
                found[record.partition, record.offset] = record.value or b""
    return found
