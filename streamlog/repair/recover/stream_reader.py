"""Reads a stream's batches straight from objects, in order: for recovery."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence

from streamlog.metadata.interface import ObjectRow
from streamlog.model.batch import StoredBatch
from streamlog.objectstore.interface import ObjectStore
from streamlog.objectstore.object_reader import ObjectReader
from streamlog.repair.recover.resolve import Piece
from streamlog.runtime.offload import Offload


async def read_batches(
    store: ObjectStore,
    offload: Offload,
    stream_id: int,
    pieces: Sequence[Piece],
    objects: Mapping[int, ObjectRow],
) -> AsyncIterator[StoredBatch]:
    """Batches that begin in a piece. Errors: ObjectNotFound, Corrupt, StoreUnavailable."""
    reader = ObjectReader(store, offload)
    for piece in pieces:
        row = objects[piece.object_id]
        async for batch in reader.batches(row, stream_id, piece.start, piece.end):
            yield batch
