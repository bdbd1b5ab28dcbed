"""StagedWriteService's calls. Each may be repeated: the second time it changes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from streamlog.client.channel import Call
from streamlog.v1 import staging_pb2

SERVICE = "StagedWriteService"


def stage(
    writer_id: str, attempt: str, parts: Sequence[tuple[str, int, bytes]], expires_ms: int
) -> Call:
    request = staging_pb2.StageRequest(writer_id=writer_id, attempt=attempt, expires_ms=expires_ms)
    for topic, partition, batches in parts:
        request.parts.add(topic=topic, partition=partition, batches=batches)
    return _call("Stage", request, staging_pb2.StageResponse)


def commit(
    writer_id: str, epoch: int, manifest: Sequence[tuple[int, Sequence[tuple[str, int]]]]
) -> Call:
    """`manifest`: object ids, and sorted partitions that no object before has."""
    request = staging_pb2.CommitRequest(writer_id=writer_id, epoch=epoch)
    for object_id, partitions in manifest:
        entry = request.objects.add(object_id=object_id)
        for topic, group in groupby(partitions, key=lambda partition: partition[0]):
            entry.partitions.add(topic=topic, partitions=[number for _, number in group])
    return _call("Commit", request, staging_pb2.CommitResponse, writes=True)


def status(writer_id: str) -> Call:
    request = staging_pb2.StatusRequest(writer_id=writer_id)
    return _call("Status", request, staging_pb2.StatusResponse)


def abort(writer_id: str, object_ids: Sequence[int]) -> Call:
    request = staging_pb2.AbortRequest(writer_id=writer_id, object_ids=object_ids)
    return _call("Abort", request, staging_pb2.AbortResponse, writes=True)


def _call(name: str, request: Any, response_class: Any, *, writes: bool = False) -> Call:
    return Call(f"{SERVICE}/{name}", request, response_class, lambda response: response, writes)
