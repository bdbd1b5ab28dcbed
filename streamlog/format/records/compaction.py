"""The compaction record: replaces live ranges of inputs by outputs, in one transaction.

    off  size  field                                    (integers little-endian)
    0    1     version = 1
    1    1     kind = 2 (1: commit.py)
    2    1     flags: bit 0: the body is one zstd frame
    3    1     0
    4    4     body bytes, before compression
    8    8     id floor: the tenure's object ids below it are committed or swept
    16   8     the compaction counter that results
    24   -     body
    end  4     CRC-32C of everything before

    body:    inputs u32, object id u64[inputs]; outputs u32, then each:
    output:  id u64, size u64, index position u64, index length u32, index CRC u32, store u8,
             rows u32, stream u64[rows], start u64[rows], count u32[rows]

All arrays lie in byte planes (format.columns). Inputs rise. Rows of an output are sorted by
(stream, start), do not overlap and hold at least one offset each.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from operator import gt, le

import zstandard

from streamlog.errors import Corrupt
from streamlog.format.columns import from_planes, to_planes
from streamlog.format.records.body import RecordCursor, check_kind, pack_body, unpack_body
from streamlog.format.records.commit import COMPACTION, VERSION
from streamlog.format.sealed import seal, unseal
from streamlog.runtime.buffers import Buffer

HEADER = struct.Struct("<BBBBIQQ")
OUTPUT = struct.Struct("<QQQIIBI")
COUNT = struct.Struct("<I")
ROW_BYTES = 20


@dataclass(frozen=True, slots=True)
class OutputRows:
    """A stored object; row i holds `counts[i]` offsets of stream `streams[i]` from `starts[i]`."""

    object_id: int
    size_bytes: int
    index_position: int
    index_length: int
    index_crc32c: int
    store: int
    streams: array[int]
    starts: array[int]
    counts: array[int]


@dataclass(frozen=True, slots=True)
class CompactionRecord:
    floor: int
    counter: int
    inputs: array[int]
    outputs: Sequence[OutputRows]


def encode(record: CompactionRecord) -> bytes:
    parts = [COUNT.pack(len(record.inputs)), to_planes(record.inputs)]
    parts.append(COUNT.pack(len(record.outputs)))
    for o in record.outputs:
        parts += (
            OUTPUT.pack(
                o.object_id,
                o.size_bytes,
                o.index_position,
                o.index_length,
                o.index_crc32c,
                o.store,
                len(o.streams),
            ),
            to_planes(o.streams),
            to_planes(o.starts),
            to_planes(o.counts),
        )
    plain = b"".join(parts)
    body, flags = pack_body(plain)
    header = HEADER.pack(VERSION, COMPACTION, flags, 0, len(plain), record.floor, record.counter)
    return seal(header + body)


def decode(value: Buffer) -> CompactionRecord:
    """Errors: Corrupt, UnsupportedVersion."""
    sealed = unseal(value, VERSION, "a compaction record")
    try:
        _, kind, flags, _, size, floor, counter = HEADER.unpack_from(sealed)
        check_kind(kind, COMPACTION)
        cursor = RecordCursor(unpack_body(sealed[HEADER.size :], flags, size))
        (count,) = cursor.unpack(COUNT)
        inputs = from_planes("Q", cursor.take(8 * count))
        if not counter or any(map(le, inputs[1:], inputs)):
            raise ValueError(f"the inputs of compaction {counter} do not rise")
        (count,) = cursor.unpack(COUNT)
        outputs = tuple(_output(cursor) for _ in range(count))
        cursor.check_at_end()
    except (struct.error, ValueError, OverflowError, zstandard.ZstdError) as error:
        raise Corrupt(f"a compaction record cannot be parsed: {error}") from error
    return CompactionRecord(floor, counter, inputs, outputs)


def rows_of(outputs: Sequence[OutputRows]) -> int:
    return sum(len(output.streams) for output in outputs)


def _output(cursor: RecordCursor) -> OutputRows:
    *fixed, rows = cursor.unpack(OUTPUT)
    streams, starts = (from_planes("Q", cursor.take(8 * rows)) for _ in range(2))
    counts = from_planes("I", cursor.take(4 * rows))
    if not all(counts) or any(map(gt, streams, streams[1:])):
        raise ValueError("rows are empty or out of order")
    object_id, size, index_position, index_length, index_crc, store = fixed
    return OutputRows(
        object_id, size, index_position, index_length, index_crc, store, streams, starts, counts
    )
