"""Blocks of a checkpoint file: live ranges by (stream, start), and objects by id.

Range block (at most 16 KiB), integers little-endian:
    groups, one per stream, in order: stream u64, start u64, ranges u32, count u32[ranges],
        object id u64[ranges]; a group's ranges are adjacent, the first begins at start
    end  4   CRC-32C of the block before it

Object block (at most 16 KiB):
    n u32, then columns of n: id u64, size u64, index position u64, index length u32, index CRC u32,
        live ranges u32, store u8
    end  4   CRC-32C of the block before it

A block without a change is copied unread; a group may continue in the next block.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from streamlog.codec.crc import crc32c
from streamlog.errors import Corrupt
from streamlog.format.columns import from_le, to_le
from streamlog.runtime.buffers import Buffer

BLOCK_BYTES_MAX = 16 << 10
GROUP = struct.Struct("<QQI")
RANGE_BYTES = 12
CRC = struct.Struct("<I")
COUNT = struct.Struct("<I")
U32_MAX = (1 << 32) - 1


@dataclass(slots=True)
class RangeGroup:
    """Adjacent ranges of one stream; range i has `counts[i]` offsets in `objects[i]`."""

    stream_id: int
    start: int
    counts: array[int]
    objects: array[int]

    @property
    def size_bytes(self) -> int:
        return GROUP.size + RANGE_BYTES * len(self.counts)


class ObjectEntry(NamedTuple):
    """An object in a checkpoint. `live`: its live ranges; 0 in a delta hides the base's entry."""

    object_id: int
    size_bytes: int
    index_position: int
    index_length: int
    index_crc32c: int
    live: int
    store: int


OBJECT_BYTES = 37
OBJECT_COLUMNS: tuple[Literal["B", "I", "Q"], ...] = ("Q", "Q", "Q", "I", "I", "I", "B")
OBJECTS_PER_BLOCK = (BLOCK_BYTES_MAX - COUNT.size - CRC.size) // OBJECT_BYTES


@dataclass(frozen=True, slots=True)
class ObjectColumns:
    """A decoded object block; rows are made when asked for."""

    ids: array[int]
    others: tuple[array[int], ...]

    def row(self, index: int) -> ObjectEntry:
        return ObjectEntry(self.ids[index], *(column[index] for column in self.others))

    def find(self, object_id: int) -> ObjectEntry | None:
        index = bisect_left(self.ids, object_id)
        if index == len(self.ids) or self.ids[index] != object_id:
            return None
        return self.row(index)

    def rows(self) -> list[ObjectEntry]:
        return [ObjectEntry(*row) for row in zip(self.ids, *self.others, strict=True)]


def encode_ranges(groups: Sequence[RangeGroup]) -> bytes:
    parts = []
    for group in groups:
        parts.append(GROUP.pack(group.stream_id, group.start, len(group.counts)))
        parts += to_le(group.counts), to_le(group.objects)
    return _close(b"".join(parts))


def decode_ranges(block: Buffer, name: str = "", position: int = 0) -> list[RangeGroup]:
    """Errors: Corrupt."""
    data = _open(block, name, position)
    groups, place, end = [], 0, len(data)
    while place < end:
        if place + GROUP.size > end:
            raise _corrupt(name, position, len(block))
        stream_id, start, count = GROUP.unpack_from(data, place)
        place += GROUP.size
        middle, after = place + 4 * count, place + RANGE_BYTES * count
        if after > end or not count:
            raise _corrupt(name, position, len(block))
        groups.append(
            RangeGroup(
                stream_id, start, from_le("I", data[place:middle]), from_le("Q", data[middle:after])
            )
        )
        place = after
    return groups


def encode_objects(entries: Sequence[ObjectEntry]) -> bytes:
    columns = zip(OBJECT_COLUMNS, zip(*entries, strict=True), strict=True)
    parts = [to_le(array(typecode, column)) for typecode, column in columns]
    return _close(COUNT.pack(len(entries)) + b"".join(parts))


def decode_objects(block: Buffer, name: str = "", position: int = 0) -> ObjectColumns:
    """Errors: Corrupt."""
    data = _open(block, name, position)
    if len(data) < COUNT.size:
        raise _corrupt(name, position, len(block))
    (count,) = COUNT.unpack_from(data)
    if len(data) != COUNT.size + count * OBJECT_BYTES:
        raise _corrupt(name, position, len(block))
    columns, place = [], COUNT.size
    for typecode in OBJECT_COLUMNS:
        end = place + count * array(typecode).itemsize
        columns.append(from_le(typecode, data[place:end]))
        place = end
    return ObjectColumns(columns[0], tuple(columns[1:]))


def _close(data: bytes) -> bytes:
    return data + CRC.pack(crc32c(data))


def _open(block: Buffer, name: str, position: int) -> memoryview:
    end = len(block) - CRC.size
    data = memoryview(block)[: max(end, 0)]
    # Four zero bytes are the right CRC of nothing.
    if end < 1 or CRC.unpack_from(block, end)[0] != crc32c(data):
        raise _corrupt(name, position, len(block))
    return data


def _corrupt(name: str, position: int, size: int) -> Corrupt:
    return Corrupt(
        f"a block of the checkpoint file {name or '(in memory)'} is damaged at bytes {position} to "
        f"{position + size}",
        object_key=name,
        start=position,
        end=position + size,
    )
