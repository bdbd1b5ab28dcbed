"""The index region: where each data block lies, and the attributes of every record batch.

One GET of [index_position, index_position + index_length) reads it. Index region (little endian)

    offset  field             bytes  meaning
    0       magic             4      "SLIX"
    4       version           u16    the object's version: 1, 2 when staged
    6       reserved          u16    0
    8       block count       u32    n
    12      attributes bytes  u32    of the attributes section
    16      crc               u32    CRC-32C of bytes 0 to 16 and of all that follows
    20      index block       n × 49, by (stream id, start)
            attributes        n runs, one per block, in the same order

Index block entry

    0       stream id            u64
    8       start                i64    first offset in the block
    16      end                  i64    past the last offset
    24      position             u64    of the block in the object
    32      length               u32    of the block
    36      crc                  u32    CRC-32C of the block as stored
    40      batch count          u32
    44      attributes position  u32    of its run, from the start of the attributes section
    48      compression          u8     as in the block

Attributes run of a block: batch count × 13 bytes, then the attributes one after another

    0       record count      u32
    4       timestamp         i64    base timestamp, ms
    12      attributes bytes  u8

`index_crc32c` in footer, commit record and fold is the CRC-32C of the whole region. Magic, version
and CRC stay where they are in every version; policy in header.py.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from struct import Struct

from streamlog.codec.crc import crc32c
from streamlog.errors import Corrupt
from streamlog.format.columns import from_planes
from streamlog.format.corrupt import corrupt, unsupported
from streamlog.format.entry import StreamEntry
from streamlog.format.object.block import (
    BATCH_BYTES,
    BLOCK_HEADER_BYTES,
    BlockCompression,
    BlockRow,
)
from streamlog.format.object.header import HEADER_BYTES, STAGED_VERSION, VERSION, is_known
from streamlog.format.rows import ObjectRow, Placement, Placements
from streamlog.model.batch import BatchAttributes, StoredBatch
from streamlog.runtime.buffers import Buffer

_MAGIC = b"SLIX"
_HEADER = Struct("<4sHHIII")
_CRC_POSITION = 16
_ROW = Struct("<QqqQIIIIB")
_STREAM_AND_END = Struct("<Q8xq")
_ATTRIBUTES = Struct("<IqB")
INDEX_HEADER_BYTES = _HEADER.size
INDEX_ROW_BYTES = _ROW.size

encode_row = _ROW.pack
"""The fields of a BlockRow, in order, without `place`."""


def encode_attributes(entries: Sequence[StreamEntry] | Sequence[StoredBatch]) -> bytes:
    """The attributes run of one block."""
    pack = _ATTRIBUTES.pack
    parts = [pack(e.record_count, e.base_timestamp_ms, len(e.attributes)) for e in entries]
    parts += [e.attributes for e in entries]
    return b"".join(parts)


def encode_region(
    rows: Sequence[bytes], attributes: Sequence[bytes], version: int = VERSION
) -> bytes:
    """The index region from encoded rows and attributes runs, in the same order."""
    attributes_section = b"".join(attributes)
    head = _HEADER.pack(_MAGIC, version, 0, len(rows), len(attributes_section), 0)[:_CRC_POSITION]
    body = b"".join(rows) + attributes_section
    return head + crc32c(body, crc32c(head)).to_bytes(4, "little") + body


class ObjectIndex:
    """The decoded index block, kept as its own bytes: 49 for each data block, no attributes.

    Of an attached object all offsets are those of the streams, as `placements` say.
    """

    __slots__ = ("_count", "_limit", "_places", "_rows", "object_key")

    def __init__(
        self, rows: bytes, limit: int, object_key: str, placements: Sequence[Placement] = ()
    ) -> None:
        """`limit`: position where the data blocks end."""
        self._places = Placements.of(placements) if placements else None
        self._rows = rows
        self._count = len(rows) // _ROW.size
        self._limit = limit
        self.object_key = object_key

    @property
    def memory_bytes(self) -> int:
        """Bytes that a cache should count for it."""
        return len(self._rows) + 200

    def __len__(self) -> int:
        return self._count

    def block(self, number: int) -> BlockRow:
        """The block at 0 ≤ number < len, in index order."""
        row = BlockRow(*_ROW.unpack_from(self._rows, number * _ROW.size))
        if (
            row.start >= row.end
            or row.batch_count < 1
            or row.length < BLOCK_HEADER_BYTES + BATCH_BYTES * row.batch_count
            or row.position < HEADER_BYTES
            or row.position + row.length > self._limit
        ):
            position = self._limit + _HEADER.size + number * _ROW.size
            raise corrupt(
                "an index row is impossible", self.object_key, position, position + _ROW.size
            )
        place = None if self._places is None else self._places.of_stream(row.stream_id)
        if place is not None:
            base = place.base
            return row._replace(start=row.start + base, end=row.end + base, place=place)
        return row

    def blocks(self) -> list[BlockRow]:
        """All of them, by (stream id, start)."""
        return list(self.blocks_from(0))

    def blocks_from(self, number: int) -> Iterator[BlockRow]:
        """All from that number on, by (stream id, start)."""
        return map(self.block, range(number, self._count))

    def sizes(self) -> tuple[array[int], array[int], array[int]]:
        """Columns of all blocks: stream id, start as stored, length. They are not checked."""
        rows, size = self._rows, _ROW.size
        stream, start, length = (
            b"".join([rows[first + byte :: size] for byte in range(width)])
            for first, width in ((0, 8), (8, 8), (32, 4))
        )
        return from_planes("Q", stream), from_planes("Q", start), from_planes("I", length)

    def numbers_for(self, stream_id: int, start: int, end: int) -> range:
        """Numbers of the stream's blocks that overlap [start, end), in order."""
        number = first = self.number_at(stream_id, start)
        end -= self._base(stream_id)
        while number < self._count:
            row_stream, row_start, *_ = _ROW.unpack_from(self._rows, number * _ROW.size)
            if row_stream != stream_id or row_start >= end:
                break
            number += 1
        return range(first, number)

    def number_at(self, stream_id: int, offset: int, near: int = -1) -> int:
        """Number of the stream's first block that ends behind `offset`, if there is one; `near`
        and the number after it are looked at first."""
        wanted = (stream_id, offset - self._base(stream_id))
        for number in (near, near + 1):
            if 0 < number < self._count and (
                self._stream_and_end(number - 1) <= wanted < self._stream_and_end(number)
            ):
                return number
        return bisect_right(range(self._count), wanted, key=self._stream_and_end)

    def blocks_for(self, stream_id: int, start: int, end: int) -> list[BlockRow]:
        """The stream's blocks that overlap [start, end), in order."""
        return [self.block(number) for number in self.numbers_for(stream_id, start, end)]

    def _base(self, stream_id: int) -> int:
        """What is added to the stream's stored offsets."""
        place = None if self._places is None else self._places.of_stream(stream_id)
        return 0 if place is None else place.base

    def _stream_and_end(self, number: int) -> tuple[int, int]:
        stream_id, end = _STREAM_AND_END.unpack_from(self._rows, number * _ROW.size)
        return stream_id, end


