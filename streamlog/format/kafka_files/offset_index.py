"""The offset index of a segment: 8 bytes an entry, big-endian.

    at  field     type  meaning
    0   offset    i32   of the last record of a batch, relative to the segment's first offset
    4   position  i32   where that batch begins in the .log file

Both rise from entry to entry. An entry is made for a batch when more than `index.interval.bytes`
came before it since the last one. Kafka allocates the file of an active segment in full: behind the
entries are zeros then, until the segment is closed. Source: Kafka's OffsetIndex, LogSegment.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from struct import Struct
from typing import NamedTuple

from streamlog.runtime.buffers import Buffer

ENTRY_BYTES = 8
_ENTRY = Struct(">ii")
_pack, _unpack_from = _ENTRY.pack, _ENTRY.unpack_from


class OffsetPosition(NamedTuple):
    """`offset` is relative to the segment's first."""

    offset: int
    position: int


def pack_entry(offset: int, position: int) -> bytes:
    return _pack(offset, position)


def entry_at(data: Buffer, index: int) -> OffsetPosition:
    return OffsetPosition._make(_unpack_from(data, index * ENTRY_BYTES))


def floor_entry(data: Buffer, offset: int) -> OffsetPosition | None:
    """The last entry at or before the relative offset."""
    count = len(data) // ENTRY_BYTES
    found = bisect_right(range(count), offset, key=lambda at: _unpack_from(data, at * 8)[0])
    return entry_at(data, found - 1) if found else None


def floor_position(data: Buffer, position: int) -> int:
    """Where the last indexed batch at or before the position begins; 0 without one."""
    count = len(data) // ENTRY_BYTES
    found = bisect_right(range(count), position, key=lambda at: _unpack_from(data, at * 8)[1])
    return entry_at(data, found - 1).position if found else 0


def sound_prefix(data: Buffer, below_offset: int, below_position: int) -> int:
    """Bytes of the entries that rise, and point below both bounds: the rest is left over, was
    allocated in advance, or is damaged."""
    count = len(data) // ENTRY_BYTES
    last_offset, last_position = -1, -1
    for index in range(count):
        offset, position = _unpack_from(data, index * ENTRY_BYTES)
        is_sound = last_offset < offset < below_offset and last_position < position < below_position
        if not is_sound:
            return index * ENTRY_BYTES
        last_offset, last_position = offset, position
    return count * ENTRY_BYTES


def ceiling_index(data: Buffer, offset: int) -> int:
    """The number of entries below the relative offset."""
    count = len(data) // ENTRY_BYTES
    return bisect_left(range(count), offset, key=lambda at: _unpack_from(data, at * 8)[0])
