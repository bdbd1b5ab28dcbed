"""StagedWriteService's calls. Each may be repeated: the second time it changes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from streamlog.client.channel import Call
from streamlog.client.producer_identity import ProducerIdentity
from streamlog.v1 import staging_pb2

SERVICE = "StagedWriteService"


Manifest = Sequence[tuple[int, Sequence[tuple[str, int]]]]
"""Object ids, and sorted partitions that no object before has."""


def stage(
    writer_id: str,
    attempt: str,
    parts: Sequence[tuple[str, int, bytes]],
    expires_ms: int,
    producer: ProducerIdentity | None = None,
) -> Call:
    """`producer`: whose transaction the batches belong to."""
    request = staging_pb2.StageRequest(
        writer_id=writer_id, attempt=attempt, expires_ms=expires_ms, producer=_producer(producer)
    )
    for topic, partition, batches in parts:
        request.parts.add(topic=topic, partition=partition, batches=batches)
    return _call("Stage", request, staging_pb2.StageResponse)


def commit(writer_id: str, epoch: int, manifest: Manifest) -> Call:
    request = staging_pb2.CommitRequest(writer_id=writer_id, epoch=epoch)
    _add(request.objects, manifest)
    return _call("Commit", request, staging_pb2.CommitResponse, writes=True)


def attach(
    transactional_id: str, producer: ProducerIdentity, epoch: int, manifest: Manifest
) -> Call:
    request = staging_pb2.AttachRequest(
        transactional_id=transactional_id, producer=_producer(producer), epoch=epoch
    )
    _add(request.objects, manifest)
    return _call("Attach", request, staging_pb2.AttachResponse, writes=True)


def status(writer_id: str) -> Call:
    request = staging_pb2.StatusRequest(writer_id=writer_id)
    return _call("Status", request, staging_pb2.StatusResponse)


def abort(
    writer_id: str, object_ids: Sequence[int], producer: ProducerIdentity | None = None
) -> Call:
    request = staging_pb2.AbortRequest(
        writer_id=writer_id, object_ids=object_ids, producer=_producer(producer)
    )
    return _call("Abort", request, staging_pb2.AbortResponse, writes=True)


def _add(objects: Any, manifest: Manifest) -> None:
    for object_id, partitions in manifest:
        entry = objects.add(object_id=object_id)
        for topic, group in groupby(partitions, key=lambda partition: partition[0]):
            entry.partitions.add(topic=topic, partitions=[number for _, number in group])


def _producer(producer: ProducerIdentity | None) -> staging_pb2.StagedProducer | None:
    if producer is None:
        return None
    return staging_pb2.StagedProducer(
        producer_id=producer.producer_id, producer_epoch=producer.epoch
    )


def _call(name: str, request: Any, response_class: Any, *, writes: bool = False) -> Call:
    return Call(f"{SERVICE}/{name}", request, response_class, lambda response: response, writes)
