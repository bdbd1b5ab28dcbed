"""Produces batches as they are, and reads a partition's bytes back."""

from __future__ import annotations

from collections.abc import Iterable

from streamlog.codec.batch import scan
from tests.kafka_clients.raw_client import RawClient, part, request

TIMEOUT_MS = 30_000
OFFSET_BYTES = 8


def create(client: RawClient, topic: str) -> None:
    """A topic of one partition. What exists already is left."""
    asked = part(
        "create_topics", "CreatableTopic", name=topic, num_partitions=1, replication_factor=1
    )
    answer = client.call(
        "create_topics", 7, request("create_topics", topics=[asked], timeout_ms=TIMEOUT_MS)
    )
    assert answer.topics[0].error_code in (0, 36), answer


def produce_all(client: RawClient, topic: str, segments: Iterable[bytes]) -> None:
    """Creates the topic and produces each batch of the segments, one a request."""
    create(client, topic)
    for segment in segments:
        for batch in scan(segment):
            # As a producer sends it: without an offset.
            records = bytes(OFFSET_BYTES) + bytes(batch.view[OFFSET_BYTES:])
            data = part("produce", "PartitionProduceData", index=0, records=records)
            asked = part("produce", "TopicProduceData", name=topic, partition_data=[data])
            answer = client.call(
                "produce", 9, request("produce", acks=-1, timeout_ms=TIMEOUT_MS, topic_data=[asked])
            )
            (found,) = answer.responses[0].partition_responses
            assert found.error_code == 0, found
