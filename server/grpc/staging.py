"""StagedWriteService over gRPC."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

import grpc

from streamlog.coordinator.api import ProducerIdAndEpoch
from streamlog.errors import Invalid
from streamlog.log.staged_logs import CommittedRange, ManifestEntry
from streamlog.model.partition import TopicPartition
from streamlog.runtime.buffers import Buffer
from streamlog.server.context import RequestContext
from streamlog.server.grpc.calls import Calls, Handlers, Rpc, deserializer, parse
from streamlog.server.grpc.transactions import producer_of
from streamlog.server.limits.in_flight import Budgets
from streamlog.server.services.staging import StagingService
from streamlog.v1 import staging_pb2

SERVICE = "streamlog.v1.StagedWriteService"
_WORK_AT_ONCE = 10_000
"""Partitions of a manifest that are read before other tasks run: about 1 ms."""
_OBJECT_WORK = 20
"""The work of an entry without partitions, in partitions."""


class GrpcStaging:
    def __init__(self, staging: StagingService, *, calls: Calls, budgets: Budgets) -> None:
        self._staging = staging
        self._calls = calls
        self._budgets = budgets

    def handlers(self) -> Handlers:
        calls = self._calls
        raw: dict[str, Any] = {
            "Stage": grpc.unary_unary_rpc_method_handler(
                calls.unary("StagedWriteService/Stage", self._on_stage),
                response_serializer=staging_pb2.StageResponse.SerializeToString,
            )
        }
        for name, handle, request, response in (
            ("Attach", self._on_attach, staging_pb2.AttachRequest, staging_pb2.AttachResponse),
            ("Commit", self._on_commit, staging_pb2.CommitRequest, staging_pb2.CommitResponse),
            ("Status", self._on_status, staging_pb2.StatusRequest, staging_pb2.StatusResponse),
            ("Abort", self._on_abort, staging_pb2.AbortRequest, staging_pb2.AbortResponse),
        ):
            raw[name] = grpc.unary_unary_rpc_method_handler(
                calls.unary(f"StagedWriteService/{name}", handle),
                request_deserializer=deserializer(request),
                response_serializer=response.SerializeToString,
            )
        return grpc.method_handlers_generic_handler(SERVICE, raw)

    async def _on_stage(
        self, context: RequestContext, message: bytes, _: Rpc
    ) -> staging_pb2.StageResponse:
        with self._budgets.of(context.peer) as budget:
            await budget.take(len(message))
            try:
                request = parse(staging_pb2.StageRequest, message)
                stored = await self._staging.stage(
                    context,
                    request.writer_id,
                    request.attempt,
                    _batches(request),
                    request.expires_ms,
                    _producer(request),
                )
            finally:
                budget.release(len(message))
        response = staging_pb2.StageResponse(
            object_id=stored.staged.object_id, expires_at_ms=stored.staged.expires_ms
        )
        for part in stored.parts:
            response.parts.add(
                topic=part.partition.topic,
                partition=part.partition.partition,
                records=part.records,
                size_bytes=part.size_bytes,
            )
        return response

    async def _on_attach(
        self, context: RequestContext, request: staging_pb2.AttachRequest, _: Rpc
    ) -> staging_pb2.AttachResponse:
        attached = await self._staging.attach(
            context,
            request.transactional_id,
            producer_of(request.producer),
            request.epoch,
            await _manifest(request.objects),
        )
        return staging_pb2.AttachResponse(
            was_attached=attached.was_committed, parts=_parts(attached.parts)
        )

    async def _on_commit(
        self, context: RequestContext, request: staging_pb2.CommitRequest, _: Rpc
    ) -> staging_pb2.CommitResponse:
        manifest = await _manifest(request.objects)
        committed = await self._staging.commit(context, request.writer_id, request.epoch, manifest)
        return staging_pb2.CommitResponse(
            epoch=committed.epoch,
            was_committed=committed.was_committed,
            parts=_parts(committed.parts),
        )

    async def _on_status(
        self, context: RequestContext, request: staging_pb2.StatusRequest, _: Rpc
    ) -> staging_pb2.StatusResponse:
        status = await self._staging.status(context, request.writer_id)
        return staging_pb2.StatusResponse(
            last_epoch=status.last_epoch if status.last_epoch >= 0 else None,
            committed_ms=status.committed_ms,
            parts=_parts(status.parts),
            staged_objects=status.staged_objects,
        )

    async def _on_abort(
        self, context: RequestContext, request: staging_pb2.AbortRequest, _: Rpc
    ) -> staging_pb2.AbortResponse:
        dropped = await self._staging.abort(
            context, request.writer_id, request.object_ids, _producer(request)
        )
        return staging_pb2.AbortResponse(dropped=dropped)


def _batches(request: staging_pb2.StageRequest) -> dict[TopicPartition, Buffer]:
    batches: dict[TopicPartition, Buffer] = {}
    for part in request.parts:
        partition = TopicPartition(part.topic, part.partition)
        if partition in batches:
            raise Invalid(f"{partition} is named twice; put its batches into one part")
        batches[partition] = part.batches
    return batches


def _producer(
    request: staging_pb2.StageRequest | staging_pb2.AbortRequest,
) -> ProducerIdAndEpoch | None:
    """Errors: Invalid."""
    return producer_of(request.producer) if request.HasField("producer") else None


async def _manifest(objects: Iterable[staging_pb2.StagedManifestEntry]) -> list[ManifestEntry]:
    """Entries in which only the first object with batches of a partition names that partition."""
    entries: list[ManifestEntry] = []
    seen: dict[str, set[int]] = {}
    work = 0
    for staged in objects:
        partitions: list[TopicPartition] = []
        for named in staged.partitions:
            work += len(named.partitions)
            named_before = seen.setdefault(named.topic, set())
            new = set(named.partitions) - named_before
            named_before |= new
            partitions += [TopicPartition(named.topic, number) for number in new]
        entries.append(ManifestEntry(staged.object_id, partitions))
        work += _OBJECT_WORK
        if work >= _WORK_AT_ONCE:
            work = 0
            await asyncio.sleep(0)
    return entries


def _parts(parts: Sequence[CommittedRange]) -> list[staging_pb2.CommittedPart]:
    return [
        staging_pb2.CommittedPart(
            topic=part.partition.topic,
            partition=part.partition.partition,
            start_offset=part.start_offset,
            end_offset=part.end_offset,
        )
        for part in parts
    ]