def decode_index(data: Buffer, row: ObjectRow, *, object_key: str = "") -> ObjectIndex:
    """The index of the object whose region is `data`. Errors: Corrupt, UnsupportedVersion."""
    key = object_key or f"object {row.object_id}"
    start, end = row.index_position, row.index_position + row.index_length
    if len(data) != row.index_length or crc32c(data) != row.index_crc32c:
        raise corrupt("the index region's size or CRC does not match", key, start, end)
    rows, _, version = _sections(data, start, key)
    if row.placements and version != STAGED_VERSION:
        raise corrupt("an object was attached that was not staged", key, start, end)
    return ObjectIndex(bytes(rows), row.index_position, key, row.placements)


def is_unplaced(data: Buffer, row: ObjectRow) -> bool:
    """Whether the object, whose region `decode_index` took, was staged, and `row` does not say
    where it was attached: then all offsets are its own."""
    return not row.placements and _HEADER.unpack_from(data)[1] == STAGED_VERSION


def decode_attributes(
    data: Buffer,
    stream_id: int,
    start: int,
    end: int,
    *,
    object_key: str = "object",
    index_position: int = 0,
    placements: Sequence[Placement] = (),
) -> list[BatchAttributes]:
    """Attributes of the stream's batches that overlap [start, end), from an index region's bytes.

    `index_position` only serves messages. Errors: Corrupt, UnsupportedVersion.
    """
    rows, _, _ = _sections(data, index_position, object_key)
    index = ObjectIndex(bytes(rows), 1 << 64, object_key, placements)
    return attributes_in(index, data, stream_id, start, end, index_position=index_position)


