"""Attributes of what a commit attached, object by object: each index region is read once.

Stream by stream it would be read once for each of its streams, or held in memory meanwhile.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Iterable, Sequence

from streamlog.engine.block_reader import BlockReader
from streamlog.engine.cold_reader import ReaderMetadata
from streamlog.format.object_index import attributes_by_block
from streamlog.metadata.interface import ObjectRow
from streamlog.model.batch import BatchAttributes

_INDEXES_AHEAD = 16
"""Index regions that are on their way while one is looked at."""


async def attached_attributes(
    metadata: ReaderMetadata, blocks: BlockReader, object_ids: Iterable[int]
) -> AsyncIterator[tuple[int, Sequence[BatchAttributes]]]:
    """Runs of batches: the stream's id, and a block's batches at their offsets in the stream.

    A stream's runs come in the order of the objects. An object that is dead by now is left out.
    Errors: ObjectNotFound, StoreUnavailable, Corrupt.
    """
    ahead: deque[ObjectRow] = deque()
    following = iter(object_ids)
    while True:
        while len(ahead) < _INDEXES_AHEAD:
            object_id = next(following, None)
            if object_id is None:
                break
            row = await metadata.object(object_id)
            if row is not None:
                blocks.load_index(row, with_body=False)
                ahead.append(row)
        if not ahead:
            return
        row = ahead.popleft()
        region = await blocks.index(row, with_body=False)
        for run in attributes_by_block(
            region.index, region.data, index_position=row.index_position
        ):
            yield run
