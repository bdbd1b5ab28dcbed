"""Reads a stream's batches straight from objects, in order: for recovery, a block at a time."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence

from streamlog.format.object.block import BlockRow, decode_block
from streamlog.format.object.index import decode_index
from streamlog.metadata.interface import ObjectRow
from streamlog.model.batch import StoredBatch
from streamlog.objectstore.interface import ObjectStore
from streamlog.objectstore.keys import data_key
from streamlog.repair.recover.resolve import Piece
from streamlog.runtime.buffers import Buffer
from streamlog.runtime.offload import Lane, Offload


async def read_batches(
    store: ObjectStore,
    offload: Offload,
    stream_id: int,
    pieces: Sequence[Piece],
    objects: Mapping[int, ObjectRow],
) -> AsyncIterator[StoredBatch]:
    """Those that begin in a piece. Errors: ObjectNotFound, Corrupt, StoreUnavailable."""
    for piece in pieces:
        row = objects[piece.object_id]
        key = data_key(row.object_id)
        region = await store.get(key, row.index_position, row.index_length)
        index = decode_index(region, row, object_key=key)
        for block in index.blocks_for(stream_id, piece.start, piece.end):
            data = await store.get(key, block.position, block.length)
            for batch in await offload.run(Lane.CPU, _decode, data, block, key):
                if piece.start <= batch.base_offset < piece.end:
                    yield batch


def _decode(data: Buffer, block: BlockRow, key: str) -> list[StoredBatch]:
    return decode_block(data, block, object_key=key)
