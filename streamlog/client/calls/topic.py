"""Calls that producers and consumers make beside their streams."""

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
        found = only_topic(response, topic)
        return TopicEntry(topic, found.topic_id, len(found.partitions))

    request = admin_pb2.DescribeTopicsRequest(names=[topic], allow_auto_create=True)
    return Call("AdminService/DescribeTopics", request, admin_pb2.DescribeTopicsResponse, read)


def only_topic(response: Any, topic: str) -> Any:
    """The description of the one topic asked for. Raises its error."""
    if len(response.topics) != 1:
        raise Internal(f"{len(response.topics)} topics in the answer for {topic}")
    found = response.topics[0]
    if found.HasField("error"):
        raise from_proto(found.error)
    return found


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


Place = OffsetAndTimestamp | StreamlogError | None
"""Where a partition's record is; None: there is no such record."""


def list_offsets(times: Mapping[TopicPartition, int], isolation_level: str) -> Call:
    """Result: partition → OffsetAndTimestamp, or None where there is no such record.

    Reading it raises the first partition's error.
    """
    call = list_offsets_each(times, isolation_level)
    return call._replace(read=lambda response: certain(call.read(response)))


def list_offsets_each(times: Mapping[TopicPartition, int], isolation_level: str) -> Call:
    """Result: partition → Place."""
    request = log_pb2.ListOffsetsRequest(isolation_level=ISOLATION[isolation_level])
    for topic, partitions in by_topic(times).items():
        asked = request.topics.add(topic=topic)
        for partition in partitions:
            asked.partitions.add(partition=partition, timestamp_ms=times[topic, partition])

    def read(response: Any) -> dict[TopicPartition, Place]:
        found: dict[TopicPartition, Place] = {}
        for topic in response.topics:
            for result in topic.partitions:
                at = (topic.topic, result.partition)
                found[at] = from_proto(result.error) if result.HasField("error") else None
                if result.HasField("offset"):
                    stamp = result.timestamp_ms if result.HasField("timestamp_ms") else -1
                    found[at] = OffsetAndTimestamp(result.offset, stamp)
        if set(found) != set(times):
            raise Internal("the answer is not about the partitions asked for")
        return found

    return Call("LogService/ListOffsets", request, log_pb2.ListOffsetsResponse, read)


PARTITIONS_PER_REQUEST = 5000
"""A node takes 10,000 by default; it says where it takes fewer."""


def most_partitions(error: StreamlogError) -> int | None:
    """How many partitions a request may name, where this error says that there were more."""
    most = error.fields.get("max_partitions")
    return most if isinstance(error, Invalid) and isinstance(most, int) and most > 0 else None


T = TypeVar("T")


def pieces(found: Mapping[TopicPartition, T], most: int) -> Iterator[dict[TopicPartition, T]]:
    """The mapping in pieces of at most `most` entries."""
    items = iter(found.items())
    while piece := dict(islice(items, most)):
        yield piece


def certain(
    found: Mapping[TopicPartition, Place],
) -> dict[TopicPartition, OffsetAndTimestamp | None]:
    """The places; raises the first error among them."""
    places: dict[TopicPartition, OffsetAndTimestamp | None] = {}
    for at, place in found.items():
        if isinstance(place, StreamlogError):
            raise place
        places[at] = place
    return places


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    grouped: dict[str, list[int]] = {}
    for topic, partition in partitions:
        grouped.setdefault(topic, []).append(partition)
    return grouped
