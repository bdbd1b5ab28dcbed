"""A window of a partition through a node: Fetch, one answer ahead of what is decoded."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import grpc

from streamlog.client.calls.topic import ISOLATION
from streamlog.client.channel import Call, Caller, typed_error
from streamlog.client.consume.answers import without_aborted
from streamlog.codec.batch import scan
from streamlog.errors import (
    Internal,
    OffsetOutOfRange,
    StreamlogError,
    Unavailable,
    UnknownTopicOrPartition,
)
from streamlog.runtime.buffers import Buffer
from streamlog.spark.cluster.cluster import CLIENT_ID, TIMEOUT_MS
from streamlog.spark.errors import DataLost
from streamlog.spark.plan.types import ReadPlace, ServicePiece
from streamlog.spark.read.object_read import Chunk
from streamlog.v1 import log_pb2
from streamlog.v1support.errors import from_proto

log = logging.getLogger(__name__)

ANSWER_BYTES = 8 << 20
WAIT_MS = 500
EMPTY_ANSWERS_MAX = TIMEOUT_MS // WAIT_MS
"""In a row, each after WAIT_MS, of a partition that ends before what was planned."""


class ServiceReader:
    """Reads through one channel; close it."""

    def __init__(self, server: str, place: ReadPlace) -> None:
        self._place = place
        self._caller = Caller(server, client_id=CLIENT_ID, timeout_ms=TIMEOUT_MS)

    def close(self) -> None:
        self._caller.close()

    def chunks(self, piece: ServicePiece) -> Iterator[Chunk]:
        """In order.

        Errors: DataLost, Unavailable (also where the planned end is not reached any more),
        Unauthorized.
        """
        at, empty = piece.start, 0
        pending = self._start(piece, at)
        while at < piece.end:
            try:
                result = self._finish(pending, piece, at)
            except OffsetOutOfRange as error:
                start = int(error.fields.get("start_offset", -1))
                if self._place.fail_on_data_loss or start <= at:
                    raise DataLost(
                        f"offsets {at} to {piece.end} of {piece.topic}-{piece.partition} were "
                        f"planned and are gone ({error.message}); failOnDataLoss=false goes on "
                        "without them"
                    ) from error
                log.warning(
                    "offsets %d to %d of %s-%d are gone; the read goes on without them, for "
                    "failOnDataLoss is false",
                    at,
                    min(start, piece.end),
                    piece.topic,
                    piece.partition,
                )
                at = start
                if at < piece.end:
                    pending = self._start(piece, at)
                continue
            except UnknownTopicOrPartition as error:
                told = (
                    f"offsets {at} to {piece.end} of {piece.topic}-{piece.partition} were planned "
                    "and are gone: the topic was deleted, or deleted and made anew"
                )
                if self._place.fail_on_data_loss:
                    raise DataLost(f"{told}; failOnDataLoss=false goes on without them") from error
                log.warning("%s; the read goes on without them, for failOnDataLoss is false", told)
                return
            begun, at = at, max(at, result.next_offset)
            # A node that paces readers, or ends, may answer with nothing at once, and has it.
            empty = empty + 1 if result.high_watermark <= begun else 0
            if empty == EMPTY_ANSWERS_MAX:
                raise Unavailable(
                    f"{piece.topic}-{piece.partition} ends at offset {at}, and was to be read to "
                    f"{piece.end}: the topic was made anew, or lost records; run the query again"
                )
            if at < piece.end:
                pending = self._start(piece, at)
            data = _committed(result)
            if len(data):
                yield Chunk(piece.topic, piece.partition, begun, min(at, piece.end), data)

    def _call(self, piece: ServicePiece, offset: int) -> Call:
        request = log_pb2.FetchRequest(
            max_wait_ms=WAIT_MS,
            min_bytes=1,
            max_bytes=ANSWER_BYTES,
            isolation_level=ISOLATION[self._place.isolation],
        )
        topic = request.topics.add(topic=piece.topic, topic_id=piece.topic_id)
        topic.partitions.add(
            partition=piece.partition, fetch_offset=offset, partition_max_bytes=ANSWER_BYTES
        )
        return Call("LogService/Fetch", request, log_pb2.FetchResponse, _only)

    def _start(self, piece: ServicePiece, offset: int) -> Any:
        call = self._call(piece, offset)
        return self._caller.method(call).future(
            call.request, timeout=TIMEOUT_MS / 1000, metadata=self._caller.metadata
        )

    def _finish(self, pending: Any, piece: ServicePiece, offset: int) -> Any:
        """The answer under way; asked for again where that can help."""
        try:
            return _only(pending.result())
        except grpc.RpcError as rpc_error:
            error: StreamlogError = typed_error(rpc_error, writes=False)
        except StreamlogError as answered:
            error = answered
        if not error.is_retryable:
            raise error
        return self._caller.run(self._call(piece, offset))


def _only(response: Any) -> Any:
    """The one partition's result. Raises its error."""
    if response.HasField("error"):
        raise from_proto(response.error)
    if len(response.topics) != 1 or len(response.topics[0].partitions) != 1:
        raise Internal("the answer is not about the partition asked for")
    result = response.topics[0].partitions[0]
    if result.HasField("error"):
        raise from_proto(result.error)
    return result


def _committed(result: Any) -> Buffer:
    """Without the batches of aborted transactions."""
    data: bytes = result.record_batches
    if not result.aborted_transactions:
        return data
    aborted = [(one.first_offset, one.producer_id) for one in result.aborted_transactions]
    kept = without_aborted(scan(data, verify_crc=False), aborted)
    return b"".join([one.view for one in kept])
