"""Blocks of objects: the GETs that bring the blocks of some streams, and the payloads in them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Generic, NamedTuple, TypeAlias, TypeVar

from streamlog.errors import Corrupt, ObjectNotFound
from streamlog.format.object.block import BlockRow, decode_payload
from streamlog.format.object.index import ObjectIndex, decode_index, is_unplaced
from streamlog.format.ranged_gets import RangedGet, index_range, plan_gets
from streamlog.format.rows import ObjectRow, Placement
from streamlog.model.located import ObjectTable
from streamlog.objectstore.interface import ObjectStore
from streamlog.objectstore.keys import data_key
from streamlog.objectstore.object_reader import GET_BYTES, get_exactly
from streamlog.runtime.buffers import Buffer

__all__ = [
    "ObjectIndex",
    "ObjectRow",
    "ObjectStore",
    "PlannedGet",
    "StreamBlocks",
    "data_key",
    "get_exactly",
    "object_row",
    "payloads",
    "plan_part_gets",
    "read_index",
]

SMALL_OBJECT_BYTES = 1 << 20
"""An object up to this size is read whole, index and all, by one GET."""

P = TypeVar("P")


class StreamBlocks(NamedTuple, Generic[P]):
    """Stream offsets start to end (exclusive); `part` is the caller's name for them."""

    stream_id: int
    start: int
    end: int
    part: P


class PartBlock(NamedTuple, Generic[P]):
    """A block, and the part that it is read for."""

    row: BlockRow
    part: P

    @property
    def position(self) -> int:
        return self.row.position

    @property
    def length(self) -> int:
        return self.row.length


PlannedGet: TypeAlias = RangedGet[PartBlock[P]]


def object_row(objects: ObjectTable, number: int) -> ObjectRow:
    object_id = objects.ids[number]
    return ObjectRow(
        object_id,
        0,
        objects.index_positions[number],
        objects.index_lengths[number],
        objects.index_crcs[number],
        placements=tuple(Placement(*place) for place in objects.placements.get(object_id, ())),
    )


async def read_index(store: ObjectStore, row: ObjectRow) -> tuple[ObjectIndex, memoryview | None]:
    """The index of an object; for a small object also all bytes before the index.

    Errors: ObjectNotFound, Corrupt, StoreUnavailable.
    """
    key = data_key(row.object_id)
    start, end = index_range(row, SMALL_OBJECT_BYTES)
    data = await get_exactly(store, key, start, end - start)
    region = data[row.index_position - start :]
    index = decode_index(region, row, object_key=key)
    if is_unplaced(region, row):
        # It died while the plan was made, and the metadata has forgotten its placement.
        raise ObjectNotFound(f"{key} is in no stream any more", object_key=key)
    return index, data[: row.index_position] if start == 0 else None


def plan_part_gets(
    row: ObjectRow, index: ObjectIndex, parts: Iterable[StreamBlocks[P]]
) -> Iterator[PlannedGet[P]]:
    """GETs for all blocks of the parts, in the order of the parts.

    Errors: Corrupt, if the index has no block for offsets of a part.
    """
    return plan_gets(_blocks(row, index, parts), GET_BYTES)


def _blocks(
    row: ObjectRow, index: ObjectIndex, parts: Iterable[StreamBlocks[P]]
) -> Iterator[PartBlock[P]]:
    for stream_id, start, end, part in parts:
        offset = start
        for block in index.blocks_for(stream_id, start, end):
            if block.start > offset:
                break
            offset = block.end
            yield PartBlock(block, part)
        if offset < end:
            key = data_key(row.object_id)
            raise Corrupt(
                f"the index of {key} has no block of stream {stream_id} at offset {offset}, "
                "which the metadata says is there: run fsck",
                object_key=key,
                start=row.index_position,
                end=row.index_position + row.index_length,
            )


def payloads(key: str, get: PlannedGet[P], data: Buffer) -> Iterator[tuple[P, Buffer]]:
    """The record batches of each part, joined; `data`: the bytes that the GET brought.

    Errors: Corrupt.
    """
    blocks, parts = get.blocks, list[Buffer]()
    for number, block in enumerate(blocks):
        parts.append(decode_payload(get.block_bytes(data, block), block.row, object_key=key))
        is_last = number + 1 == len(blocks)
        if is_last or blocks[number + 1].part != block.part:
            yield block.part, parts[0] if len(parts) == 1 else b"".join(parts)
            parts = []
