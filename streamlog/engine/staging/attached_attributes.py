"""Attributes of what a commit attached, object by object: each index region is read once.

Stream by stream it would be read once for each of its streams, or held in memory meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence

from streamlog.engine.read.block_reader import BlockReader
from streamlog.format.object.index import attributes_by_block
from streamlog.metadata.interface import ObjectRow, StreamView
from streamlog.model.batch import BatchAttributes

_INDEXES_AHEAD = 16
"""Index regions that are on their way while one is looked at."""
_ROWS_AT_ONCE = 256
"""Objects that are looked up before others get a turn: about 1 ms."""


async def attached_attributes(
    metadata: StreamView,
    blocks: BlockReader,
    object_ids: Iterable[int],
    *,
    ahead_bytes_max: int,
) -> AsyncIterator[tuple[int, Sequence[BatchAttributes]]]:
    """Runs of batches: the stream's id, and a block's batches at their offsets in the stream.

    A stream's runs come in the order of the objects. `ahead_bytes_max`: of index regions, less than
    `blocks` keeps. Errors: ObjectNotFound, StoreUnavailable, Corrupt.
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
    """At once: while all of them are read, compaction may put others in the place of some, which
    stay in the store for a while and are not known any more. One that is dead is left out."""
    found: list[ObjectRow] = []
    for number, object_id in enumerate(object_ids):
        if number % _ROWS_AT_ONCE == _ROWS_AT_ONCE - 1:
            await asyncio.sleep(0)
        row = await metadata.object(object_id)
        if row is not None:
            found.append(row)
    return found