def attributes_in(
    index: ObjectIndex,
    region: Buffer,
    stream_id: int,
    start: int,
    end: int,
    *,
    index_position: int = 0,
) -> list[BatchAttributes]:
    """As `decode_attributes`, of the region that `index` was decoded from. Errors: Corrupt."""
    batches: list[BatchAttributes] = []
    runs = _Runs(index, region, index_position)
    for block in index.blocks_for(stream_id, start, end):
        runs.read(block, start, end, batches)
    return batches


def attributes_by_block(
    index: ObjectIndex, region: Buffer, *, index_position: int = 0
) -> Iterator[tuple[int, list[BatchAttributes]]]:
    """(stream id, attributes of the batches) of each block, in the order of the index.

    `region` is the one that `index` was decoded from. Errors: Corrupt.
    """
    runs = _Runs(index, region, index_position)
    for number in range(len(index)):
        batches: list[BatchAttributes] = []
        block = index.block(number)
        runs.read(block, block.start, block.end, batches)
        yield block.stream_id, batches


class _Runs:
    """The attributes section of a region, read block by block."""

    def __init__(self, index: ObjectIndex, region: Buffer, position: int) -> None:
        self._section = memoryview(region)[_HEADER.size + len(index) * _ROW.size :]
        self._key = index.object_key
        self._start, self._end = position, position + len(region)
        self._next = 0

    def read(self, block: BlockRow, start: int, end: int, batches: list[BatchAttributes]) -> None:
        run = self._section[block.attributes_position :]
        # Runs follow one another: rows that shared a run would multiply it.
        is_behind = block.attributes_position >= self._next
        run_bytes = _read_run(run, block, start, end, batches) if is_behind else 0
        self._next = block.attributes_position + run_bytes
        if not run_bytes:
            raise corrupt("an attributes run is impossible", self._key, self._start, self._end)


def _read_run(
    run: memoryview, block: BlockRow, start: int, end: int, batches: list[BatchAttributes]
) -> int:
    """Size of the run at the start of `run`, bytes; 0: it is damaged."""
    table_bytes = block.batch_count * _ATTRIBUTES.size
    if len(run) < table_bytes:
        return 0
    base, position = block.start, table_bytes
    for count, timestamp, size in _ATTRIBUTES.iter_unpack(run[:table_bytes]):
        if base + count > start and base < end:
            batches.append(
                BatchAttributes(base, count, timestamp, bytes(run[position : position + size]))
            )
        base += count
        position += size
    return position if base == block.end and position <= len(run) else 0


def _sections(data: Buffer, position: int, object_key: str) -> tuple[memoryview, memoryview, int]:
    """Index block and attributes section of a region whose CRC holds, and its version."""

    def wrong(what: str) -> Corrupt:
        return corrupt(what, object_key, position, position + len(data))

    if len(data) < _HEADER.size:
        raise wrong("the index region is cut short")
    view = memoryview(data)
    magic, version, _, count, attributes_bytes, crc = _HEADER.unpack_from(view)
    if magic != _MAGIC or crc != crc32c(view[_HEADER.size :], crc32c(view[:_CRC_POSITION])):
        raise wrong("the index region's CRC does not match")
    if not is_known(version):
        raise unsupported(object_key, version, STAGED_VERSION)
    attributes_at = _HEADER.size + count * _ROW.size
    if attributes_at + attributes_bytes != len(view):
        raise wrong("the index region's sizes do not add up")
    return view[_HEADER.size : attributes_at], view[attributes_at:], version


__all__ = [
    "BlockCompression",
    "BlockRow",
    "ObjectIndex",
    "decode_attributes",
    "decode_index",
    "encode_attributes",
    "encode_region",
    "encode_row",
    "is_unplaced",
]
