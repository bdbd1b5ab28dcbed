"""Fetch of one partition, for readers that know their offsets and need no consumer."""

from __future__ import annotations

from typing import Any

from streamlog.client.calls.topic import ISOLATION
from streamlog.client.channel import Call
from streamlog.errors import Internal
from streamlog.v1 import log_pb2
from streamlog.v1support.errors import from_proto


def fetch_partition(
    topic: str,
    topic_id: str,
    partition: int,
    offset: int,
    *,
    isolation: str,
    max_wait_ms: int,
    max_bytes: int,
) -> Call:
    """Result: the partition's part of the answer. `topic_id` "": any topic of that name.

    Errors: those of the partition, OffsetOutOfRange and UnknownTopicOrPartition among them.
    """
    request = log_pb2.FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=1,
        max_bytes=max_bytes,
        isolation_level=ISOLATION[isolation],
    )
    request.topics.add(topic=topic, topic_id=topic_id).partitions.add(
        partition=partition, fetch_offset=offset, partition_max_bytes=max_bytes
    )
    return Call("LogService/Fetch", request, log_pb2.FetchResponse, _only_partition)


def _only_partition(response: Any) -> Any:
    if response.HasField("error"):
        raise from_proto(response.error)
    if len(response.topics) != 1 or len(response.topics[0].partitions) != 1:
        raise Internal("the answer is not about the partition asked for")
    result = response.topics[0].partitions[0]
    if result.HasField("error"):
        raise from_proto(result.error)
    return result
