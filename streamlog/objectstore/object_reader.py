"""Reads data objects: bytes that the metadata says are there, index regions, blocks.

`format.ranged_gets` plans the GETs, this module carries them out. It keeps nothing: caches, rate
limits and the number of GETs under way belong to its callers.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import contextmanager

from streamlog.errors import Corrupt, Invalid, ObjectNotFound
from streamlog.format.object.block import BlockRow, decode_block
from streamlog.format.object.index import ObjectIndex, decode_index
from streamlog.format.ranged_gets import plan_gets
from streamlog.format.rows import ObjectRow
from streamlog.model.batch import StoredBatch
from streamlog.objectstore.interface import ObjectStore
from streamlog.objectstore.keys import data_key
from streamlog.runtime.buffers import Buffer
from streamlog.runtime.offload import Lane, Offload

GET_BYTES = 4 << 20
"""A GET of blocks ends with the one that reaches this size."""


@contextmanager
def past_end_is_corrupt(key: str, start: int, length: int) -> Iterator[None]:
    """A request for bytes past an object's end raises Corrupt, not Invalid.

    The metadata says that these bytes are there: the object is wrong, and not the request.
    """
    try:
        yield
    except ObjectNotFound:
        raise
    except Invalid as error:
        raise _cut_short(key, start, length) from error


async def get_exactly(store: ObjectStore, key: str, start: int, length: int) -> memoryview:
    """`length` bytes from `start`, which the metadata says are there.

    Errors: ObjectNotFound, Corrupt (the object ends before), StoreUnavailable.
    """
    with past_end_is_corrupt(key, start, length):
        data = await store.get(key, start, length)
    if len(data) != length:
        raise _cut_short(key, start, length)
    return memoryview(data)


async def get_tail(store: ObjectStore, row: ObjectRow) -> memoryview:
    """From the index region to the object's end, which must be where the metadata has it.

    Errors: ObjectNotFound, Corrupt, StoreUnavailable.
    """
    key, start = data_key(row.object_id), row.index_position
    length = row.size_bytes - start
    with past_end_is_corrupt(key, start, length):
        # One byte more than there should be shows an object that is too long.
        data = await store.get(key, start, length + 1)
    if len(data) != length:
        info = await store.head(key)
        raise Corrupt(f"it has {info.size_bytes} bytes instead of {row.size_bytes}", object_key=key)
    return memoryview(data)


class ObjectReader:
    def __init__(self, store: ObjectStore, offload: Offload) -> None:
        self._store = store
        self._offload = offload

    async def index(self, row: ObjectRow) -> ObjectIndex:
        """Errors: ObjectNotFound, Corrupt, UnsupportedVersion, StoreUnavailable."""
        key = data_key(row.object_id)
        region = await get_exactly(self._store, key, row.index_position, row.index_length)
        return await self._offload.run(Lane.CPU, _decode_index, region, row, key)

    async def blocks(
        self, row: ObjectRow, blocks: Iterable[BlockRow]
    ) -> AsyncIterator[tuple[BlockRow, memoryview]]:
        """The blocks in the order given, each with its bytes as stored; neighbours by one GET.

        Errors: ObjectNotFound, Corrupt, StoreUnavailable.
        """
        key = data_key(row.object_id)
        for get in plan_gets(blocks, GET_BYTES):
            data = await get_exactly(self._store, key, get.start, get.length)
            for block in get.blocks:
                yield block, get.block_bytes(data, block)

    async def batches(
        self, row: ObjectRow, stream_id: int, start: int, end: int
    ) -> AsyncIterator[StoredBatch]:
        """A stream's batches that begin at offsets start to end (exclusive), in order.

        Errors: ObjectNotFound, Corrupt, UnsupportedVersion, StoreUnavailable.
        """
        key, index = data_key(row.object_id), await self.index(row)
        async for block, data in self.blocks(row, index.blocks_for(stream_id, start, end)):
            for batch in await self._offload.run(Lane.CPU, _decode_block, data, block, key):
                if start <= batch.base_offset < end:
                    yield batch


def _decode_index(region: Buffer, row: ObjectRow, key: str) -> ObjectIndex:
    return decode_index(region, row, object_key=key)


def _decode_block(data: Buffer, block: BlockRow, key: str) -> list[StoredBatch]:
    return decode_block(data, block, object_key=key)


def _cut_short(key: str, start: int, length: int) -> Corrupt:
    return Corrupt(
        f"{key} ends before byte {start + length}, where the metadata says that it has data: run "
        "fsck",
        object_key=key,
        start=start,
        end=start + length,
    )
