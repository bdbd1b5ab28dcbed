"""A window of a partition through a node: Fetch, one answer ahead of the decoder."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any, NamedTuple

import grpc

from streamlog.client.calls.fetch import fetch_partition
from streamlog.client.channel import Call, Caller, typed_error
from streamlog.client.consume.answers import without_aborted
from streamlog.codec.batch import scan
from streamlog.errors import (
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

log = logging.getLogger(__name__)

ANSWER_BYTES = 8 << 20
WAIT_MS = 500
EMPTY_ANSWERS_MAX = TIMEOUT_MS // WAIT_MS
"""Empty answers in a row, each after WAIT_MS, from a partition that ends before the planned end."""


class _Pending(NamedTuple):
    """A fetch under way."""

    call: Call
    future: Any


class ServiceReader:
    """Reads through one channel. The caller closes it."""

    def __init__(self, server: str, place: ReadPlace) -> None:
        self._place = place
        self._caller = Caller(server, client_id=CLIENT_ID, timeout_ms=TIMEOUT_MS, tls=place.tls)

    def close(self) -> None:
        self._caller.close()

    def chunks(self, piece: ServicePiece) -> Iterator[Chunk]:
        """Chunks in order.

        Errors: DataLost, Unavailable (also if the partition ends before the planned end),
        Unauthorized.
        """
        offset, empty = piece.start, 0
        pending = self._start(piece, offset)
        while offset < piece.end:
            try:
                result = self._finish(pending)
            except OffsetOutOfRange as error:
                start = int(error.fields.get("start_offset", -1))
                message = (
                    f"offsets {offset} to {piece.end} of {piece.topic}-{piece.partition} were "
                    f"planned and are gone ({error.message})"
                )
                if start <= offset:
                    raise DataLost(message) from error
                if self._place.fail_on_data_loss:
                    message += "; failOnDataLoss=false goes on without them"
                    raise DataLost(message) from error
                log.warning(
                    "offsets %d to %d of %s-%d are gone; the read goes on without them, for "
                    "failOnDataLoss is false",
                    offset,
                    min(start, piece.end),
                    piece.topic,
                    piece.partition,
                )
                offset = start
                if offset < piece.end:
                    pending = self._start(piece, offset)
                continue
            except UnknownTopicOrPartition as error:
                message = (
                    f"offsets {offset} to {piece.end} of {piece.topic}-{piece.partition} were "
                    "planned and are gone: the topic was deleted, or deleted and recreated"
                )
                if self._place.fail_on_data_loss:
                    message += "; failOnDataLoss=false goes on without them"
                    raise DataLost(message) from error
                log.warning(
                    "%s; the read goes on without them, for failOnDataLoss is false", message
                )
                return
            begun, offset = offset, max(offset, result.next_offset)
            # A node that throttles readers, or closes, may answer early with nothing.
            empty = empty + 1 if self._end(result) <= begun else 0
            if empty == EMPTY_ANSWERS_MAX:
                raise Unavailable(
                    f"{piece.topic}-{piece.partition} ends at offset {offset}, and was to be read "
                    f"to {piece.end}: the topic was recreated, lost records, or has a transaction "
                    "open again; run the query again"
                )
            if offset < piece.end:
                pending = self._start(piece, offset)
            data = _committed(result)
            if len(data):
                yield Chunk(piece.topic, piece.partition, begun, min(offset, piece.end), data)

    def _end(self, result: Any) -> int:
        """Where what may be read ends, as of an answer."""
        if self._place.isolation == "read_committed":
            return int(result.last_stable_offset)
        return int(result.high_watermark)

    def _start(self, piece: ServicePiece, offset: int) -> _Pending:
        call = fetch_partition(
            piece.topic,
            piece.topic_id,
            piece.partition,
            offset,
            isolation=self._place.isolation,
            max_wait_ms=WAIT_MS,
            max_bytes=ANSWER_BYTES,
        )

        future = self._caller.method(call).future(
            call.request, timeout=TIMEOUT_MS / 1000, metadata=self._caller.metadata
        )
        return _Pending(call, future)

    def _finish(self, pending: _Pending) -> Any:
        """The answer under way, or after a retryable error the answer of another call."""
        try:
            return pending.call.read(pending.future.result())
        except grpc.RpcError as rpc_error:
            error: StreamlogError = typed_error(rpc_error, writes=False)
        except StreamlogError as answered:
            error = answered
        if not error.is_retryable:
            raise error
        return self._caller.run(pending.call)


def _committed(result: Any) -> Buffer:
    """The record batches, without those of aborted transactions."""
    data: bytes = result.record_batches
    if not result.aborted_transactions:
        return data
    aborted = [(txn.first_offset, txn.producer_id) for txn in result.aborted_transactions]
    kept = without_aborted(scan(data, verify_crc=False), aborted)
    return b"".join([batch.view for batch in kept])
