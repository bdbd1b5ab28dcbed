"""One Spark task: its plan in, Arrow record batches out."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import asdict

import pyarrow as pa

from streamlog.codec.columns import decode_columns
from streamlog.errors import (
    Corrupt,
    CorruptMessage,
    ForeignCluster,
    Invalid,
    InvalidRecord,
    Unauthorized,
    Unavailable,
)
from streamlog.reading.blocks import ObjectStore
from streamlog.runtime.buffers import Buffer
from streamlog.spark.arrow import BatchMaker, wanted_of
from streamlog.spark.errors import DataLost
from streamlog.spark.plan.types import ReadPlace, ServicePiece, StorePiece, TaskPlan, as_service
from streamlog.spark.read.aborted import without_aborted_spans
from streamlog.spark.read.object_read import Chunk, PieceReader
from streamlog.spark.read.service_read import ServiceReader
from streamlog.spark.read.worker import Worker, worker
from streamlog.spark.read_metrics import ReadCounts, tell

log = logging.getLogger(__name__)

ROWS_MAX = 1 << 13
BYTES_MAX = 1 << 20
"""Bounds of one Arrow record batch: it fits into the processor's caches; larger ones gain
nothing."""


def read_task(
    plan: TaskPlan,
    place: ReadPlace,
    schema: pa.Schema,
    *,
    attempt: Mapping[str, int] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Record batches of `schema`; a partition's records in offset order.

    `attempt`: stage, partition and attempt number, for the read's metrics.

    Errors: DataLost, Unavailable, Unauthorized, ForeignCluster, Corrupt.
    """
    maker, wanted, counts = BatchMaker(schema), wanted_of(schema), ReadCounts()

    def batches() -> Iterator[pa.RecordBatch]:
        for chunk, is_stored in _chunks(plan, place, local):
            counts.add_bytes(len(chunk.data), is_stored=is_stored)
            try:
                for columns in decode_columns(
                    _committed(chunk),
                    start=chunk.start,
                    end=chunk.end,
                    wanted=wanted,
                    verify_crc=place.verify_crc,
                    rows_max=ROWS_MAX,
                    bytes_max=BYTES_MAX,
                ):
                    counts.add_records(columns.count, is_stored=is_stored)
                    yield maker.make(chunk.topic, chunk.partition, columns)
            except (CorruptMessage, InvalidRecord) as error:
                raise Corrupt(
                    f"{chunk.topic}-{chunk.partition}, offsets {chunk.start} to {chunk.end}: "
                    f"{error.message}; run streamlog fsck --deep",
                    object_key="",
                ) from error

    local, is_whole = worker(), False
    try:
        with local.keeping(place):
            yield from maker.together(batches())
        is_whole = True
    finally:
        tell("task", place.read_name, {**(attempt or {}), **asdict(counts), "is_whole": is_whole})


def _committed(chunk: Chunk) -> Buffer:
    """The chunk's data without aborted transactions. Errors: CorruptMessage."""
    return without_aborted_spans(chunk.data, chunk.aborted) if chunk.aborted else chunk.data


def _chunks(plan: TaskPlan, place: ReadPlace, local: Worker) -> Iterator[tuple[Chunk, bool]]:
    """Chunks, each with whether it comes from the store."""
    service = _Service(place)
    try:
        store = _store(plan, place, local)
        if store is None:
            for piece in plan.pieces:
                yield from service.chunks(as_service(piece, piece.start, piece.end))
            return
        for item in PieceReader(local, store, plan).chunks():
            if isinstance(item, Chunk):
                yield item, True
            else:
                yield from _from_node(item, place, service)
        for piece in plan.pieces:
            if isinstance(piece, ServicePiece):
                yield from service.chunks(piece)
    finally:
        service.close()


def _store(plan: TaskPlan, place: ReadPlace, local: Worker) -> ObjectStore | None:
    """None: the plan needs no store, or it cannot be opened here and the node may be used."""
    if place.store_url is None or not any(isinstance(piece, StorePiece) for piece in plan.pieces):
        return None
    try:
        return local.store(place.store_url, place.cluster_id)
    except (Unavailable, Unauthorized, ForeignCluster, Invalid) as error:
        if place.is_store_needed or place.server is None:
            raise
        log.warning("reading through the node, because the store cannot be opened here: %s", error)
        return None


def _from_node(
    lost: ServicePiece, place: ReadPlace, service: _Service
) -> Iterator[tuple[Chunk, bool]]:
    """Fetches records of a deleted object: compaction may have moved them to another."""
    if place.is_store_needed or place.server is None:
        raise DataLost(
            f"an object with offsets {lost.start} to {lost.end} of {lost.topic}-{lost.partition} "
            "is gone: the pin of this read ended before the task ran, or the records were deleted; "
            "run the query again, with a larger pinTtlMs if tasks wait for long"
        )
    yield from service.chunks(lost)


class _Service:
    """A reader through the node, opened when it is needed."""

    def __init__(self, place: ReadPlace) -> None:
        self._place = place
        self._reader: ServiceReader | None = None

    def chunks(self, piece: ServicePiece) -> Iterator[tuple[Chunk, bool]]:
        if self._reader is None:
            if self._place.server is None:
                raise Unavailable("the plan needs a node and none is named: set the option server")
            self._reader = ServiceReader(self._place.server, self._place)
        for chunk in self._reader.chunks(piece):
            yield chunk, False

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()
