"""Unary calls that producers and consumers make beside their produce streams and fetches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, NamedTuple, TypeVar

from streamlog.client.calls.topic_lookup import TopicEntry
from streamlog.client.channel import Call
from streamlog.client.producer_identity import NO_IDENTITY, ProducerIdentity
from streamlog.client.settings import RECORD_BYTES_MAX_DEFAULT
from streamlog.errors import Internal, Invalid, StreamlogError
from streamlog.v1 import admin_pb2, log_pb2
from streamlog.v1support.errors import from_proto

TopicPartition = tuple[str, int]

LATEST = -1
EARLIEST = -2

ISOLATION = {
    "read_uncommitted": log_pb2.ISOLATION_LEVEL_READ_UNCOMMITTED,
    "read_committed": log_pb2.ISOLATION_LEVEL_READ_COMMITTED,
}


class OffsetAndTimestamp(NamedTuple):
    """A record's place as found by time."""

    offset: int
    timestamp_ms: int


def partition_count(topic: str, *, allow_auto_create: bool = True) -> Call:
    def read(response: Any) -> int:
        return len(only_topic(response, topic).partitions)

    request = admin_pb2.DescribeTopicsRequest(names=[topic], allow_auto_create=allow_auto_create)
    return Call("AdminService/DescribeTopics", request, admin_pb2.DescribeTopicsResponse, read)


def create_if_missing(topic: str) -> Call:
    """Result: the topic's entry. Errors: UnknownTopicOrPartition, where none is made."""

    def read(response: Any) -> TopicEntry:
        description = only_topic(response, topic)
        return TopicEntry(topic, description.topic_id, len(description.partitions))

    request = admin_pb2.DescribeTopicsRequest(names=[topic], allow_auto_create=True)
    return Call("AdminService/DescribeTopics", request, admin_pb2.DescribeTopicsResponse, read)


def only_topic(response: Any, topic: str) -> Any:
    """The description of the one topic asked for. Errors: the one in its place."""
    if len(response.topics) != 1:
        raise Internal(f"{len(response.topics)} topics in the answer for {topic}")
    topic_result = response.topics[0]
    if topic_result.HasField("error"):
        raise from_proto(topic_result.error)
    return topic_result


BATCH_LIMITS = frozenset({"max.message.bytes", "segment.bytes"})
"""A batch is as large as the lesser of them at most: it lies in one segment."""


def batch_bytes_max(topic: str) -> Call:
    def read(response: Any) -> int:
        limits = [int(entry.value) for entry in response.entries if entry.name in BATCH_LIMITS]
        return min(limits, default=RECORD_BYTES_MAX_DEFAULT)

    resource = admin_pb2.ConfigResource(type=admin_pb2.CONFIG_RESOURCE_TYPE_TOPIC, name=topic)
    request = admin_pb2.DescribeConfigsRequest(resource=resource)
    return Call("AdminService/DescribeConfigs", request, admin_pb2.DescribeConfigsResponse, read)


def init_producer_id(identity: ProducerIdentity) -> Call:
    def read(response: Any) -> ProducerIdentity:
        return ProducerIdentity(response.producer_id, response.producer_epoch)

    request = log_pb2.InitProducerIdRequest()
    if identity != NO_IDENTITY:
        request.producer_id, request.producer_epoch = identity
    return Call("LogService/InitProducerId", request, log_pb2.InitProducerIdResponse, read)


OffsetResult = OffsetAndTimestamp | StreamlogError | None
"""Where a partition's record is, or why that is not known; None: there is no such record."""


def list_offsets(times: Mapping[TopicPartition, int], isolation_level: str) -> Call:
    """Result: partition → OffsetAndTimestamp, or None where there is no such record.

    Reading it raises the first partition's error.
    """
    call = list_offsets_each(times, isolation_level)
    return call._replace(read=lambda response: raise_first_error(call.read(response)))


def list_offsets_each(times: Mapping[TopicPartition, int], isolation_level: str) -> Call:
    """Result: partition → OffsetResult."""
    request = log_pb2.ListOffsetsRequest(isolation_level=ISOLATION[isolation_level])
    for topic, partitions in by_topic(times).items():
        topic_out = request.topics.add(topic=topic)
        for partition in partitions:
            topic_out.partitions.add(partition=partition, timestamp_ms=times[topic, partition])

    def read(response: Any) -> dict[TopicPartition, OffsetResult]:
        results: dict[TopicPartition, OffsetResult] = {}
        for topic in response.topics:
            for result in topic.partitions:
                tp = (topic.topic, result.partition)
                results[tp] = from_proto(result.error) if result.HasField("error") else None
                if result.HasField("offset"):
                    stamp = result.timestamp_ms if result.HasField("timestamp_ms") else -1
                    results[tp] = OffsetAndTimestamp(result.offset, stamp)
        if set(results) != set(times):
            raise Internal("the answer is not about the partitions asked for")
        return results

    return Call("LogService/ListOffsets", request, log_pb2.ListOffsetsResponse, read)


def fetch(request: Any) -> Call:
    """Result: the FetchResponse."""
    return Call("LogService/Fetch", request, log_pb2.FetchResponse, lambda response: response)


PARTITIONS_PER_REQUEST = 5000
"""A node takes 10,000 by default; it says where it takes fewer."""


def partition_limit_of(error: StreamlogError) -> int | None:
    """How many partitions a request may name, where this error says that there were more."""
    limit = error.fields.get("max_partitions")
    return limit if isinstance(error, Invalid) and isinstance(limit, int) and limit > 0 else None


T = TypeVar("T")


def chunks(mapping: Mapping[TopicPartition, T], size: int) -> Iterator[dict[TopicPartition, T]]:
    """The mapping in parts of at most `size` entries."""
    items = iter(mapping.items())
    while chunk := dict(islice(items, size)):
        yield chunk


def raise_first_error(
    results: Mapping[TopicPartition, OffsetResult],
) -> dict[TopicPartition, OffsetAndTimestamp | None]:
    """The offsets. Errors: the first among the results."""
    offsets: dict[TopicPartition, OffsetAndTimestamp | None] = {}
    for tp, result in results.items():
        if isinstance(result, StreamlogError):
            raise result
        offsets[tp] = result
    return offsets


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    grouped: dict[str, list[int]] = {}
    for topic, partition in partitions:
        grouped.setdefault(topic, []).append(partition)
    return grouped
