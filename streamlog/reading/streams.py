"""Streams read straight from objects, at the places that a view of the metadata names."""

from __future__ import annotations

from collections.abc import AsyncIterator

from streamlog.codec.piecewise import first_at_or_after
from streamlog.format.object.index import decode_attributes
from streamlog.log.partition.batch_metadata import decode_batch_metadata
from streamlog.metadata.interface import LiveRange
from streamlog.model.batch import BatchAttributes, StoredBatch
from streamlog.objectstore.interface import ObjectStore
from streamlog.objectstore.keys import data_key
from streamlog.objectstore.object_reader import ObjectReader, get_exactly
from streamlog.repair.view import MetadataView
from streamlog.runtime.buffers import join
from streamlog.runtime.offload import Lane, Offload

RANGES_AT_ONCE = 64


async def _ranges(
    view: MetadataView, stream_id: int, start: int, end: int
) -> AsyncIterator[LiveRange]:
    offset = start
    while offset < end:
        ranges = await view.lookup.locate(stream_id, offset, end, RANGES_AT_ONCE)
        if not ranges:
            return
        for live in ranges:
            yield live
        offset = ranges[-1].end


async def read_stream(
    view: MetadataView,
    store: ObjectStore,
    offload: Offload,
    stream_id: int,
    start: int,
    end: int,
) -> AsyncIterator[StoredBatch]:
    """Batches that begin in [start, end). Errors: ObjectNotFound, Corrupt, StoreUnavailable."""
    reader = ObjectReader(store, offload)
    async for live in _ranges(view, stream_id, start, end):
        low, high = max(start, live.start), min(end, live.end)
        async for batch in reader.batches(live.object, stream_id, low, high):
            yield batch


async def read_stream_from_batch(
    view: MetadataView,
    store: ObjectStore,
    offload: Offload,
    stream_id: int,
    start: int,
    end: int,
) -> AsyncIterator[StoredBatch]:
    """As `read_stream`, and the batch that contains `start`, whole: it may begin before it."""
    reader = ObjectReader(store, offload)
    async for live in _ranges(view, stream_id, start, end):
        # The batch before `start` lies in the same object: little more is read.
        async for batch in reader.batches(live.object, stream_id, live.start, min(end, live.end)):
            if batch.end_offset > start:
                yield batch


async def read_attributes(
    view: MetadataView, store: ObjectStore, stream_id: int, start: int, end: int
) -> AsyncIterator[BatchAttributes]:
    """Attributes of the batches that overlap [start, end). Errors: as `read_stream`."""
    async for live in _ranges(view, stream_id, start, end):
        row, key = live.object, data_key(live.object.object_id)
        region = await get_exactly(store, key, row.index_position, row.index_length)
        batches = decode_attributes(
            region,
            stream_id,
            max(start, live.start),
            min(end, live.end),
            object_key=key,
            index_position=row.index_position,
            placements=row.placements,
        )
        for summary in batches:
            yield summary


async def first_offset_at(
    view: MetadataView,
    store: ObjectStore,
    offload: Offload,
    stream_id: int,
    start: int,
    end: int,
    time_ms: int,
    first_offset: int,
) -> int | None:
    """The log offset of the first record at or after `time_ms`, among stream offsets [start, end)
    and at or above the log's `first_offset`; None: there is none.

    Attributes in the index select the batch, so that one batch is read. Errors as `read_stream`.
    """
    async for summary in read_attributes(view, store, stream_id, start, end):
        if decode_batch_metadata(summary.attributes).max_timestamp_ms < time_ms:
            continue
        async for batch in read_stream(
            view, store, offload, stream_id, summary.base_offset, summary.base_offset + 1
        ):
            data = join(batch.parts)
            place = await offload.run(Lane.CPU, first_at_or_after, data, time_ms, first_offset)
            if place is not None:
                return place[0]
    return None
