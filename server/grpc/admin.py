"""AdminService over gRPC; in a request for several topics each topic has its own error."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

import grpc

from streamlog.errors import DeadlinePassed, Invalid, StreamlogError
from streamlog.model.located import OffsetWindow
from streamlog.server.context import RequestContext
from streamlog.server.grpc import client_quotas
from streamlog.server.grpc.calls import Calls, Handlers, Rpc, Unary, deserializer
from streamlog.server.grpc.conversion import isolation
from streamlog.server.services.admin import AdminService, DescribedPartition
from streamlog.server.services.config_entries import ConfigEntry, ConfigSource
from streamlog.server.services.configs import (
    ConfigChange,
    ConfigOperation,
    ConfigService,
    ResourceKind,
)
from streamlog.server.services.kv import checked_limit
from streamlog.server.services.locating import LocatedPart, LocateService
from streamlog.server.services.objects import ObjectService, ObjectSummary
from streamlog.server.services.quotas.quota_service import QuotaService
from streamlog.server.services.status import StatusService
from streamlog.v1 import admin_pb2
from streamlog.v1support.errors import to_proto

SERVICE = "streamlog.v1.AdminService"
TOPICS_PER_REQUEST_MAX = 1000
UNREAD_S = 60
"""A client that does not read a part of the answer for this long ends the call."""

_SOURCES = {
    ConfigSource.TOPIC: admin_pb2.CONFIG_SOURCE_TOPIC,
    ConfigSource.BROKER: admin_pb2.CONFIG_SOURCE_BROKER,
    ConfigSource.ALL_BROKERS: admin_pb2.CONFIG_SOURCE_ALL_BROKERS,
    ConfigSource.STATIC_BROKER: admin_pb2.CONFIG_SOURCE_STATIC_BROKER,
    ConfigSource.DEFAULT: admin_pb2.CONFIG_SOURCE_DEFAULT,
}
_METHODS = (
    "CreateTopics",
    "DeleteTopics",
    "ListTopics",
    "DescribeTopics",
    "CreatePartitions",
    "DescribeConfigs",
    "IncrementalAlterConfigs",
    "GetStatus",
    "ListObjects",
    "DescribeObject",
    "PinObjects",
    "UnpinObjects",
)


class GrpcAdmin:
    def __init__(
        self,
        admin: AdminService,
        configs: ConfigService,
        objects: ObjectService,
        locating: LocateService,
        status: StatusService,
        quotas: QuotaService,
        *,
        calls: Calls,
    ) -> None:
        self._admin = admin
        self._configs = configs
        self._objects = objects
        self._locating = locating
        self._status = status
        self._quotas = quotas
        self._calls = calls

    def handlers(self) -> Handlers:
        handles: tuple[Unary, ...] = (
            self._create_topics,
            self._delete_topics,
            self._list_topics,
            self._describe_topics,
            self._create_partitions,
            self._describe_configs,
            self._alter_configs,
            self._get_status,
            self._list_objects,
            self._describe_object,
            self._pin_objects,
            self._unpin_objects,
        )
        raw: dict[str, Any] = {
            name: grpc.unary_unary_rpc_method_handler(
                self._calls.unary(f"AdminService/{name}", handle),
                request_deserializer=deserializer(getattr(admin_pb2, f"{name}Request")),
                response_serializer=getattr(admin_pb2, f"{name}Response").SerializeToString,
            )
            for name, handle in zip(_METHODS, handles, strict=True)
        }
        raw["Backup"] = grpc.unary_stream_rpc_method_handler(
            self._calls.streaming("AdminService/Backup", self._send_backup),
            request_deserializer=deserializer(admin_pb2.BackupRequest),
            response_serializer=admin_pb2.BackupResponse.SerializeToString,
        )
        raw["LocateRecords"] = grpc.unary_stream_rpc_method_handler(
            self._calls.streaming("AdminService/LocateRecords", self._locate_records),
            request_deserializer=deserializer(admin_pb2.LocateRecordsRequest),
            response_serializer=admin_pb2.LocateRecordsResponse.SerializeToString,
        )
        return grpc.method_handlers_generic_handler(SERVICE, raw)

    async def _create_topics(
        self, context: RequestContext, request: admin_pb2.CreateTopicsRequest, _: Rpc
    ) -> admin_pb2.CreateTopicsResponse:
        _check_count(len(request.topics))
        response = admin_pb2.CreateTopicsResponse()
        for topic in request.topics:
            out = response.topics.add(name=topic.name)
            try:
                made = await self._admin.create_topic(
                    context, topic.name, topic.partitions, topic.configs, request.validate_only
                )
            except StreamlogError as error:
                out.error.CopyFrom(to_proto(error))
            else:
                out.topic_id = made.topic_id
                out.partitions = made.partitions
        return response

    async def _delete_topics(
        self, context: RequestContext, request: admin_pb2.DeleteTopicsRequest, _: Rpc
    ) -> admin_pb2.DeleteTopicsResponse:
        _check_count(len(request.names))
        response = admin_pb2.DeleteTopicsResponse()
        for name in request.names:
            out = response.topics.add(name=name)
            try:
                await self._admin.delete_topic(context, name)
            except StreamlogError as error:
                out.error.CopyFrom(to_proto(error))
        return response

    async def _list_topics(
        self, context: RequestContext, request: admin_pb2.ListTopicsRequest, _: Rpc
    ) -> admin_pb2.ListTopicsResponse:
        topics = self._admin.list_topics(context, request.after, checked_limit(request.limit))
        return admin_pb2.ListTopicsResponse(
            topics=[
                admin_pb2.TopicSummary(
                    name=topic.name, topic_id=topic.topic_id, partitions=topic.partitions
                )
                for topic in topics
            ]
        )

    async def _describe_topics(
        self, context: RequestContext, request: admin_pb2.DescribeTopicsRequest, _: Rpc
    ) -> admin_pb2.DescribeTopicsResponse:
        """A name that stands there twice is answered once: its answer has all partitions."""
        _check_count(len(request.names))
        deadline = self._admin.open_deadline(context)
        response = admin_pb2.DescribeTopicsResponse()
        for name in dict.fromkeys(request.names):
            out = response.topics.add(name=name)
            try:
                topic = await self._admin.topic(
                    context, name, auto_create=request.allow_auto_create
                )
            except StreamlogError as error:
                out.error.CopyFrom(to_proto(error))
                continue
            out.topic_id = topic.topic_id
            out.configs.update(topic.configs)
            out.capped_configs.update(self._configs.capped(topic.configs))
            for described in await self._admin.partitions(name, topic.partitions, deadline):
                self._set_partition(out.partitions.add(), described)
        return response

    def _set_partition(
        self, out: admin_pb2.PartitionDescription, described: DescribedPartition
    ) -> None:
        out.partition = described.partition
        if described.error is not None:
            out.error.CopyFrom(to_proto(described.error))
        description = described.description
        if description is None:
            return
        out.leader_node = described.leader_node or 0
        out.leader_epoch = description.leader_epoch
        out.log_start_offset = description.log_start_offset
        out.high_watermark = description.high_watermark
        out.last_stable_offset = description.last_stable_offset
        out.log_end_offset = description.log_end_offset
        out.size_bytes = description.size_bytes
        out.segments = description.segments
        # Ids are 0 where the partition's data does not lie on streams.
        out.meta_stream_id = description.storage_ids.get("meta", 0)
        out.data_stream_id = description.storage_ids.get("data", 0)
        out.time_stream_id = description.storage_ids.get("time", 0)
        out.txn_stream_id = description.storage_ids.get("txn", 0)
        out.fencing_token = description.fencing_token

    async def _create_partitions(
        self, context: RequestContext, request: admin_pb2.CreatePartitionsRequest, _: Rpc
    ) -> admin_pb2.CreatePartitionsResponse:
        await self._admin.create_partitions(context, request.topic, request.partitions)
        return admin_pb2.CreatePartitionsResponse()

    async def _describe_configs(
        self, context: RequestContext, request: admin_pb2.DescribeConfigsRequest, _: Rpc
    ) -> admin_pb2.DescribeConfigsResponse:
        resource = request.resource
        if client_quotas.is_of_clients(resource):
            quotas = client_quotas.entries(self._quotas, context, resource)
            return admin_pb2.DescribeConfigsResponse(entries=quotas)
        entries = await self._configs.describe(context, _kind(resource), resource.name)
        return admin_pb2.DescribeConfigsResponse(
            entries=[_config_entry(entry) for entry in entries]
        )

    async def _alter_configs(
        self, context: RequestContext, request: admin_pb2.IncrementalAlterConfigsRequest, _: Rpc
    ) -> admin_pb2.IncrementalAlterConfigsResponse:
        changes = []
        for change in request.changes:
            if change.operation not in (1, 2, 3, 4):
                raise Invalid(
                    f"{change.name[:80]}: give an operation: SET, DELETE, APPEND, SUBTRACT"
                )
            operation = ConfigOperation(int(change.operation))
            changes.append(ConfigChange(change.name, operation, change.value))
        resource, validate_only = request.resource, request.validate_only
        if client_quotas.is_of_clients(resource):
            await client_quotas.alter(
                self._quotas, context, resource, changes, validate_only=validate_only
            )
            return admin_pb2.IncrementalAlterConfigsResponse()
        await self._configs.alter(
            context,
            _kind(resource),
            resource.name,
            changes,
            validate_only=validate_only,
        )
        return admin_pb2.IncrementalAlterConfigsResponse()

    async def _get_status(
        self, context: RequestContext, _request: admin_pb2.GetStatusRequest, _: Rpc
    ) -> admin_pb2.GetStatusResponse:
        fields = await self._status.status(context)
        listeners = [admin_pb2.ListenerStatus(**listener) for listener in fields.pop("listeners")]
        return admin_pb2.GetStatusResponse(**fields, listeners=listeners)

    async def _send_backup(
        self, context: RequestContext, _request: admin_pb2.BackupRequest, rpc: Rpc
    ) -> None:
        async for data in self._status.backup(context):
            await rpc.write(admin_pb2.BackupResponse(data=data))

    async def _list_objects(
        self, context: RequestContext, request: admin_pb2.ListObjectsRequest, _: Rpc
    ) -> admin_pb2.ListObjectsResponse:
        objects, token = await self._objects.list(
            context, request.page_token or None, checked_limit(request.limit, most=1000)
        )
        return admin_pb2.ListObjectsResponse(
            objects=[_summary(summary) for summary in objects], next_page_token=token or ""
        )

    async def _describe_object(
        self, context: RequestContext, request: admin_pb2.DescribeObjectRequest, _: Rpc
    ) -> admin_pb2.DescribeObjectResponse:
        described = await self._objects.describe(context, request.key)
        return admin_pb2.DescribeObjectResponse(
            object=_summary(described.summary),
            format_version=described.format_version,
            cluster_id=described.cluster_id,
            tenure=described.tenure,
            blocks=[
                admin_pb2.ObjectBlock(
                    stream_id=block.stream_id,
                    epoch=block.epoch,
                    start_offset=block.start,
                    end_offset=block.end,
                    position=block.position,
                    length=block.length,
                    compression=block.compression,
                )
                for block in described.blocks
            ],
        )

    async def _pin_objects(
        self, context: RequestContext, request: admin_pb2.PinObjectsRequest, _: Rpc
    ) -> admin_pb2.PinObjectsResponse:
        renewed = request.pin_id if request.HasField("pin_id") else None
        pin_id = await self._locating.pin(context, renewed, request.owner, request.ttl_ms)
        return admin_pb2.PinObjectsResponse(pin_id=pin_id)

    async def _unpin_objects(
        self, context: RequestContext, request: admin_pb2.UnpinObjectsRequest, _: Rpc
    ) -> admin_pb2.UnpinObjectsResponse:
        await self._locating.unpin(context, request.pin_id)
        return admin_pb2.UnpinObjectsResponse()

    async def _locate_records(
        self, context: RequestContext, request: admin_pb2.LocateRecordsRequest, rpc: Rpc
    ) -> None:
        windows = [
            OffsetWindow(window.topic, window.partition, window.start_offset, window.end_offset)
            for window in request.windows
        ]
        level = isolation(request.isolation_level)
        async with aclosing(self._locating.locate(context, windows, level)) as parts:
            async for part in parts:
                await _write(rpc, _part_to_proto(part))


async def _write(rpc: Rpc, answer: admin_pb2.LocateRecordsResponse) -> None:
    """Errors: DeadlinePassed if the client does not read, since other requests wait meanwhile."""
    try:
        async with asyncio.timeout(UNREAD_S):
            await rpc.write(answer)
    except TimeoutError as error:
        raise DeadlinePassed(
            f"the client took nothing of the answer for {UNREAD_S} s; ask again, and read on"
        ) from error


def _part_to_proto(part: LocatedPart) -> admin_pb2.LocateRecordsResponse:
    out = admin_pb2.LocateRecordsResponse(
        revision=part.revision, without_objects=part.without_objects
    )
    for window, span in part.aborted:
        out.aborted.add(
            window=window,
            producer_id=span.producer_id,
            first_offset=span.first_offset,
            last_offset=span.last_offset,
        )
    for run in part.runs:
        out.runs.add(
            window=run.window,
            stream_id=run.stream_id,
            start_offset=run.start,
            shift=run.shift,
            end_offsets=run.ends,
            object_ids=run.objects,
            size_bytes=run.size_bytes,
        )
    if part.objects is not None:
        out.object_ids.extend(part.objects.ids)
        out.index_positions.extend(part.objects.index_positions)
        out.index_lengths.extend(part.objects.index_lengths)
        out.index_crcs.extend(part.objects.index_crcs)
        for object_id, places in part.objects.placements.items():
            for stream_id, base, epoch, leader_epoch in places:
                out.attached.add(
                    object_id=object_id,
                    stream_id=stream_id,
                    base=base,
                    epoch=epoch,
                    leader_epoch=leader_epoch,
                )
    return out


def _check_count(count: int) -> None:
    if count > TOPICS_PER_REQUEST_MAX:
        raise Invalid(
            f"the request names {count} topics; at most {TOPICS_PER_REQUEST_MAX} are allowed"
        )


def _kind(resource: admin_pb2.ConfigResource) -> ResourceKind:
    if resource.type not in (1, 2, 3):
        raise Invalid(
            "give the resource's type: topic, broker, broker default, client or client default"
        )
    return ResourceKind(int(resource.type))


def _config_entry(entry: ConfigEntry) -> admin_pb2.ConfigEntry:
    return admin_pb2.ConfigEntry(
        name=entry.name,
        value="" if entry.is_sensitive else entry.value,
        source=entry.source,
        read_only=entry.is_read_only,
        documentation=entry.documentation,
        default_value=entry.default,
        configured_value=entry.configured,
        source_kind=_SOURCES[entry.kafka_source],
        synonyms=[
            admin_pb2.ConfigSynonym(
                name=synonym.name,
                value="" if entry.is_sensitive else synonym.value,
                source=_SOURCES[synonym.source],
            )
            for synonym in entry.synonyms
        ],
        type=entry.type.name.lower(),
        sensitive=entry.is_sensitive,
    )


def _summary(summary: ObjectSummary) -> admin_pb2.ObjectSummary:
    return admin_pb2.ObjectSummary(
        key=summary.info.key,
        object_id=summary.object_id,
        size_bytes=summary.info.size_bytes,
        modified_ms=summary.info.modified_ms,
        live=summary.is_live,
    )
