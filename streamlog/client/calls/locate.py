"""Calls of readers that read objects from the store themselves."""

from __future__ import annotations

import time
from array import array
from collections.abc import Sequence
from typing import Any

import grpc

from streamlog.client.calls.topic import ISOLATION
from streamlog.client.channel import Call, Caller, Retry, typed_error
from streamlog.errors import StreamlogError
from streamlog.model.located import (
    AbortedSpan,
    Located,
    LocatedRun,
    ObjectTable,
    OffsetWindow,
)
from streamlog.v1 import admin_pb2

ANSWER_TIMEOUT_S = 600
"""For one whole answer, including its wait for a turn on the node."""


def pin_objects(pin_id: int | None, owner: str, ttl_ms: int) -> Call:
    """Result: the pin's id. None: a new pin. Repeated, a lost answer leaves a pin that ends."""
    request = admin_pb2.PinObjectsRequest(pin_id=pin_id, owner=owner, ttl_ms=ttl_ms)
    return Call(
        "AdminService/PinObjects",
        request,
        admin_pb2.PinObjectsResponse,
        lambda response: int(response.pin_id),
    )


def unpin_objects(pin_id: int) -> Call:
    request = admin_pb2.UnpinObjectsRequest(pin_id=pin_id)
    return Call(
        "AdminService/UnpinObjects", request, admin_pb2.UnpinObjectsResponse, lambda _: None
    )


def locate_records(
    caller: Caller, windows: Sequence[OffsetWindow], isolation: str, *, timeout_ms: float
) -> Located:
    """Where the windows' records lie; records in no object yet are missing at a window's end.

    `isolation`: read_committed asks for aborted transactions, too. The whole call is repeated for
    up to `timeout_ms` after errors that may pass. Errors: those of the server; Unavailable where
    the answer breaks off.
    """
    retry = Retry(caller, timeout_ms)
    while True:
        try:
            return _located(caller, windows, isolation)
        except StreamlogError as error:
            wait_s = retry.wait_s(error)
        time.sleep(wait_s)


def _located(caller: Caller, windows: Sequence[OffsetWindow], isolation: str) -> Located:
    request = admin_pb2.LocateRecordsRequest(isolation_level=ISOLATION[isolation])
    for window in windows:
        request.windows.add(
            topic=window.topic,
            partition=window.partition,
            start_offset=window.start,
            end_offset=window.end,
        )
    call: Any = caller.channel.unary_stream(
        "/streamlog.v1.AdminService/LocateRecords",
        request_serializer=admin_pb2.LocateRecordsRequest.SerializeToString,
        response_deserializer=admin_pb2.LocateRecordsResponse.FromString,
    )
    runs: list[LocatedRun] = []
    objects = ObjectTable()
    aborted: dict[int, list[AbortedSpan]] = {}
    without_objects: set[int] = set()
    revision = 0
    try:
        for answer in call(request, timeout=ANSWER_TIMEOUT_S, metadata=caller.metadata):
            revision = answer.revision
            without_objects.update(answer.without_objects)
            for span in answer.aborted:
                entry = AbortedSpan(span.producer_id, span.first_offset, span.last_offset)
                aborted.setdefault(span.window, []).append(entry)
            runs += [_run(run) for run in answer.runs]
            objects.ids.extend(answer.object_ids)
            objects.index_positions.extend(answer.index_positions)
            objects.index_lengths.extend(answer.index_lengths)
            objects.index_crcs.extend(answer.index_crcs)
            # Those of an object come together, perhaps more than once.
            placements: dict[int, list[tuple[int, int, int, int]]] = {}
            for part in answer.attached:
                placement = (part.stream_id, part.base, part.epoch, part.leader_epoch)
                placements.setdefault(part.object_id, []).append(placement)
            objects.placements.update(placements)
    except grpc.RpcError as error:
        raise typed_error(error, writes=False) from None
    return Located(revision, runs, objects, aborted, frozenset(without_objects))


def _run(run: Any) -> LocatedRun:
    return LocatedRun(
        window=run.window,
        stream_id=run.stream_id,
        start=run.start_offset,
        shift=run.shift,
        ends=array("q", run.end_offsets),
        objects=array("Q", run.object_ids),
        size_bytes=run.size_bytes,
    )
