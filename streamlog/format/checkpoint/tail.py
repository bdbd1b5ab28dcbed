"""A checkpoint file's frame: a header, the blocks, and the tail that opening reads.

    off  size  field                                    (integers little-endian)
    0    4     magic "SLCK"
    4    1     version = 1
    5    3     0
    8    -     range blocks, then object blocks, without gaps
    tail 1     version = 1
    +1   4     range blocks b
    +5   4     object blocks o
    +9   8     ranges in the file
    +17  8     objects in the file
    +25  4     state bytes, before compression
    +29  4     state bytes, stored
    +33  -     columns u64: first stream[b], first start[b], position[b + 1], first id[o],
               position[o + 1]
    -    -     state (state.py), zstd; empty in a base
    end  4     CRC-32C of the tail before it
    -    -     in a delta: its trailer (metadata/checkpoint/trailer.py)

Blocks carry their own CRCs. The header is for tools that read a file without its reference.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field

import zstandard

from streamlog.errors import Corrupt
from streamlog.format.columns import from_le, to_le
from streamlog.format.sealed import CRC, seal, unseal
from streamlog.format.zstd import decompress_exactly
from streamlog.runtime.buffers import Buffer

MAGIC = b"SLCK"
VERSION = 1
FILE_HEADER = MAGIC + bytes([VERSION, 0, 0, 0])
TAIL = struct.Struct("<BIIQQII")
STATE_BYTES_MAX = 1 << 30


def _one() -> array[int]:
    return array("Q", [len(FILE_HEADER)])


@dataclass(slots=True)
class RangeBlockIndex:
    """First (stream, start) of each range block; block i is positions[i] to [i + 1]."""

    streams: array[int] = field(default_factory=lambda: array("Q"))
    starts: array[int] = field(default_factory=lambda: array("Q"))
    positions: array[int] = field(default_factory=_one)

    def __len__(self) -> int:
        return len(self.streams)

    def block_of(self, stream_id: int, start: int) -> int:
        """The only block that can hold the range of the stream that contains `start`; -1: none."""
        low = bisect_left(self.streams, stream_id)
        high = bisect_right(self.streams, stream_id, low)
        return bisect_right(self.starts, start, low, high) - 1


@dataclass(slots=True)
class ObjectBlockIndex:
    """First object id of each object block; block i lies at positions[i] to positions[i + 1]."""

    ids: array[int] = field(default_factory=lambda: array("Q"))
    positions: array[int] = field(default_factory=_one)

    def __len__(self) -> int:
        return len(self.ids)

    def block_of(self, object_id: int) -> int:
        """The only block that can hold the object; -1: none."""
        return bisect_right(self.ids, object_id) - 1


@dataclass(slots=True)
class CheckpointTail:
    ranges: RangeBlockIndex = field(default_factory=RangeBlockIndex)
    objects: ObjectBlockIndex = field(default_factory=ObjectBlockIndex)
    range_count: int = 0
    object_count: int = 0
    state: bytes = b""


def encode_tail(tail: CheckpointTail) -> bytes:
    state = zstandard.compress(tail.state, 1) if tail.state else b""
    columns = (
        tail.ranges.streams,
        tail.ranges.starts,
        tail.ranges.positions,
        tail.objects.ids,
        tail.objects.positions,
    )
    header = TAIL.pack(
        VERSION,
        len(tail.ranges),
        len(tail.objects),
        tail.range_count,
        tail.object_count,
        len(tail.state),
        len(state),
    )
    return seal(b"".join((header, *map(to_le, columns), state)))


def tail_crc(tail: Buffer) -> int:
    """The CRC that a reference to the file carries: the one the tail ends with."""
    return int(CRC.unpack_from(tail, len(tail) - CRC.size)[0])


def decode_tail(data: Buffer, name: str, position: int) -> CheckpointTail:
    """Errors: Corrupt, UnsupportedVersion."""
    try:
        body = unseal(data, VERSION, f"the tail of the checkpoint file {name}")
        return _decode(body)
    except (struct.error, ValueError, OverflowError, Corrupt) as error:
        raise Corrupt(
            f"the tail of the checkpoint file {name} is damaged at bytes {position} to "
            f"{position + len(data)}: {error}",
            object_key=name,
            start=position,
            end=position + len(data),
        ) from error


def _decode(body: memoryview) -> CheckpointTail:
    _, blocks, object_blocks, ranges, objects, state_size, stored = TAIL.unpack_from(body)
    lengths = (blocks, blocks, blocks + 1, object_blocks, object_blocks + 1)
    if TAIL.size + 8 * sum(lengths) + stored != len(body) or state_size > STATE_BYTES_MAX:
        raise ValueError(f"{len(body)} bytes for {blocks} and {object_blocks} blocks")
    columns, position = [], TAIL.size
    for length in lengths:
        columns.append(from_le("Q", body[position : position + 8 * length]))
        position += 8 * length
    state = decompress_exactly(body[position:], state_size) if stored else b""
    if len(state) != state_size:
        raise ValueError(f"the state has {len(state)} bytes, not {state_size}")
    return CheckpointTail(
        RangeBlockIndex(*columns[:3]), ObjectBlockIndex(*columns[3:]), ranges, objects, state
    )
