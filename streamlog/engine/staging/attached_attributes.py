"""Attributes of the batches that a commit attached, object by object.

So each index region is read once. Stream by stream, it would be read once for each of its streams,
or kept in memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence

from streamlog.engine.read.block_reader import BlockReader
from streamlog.format.object.index import attributes_by_block
from streamlog.metadata.interface import ObjectRow, StreamView
from streamlog.model.batch import BatchAttributes

_INDEXES_AHEAD = 16
"""Index regions that are loaded while one is used."""
_ROWS_AT_ONCE = 256
"""Objects that one step of the event loop looks up: about 1 ms."""


async def attached_attributes(
    metadata: StreamView,
    blocks: BlockReader,
    object_ids: Iterable[int],
    *,
    ahead_bytes_max: int,
) -> AsyncIterator[tuple[int, Sequence[BatchAttributes]]]:
    """Yields a stream id and the attributes of one block's batches, at their offsets in the stream.

    A stream's blocks come in the order of the objects. `ahead_bytes_max`: bytes of index regions to
    load ahead, less than `blocks` keeps. Errors: ObjectNotFound, StoreUnavailable, Corrupt.
    """
    rows = await _rows(metadata, object_ids)
    for number, row in enumerate(rows):
        size_bytes = 0
        for ahead in rows[number : number + _INDEXES_AHEAD]:
            size_bytes += ahead.index_length
            if size_bytes > ahead_bytes_max:
                break
            blocks.load_index(ahead, with_body=False)
        region = await blocks.index(row, with_body=False)
        for run in attributes_by_block(
            region.index, region.data, index_position=row.index_position
        ):
            yield run


async def _rows(metadata: StreamView, object_ids: Iterable[int]) -> list[ObjectRow]:
    """Looks up all objects first: while they are read, compaction may replace some, whose rows are
    then gone although the objects stay in the store for a while. Dead objects are left out."""
    rows: list[ObjectRow] = []
    for number, object_id in enumerate(object_ids):
        if number % _ROWS_AT_ONCE == _ROWS_AT_ONCE - 1:
            await asyncio.sleep(0)
        row = await metadata.object(object_id)
        if row is not None:
            rows.append(row)
    return rows
