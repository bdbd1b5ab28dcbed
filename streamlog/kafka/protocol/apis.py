"""Kafka's APIs that a node serves: numbers, versions, header versions, and their messages.

A message's module is imported on its first use: all of them together cost memory that a node with
few kinds of clients does not need.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple

from streamlog.kafka.protocol.primitives import Malformed, Structure, malformed
from streamlog.runtime.buffers import Buffer


class ApiKey(IntEnum):
    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    FIND_COORDINATOR = 10
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    END_TXN = 26
    WRITE_TXN_MARKERS = 27
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    DESCRIBE_LOG_DIRS = 35
    CREATE_PARTITIONS = 37
    INCREMENTAL_ALTER_CONFIGS = 44
    LIST_PARTITION_REASSIGNMENTS = 46
    DESCRIBE_CLIENT_QUOTAS = 48
    ALTER_CLIENT_QUOTAS = 49
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
    LIST_CONFIG_RESOURCES = 74
    DESCRIBE_TOPIC_PARTITIONS = 75


class Api(NamedTuple):
    """One API. Versions are inclusive."""

    key: ApiKey
    name: str
    """Kafka's; its messages are this and `Request` or `Response`."""
    first: int
    last: int
    flexible: int
    """From this version on, lengths are varints and structures have tags."""
    advertised_first: int
    """Below `first` where a client reads more out of the range than what it may send."""

    def serves(self, version: int) -> bool:
        return self.first <= version <= self.last

    def request_header(self, version: int) -> int:
        return 2 if version >= self.flexible else 1

    def response_header(self, version: int) -> int:
        """Always 0 for ApiVersions: its client does not know yet what the node understands."""
        return 1 if version >= self.flexible and self.key is not ApiKey.API_VERSIONS else 0


def _api(
    key: ApiKey, name: str, first: int, last: int, flexible: int, advertised: int | None = None
) -> tuple[ApiKey, Api]:
    return key, Api(key, name, first, last, flexible, first if advertised is None else advertised)


APIS: dict[ApiKey, Api] = dict(
    (
        # librdkafka before 2.11.1 sends nothing compressed to a node that does not say 0.
        _api(ApiKey.PRODUCE, "Produce", 3, 13, 9, advertised=0),
        _api(ApiKey.FETCH, "Fetch", 4, 18, 12),
        _api(ApiKey.LIST_OFFSETS, "ListOffsets", 1, 10, 6),
        _api(ApiKey.METADATA, "Metadata", 0, 13, 9),
        _api(ApiKey.FIND_COORDINATOR, "FindCoordinator", 0, 6, 3),
        _api(ApiKey.API_VERSIONS, "ApiVersions", 0, 4, 3),
        _api(ApiKey.CREATE_TOPICS, "CreateTopics", 2, 7, 5),
        _api(ApiKey.DELETE_TOPICS, "DeleteTopics", 1, 6, 4),
        _api(ApiKey.DELETE_RECORDS, "DeleteRecords", 0, 2, 2),
        _api(ApiKey.INIT_PRODUCER_ID, "InitProducerId", 0, 5, 2),
        _api(ApiKey.OFFSET_FOR_LEADER_EPOCH, "OffsetForLeaderEpoch", 2, 4, 4),
        _api(ApiKey.ADD_PARTITIONS_TO_TXN, "AddPartitionsToTxn", 0, 5, 3),
        _api(ApiKey.END_TXN, "EndTxn", 0, 5, 3),
        _api(ApiKey.WRITE_TXN_MARKERS, "WriteTxnMarkers", 1, 1, 1),
        _api(ApiKey.DESCRIBE_CONFIGS, "DescribeConfigs", 1, 4, 4),
        _api(ApiKey.ALTER_CONFIGS, "AlterConfigs", 0, 2, 2),
        _api(ApiKey.DESCRIBE_LOG_DIRS, "DescribeLogDirs", 1, 4, 2),
        _api(ApiKey.CREATE_PARTITIONS, "CreatePartitions", 0, 3, 2),
        _api(ApiKey.INCREMENTAL_ALTER_CONFIGS, "IncrementalAlterConfigs", 0, 1, 1),
        _api(ApiKey.LIST_PARTITION_REASSIGNMENTS, "ListPartitionReassignments", 0, 0, 0),
        _api(ApiKey.DESCRIBE_CLIENT_QUOTAS, "DescribeClientQuotas", 0, 1, 1),
        _api(ApiKey.ALTER_CLIENT_QUOTAS, "AlterClientQuotas", 0, 1, 1),
        _api(ApiKey.DESCRIBE_CLUSTER, "DescribeCluster", 0, 2, 0),
        _api(ApiKey.DESCRIBE_PRODUCERS, "DescribeProducers", 0, 0, 0),
        _api(ApiKey.DESCRIBE_TRANSACTIONS, "DescribeTransactions", 0, 0, 0),
        _api(ApiKey.LIST_TRANSACTIONS, "ListTransactions", 0, 2, 0),
        _api(ApiKey.LIST_CONFIG_RESOURCES, "ListConfigResources", 0, 1, 0),
        _api(ApiKey.DESCRIBE_TOPIC_PARTITIONS, "DescribeTopicPartitions", 0, 0, 0),
    )
)
"""Every API whose messages are generated. What a node advertises is what its handlers serve."""

Decode = Callable[[memoryview, int, int], tuple[Structure, int]]
Encode = Callable[[Any, int], list[Buffer]]


class Codec(NamedTuple):
    decode: Decode
    encode: Encode


@cache
def request_codec(key: ApiKey) -> Codec:
    return _codec(f"{key.name.lower()}_request")


@cache
def response_codec(key: ApiKey) -> Codec:
    return _codec(f"{key.name.lower()}_response")


def _codec(name: str) -> Codec:
    module = import_module(f"streamlog.kafka.messages.{name}")
    return Codec(module.decode, module.encode)


def decode_request(key: ApiKey, version: int, data: memoryview, at: int) -> Structure:
    """The request whose body is `data` from `at` to its end. Errors: Malformed."""
    return _whole(*request_codec(key).decode(data, at, version), data)


def decode_response(key: ApiKey, version: int, data: memoryview, at: int) -> Structure:
    """The response whose body is `data` from `at` to its end. Errors: Malformed."""
    return _whole(*response_codec(key).decode(data, at, version), data)


def _whole(message: Structure, end: int, data: memoryview) -> Structure:
    if end != len(data):
        raise _trailing(message, len(data) - end)
    return message


def _trailing(message: Structure, size: int) -> Malformed:
    return malformed(type(message).__name__, f"{size} bytes follow the message")
