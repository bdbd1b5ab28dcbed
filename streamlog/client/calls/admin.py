"""AdminService's calls: request and result of each, for the blocking and the asyncio client."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from streamlog.client.calls.topic import only_topic
from streamlog.client.channel import Call
from streamlog.errors import Internal, Invalid, InvalidPartitions
from streamlog.v1 import admin_pb2, log_pb2
from streamlog.v1support.errors import from_proto

PAGE = 1000


def create_topic(
    name: str,
    partitions: int | None,
    configs: Mapping[str, str] | None,
    *,
    validate_only: bool = False,
) -> Call:
    """`partitions` None: the broker's num.partitions. Errors: InvalidPartitions."""
    if partitions == 0:
        # The request means by it that the broker chooses.
        raise InvalidPartitions(
            "a topic has at least 1 partition, not 0; None leaves it to the node"
        )
    topic = admin_pb2.NewTopic(name=name, partitions=partitions or 0, configs=dict(configs or {}))
    request = admin_pb2.CreateTopicsRequest(topics=[topic], validate_only=validate_only)

    def read(response: Any) -> Any:
        return only_topic(response, name)

    return Call(
        "AdminService/CreateTopics", request, admin_pb2.CreateTopicsResponse, read, writes=True
    )


def delete_topic(name: str) -> Call:
    def read(response: Any) -> None:
        only_topic(response, name)

    request = admin_pb2.DeleteTopicsRequest(names=[name])
    return Call(
        "AdminService/DeleteTopics", request, admin_pb2.DeleteTopicsResponse, read, writes=True
    )


def list_topics(after: str) -> Call:
    request = admin_pb2.ListTopicsRequest(after=after, limit=PAGE)
    return Call(
        "AdminService/ListTopics",
        request,
        admin_pb2.ListTopicsResponse,
        lambda response: list(response.topics),
    )


def describe_topic(name: str, *, allow_auto_create: bool) -> Call:
    def read(response: Any) -> Any:
        return only_topic(response, name)

    request = admin_pb2.DescribeTopicsRequest(names=[name], allow_auto_create=allow_auto_create)
    return Call("AdminService/DescribeTopics", request, admin_pb2.DescribeTopicsResponse, read)


def create_partitions(topic: str, partitions: int) -> Call:
    request = admin_pb2.CreatePartitionsRequest(topic=topic, partitions=partitions)
    return Call(
        "AdminService/CreatePartitions",
        request,
        admin_pb2.CreatePartitionsResponse,
        lambda _: None,
        writes=True,
    )


def resource(
    topic: str | None,
    broker: int | str | None,
    broker_default: bool,
    client: str | None,
    client_default: bool,
) -> Any:
    """Errors: Invalid unless exactly one is named."""
    named = [
        admin_pb2.ConfigResource(type=kind, name=str(name))
        for kind, name in (
            (admin_pb2.CONFIG_RESOURCE_TYPE_TOPIC, topic),
            (admin_pb2.CONFIG_RESOURCE_TYPE_BROKER, broker),
            (admin_pb2.CONFIG_RESOURCE_TYPE_BROKER_DEFAULT, "" if broker_default else None),
            (admin_pb2.CONFIG_RESOURCE_TYPE_CLIENT, client),
            (admin_pb2.CONFIG_RESOURCE_TYPE_CLIENT_DEFAULT, "" if client_default else None),
        )
        if name is not None
    ]
    if len(named) != 1:
        raise Invalid("name one of topic, broker, broker_default, client and client_default")
    return named[0]


def describe_configs(resource: Any) -> Call:
    request = admin_pb2.DescribeConfigsRequest(resource=resource)
    return Call(
        "AdminService/DescribeConfigs",
        request,
        admin_pb2.DescribeConfigsResponse,
        lambda response: list(response.entries),
    )


def alter_configs(
    resource: Any,
    configs: Mapping[str, str | None],
    append: Mapping[str, str] | None,
    subtract: Mapping[str, str] | None,
    *,
    validate_only: bool,
) -> Call:
    """None as a value goes back to the default."""
    changes = [
        admin_pb2.ConfigChange(name=name, operation=admin_pb2.CONFIG_OPERATION_DELETE)
        if value is None
        else admin_pb2.ConfigChange(
            name=name, operation=admin_pb2.CONFIG_OPERATION_SET, value=str(value)
        )
        for name, value in configs.items()
    ]
    for operation, given in (
        (admin_pb2.CONFIG_OPERATION_APPEND, append or {}),
        (admin_pb2.CONFIG_OPERATION_SUBTRACT, subtract or {}),
    ):
        changes += [
            admin_pb2.ConfigChange(name=name, operation=operation, value=value)
            for name, value in given.items()
        ]
    request = admin_pb2.IncrementalAlterConfigsRequest(
        resource=resource, changes=changes, validate_only=validate_only
    )
    return Call(
        "AdminService/IncrementalAlterConfigs",
        request,
        admin_pb2.IncrementalAlterConfigsResponse,
        lambda _: None,
        writes=True,
    )


def status() -> Call:
    return Call(
        "AdminService/GetStatus",
        admin_pb2.GetStatusRequest(),
        admin_pb2.GetStatusResponse,
        lambda response: response,
    )


def list_objects(page_token: str) -> Call:
    """Result: objects, next page token (empty: no more)."""
    request = admin_pb2.ListObjectsRequest(page_token=page_token, limit=PAGE)
    return Call(
        "AdminService/ListObjects",
        request,
        admin_pb2.ListObjectsResponse,
        lambda response: (list(response.objects), response.next_page_token),
    )


def describe_object(key: str) -> Call:
    return Call(
        "AdminService/DescribeObject",
        admin_pb2.DescribeObjectRequest(key=key),
        admin_pb2.DescribeObjectResponse,
        lambda response: response,
    )


def backup_request(_: None) -> bytes:
    return admin_pb2.BackupRequest().SerializeToString()


def backup_data(response: bytes) -> bytes:
    return admin_pb2.BackupResponse.FromString(response).data


def delete_records(topic: str, partition: int, before_offset: int | None) -> Call:
    """Result: the new log start offset."""
    request = log_pb2.DeleteRecordsRequest()
    part = request.topics.add(topic=topic).partitions.add(partition=partition)
    if before_offset is not None:
        part.offset = before_offset

    def read(response: Any) -> int:
        if len(response.topics) != 1 or len(response.topics[0].partitions) != 1:
            raise Internal("the answer is not about the partition asked for")
        result = response.topics[0].partitions[0]
        if result.HasField("error"):
            raise from_proto(result.error)
        return int(result.log_start_offset)

    return Call(
        "LogService/DeleteRecords", request, log_pb2.DeleteRecordsResponse, read, writes=True
    )
