"""Object files, write-ahead log, checkpoint files, records."""

from __future__ import annotations

import dataclasses
import struct
from array import array
from collections.abc import Callable

from streamlog.codec.crc import crc32c, crc32c_parts
from streamlog.errors import Corrupt
from streamlog.format.checkpoint import blocks as checkpoint_blocks
from streamlog.format.checkpoint import state as checkpoint_state
from streamlog.format.checkpoint import tail as checkpoint_tail
from streamlog.format.checkpoint.blocks import ObjectEntry, RangeGroup
from streamlog.format.checkpoint.state import (
    CheckpointState,
    DeadTable,
    StagingRows,
    StreamTable,
)
from streamlog.format.checkpoint.tail import CheckpointTail, ObjectBlockIndex, RangeBlockIndex
from streamlog.format.entry import StreamEntry
from streamlog.format.object import footer as object_footer
from streamlog.format.object import header as object_header
from streamlog.format.object import index as object_index
from streamlog.format.object.block import BlockRow, decode_block
from streamlog.format.object.build import build_object
from streamlog.format.object.footer import ObjectIdentity
from streamlog.format.records import commit as commit_record
from streamlog.format.records import compaction as compaction_record
from streamlog.format.records import record
from streamlog.format.records.commit import (
    CommitRecord,
    Create,
    ObjectRows,
    RecordEntry,
    StreamAt,
    Token,
    Trim,
)
from streamlog.format.records.compaction import CompactionRecord, OutputRows
from streamlog.format.records.staged_entries import Attach, Stage, Unstage, WriterRow
from streamlog.format.rows import ObjectRow, Placement, Placements, Tenure
from streamlog.format.sealed import seal
from streamlog.format.wal.frame import (
    ALIGNMENT,
    HEADER_BYTES,
    FileLife,
    decode_entries,
    decode_frame_header,
    encode_frame,
    encode_group,
)
from streamlog.format.wal.superblock import (
    FileState,
    Superblock,
    WalIdentity,
    decode_identity,
    decode_superblock,
    encode_identity,
    encode_superblock,
)
from streamlog.model.batch import StoredBatch
from streamlog.wal.scan import scan_file
from tests.fuzz.parser import Parser

Mend = Callable[[bytes], bytes]


def mend_seal(data: bytes) -> bytes:
    """For values that end with the CRC of all before."""
    return seal(data[:-4]) if len(data) >= 4 else data


def _crc_at(position: int, end: int | None = None) -> Mend:
    """The CRC at `position` covers the bytes before it (and, from `end` on, all the rest)."""

    def mend(data: bytes) -> bytes:
        if len(data) < position + 4:
            return data
        crc = crc32c(data[:position])
        if end is not None:
            crc = crc32c(data[end:], crc)
        return data[:position] + crc.to_bytes(4, "little") + data[position + 4 :]

    return mend


# objects


def _entry(
    stream_id: int, base: int, payload: bytes, count: int = 1, attributes: bytes = b""
) -> StreamEntry:
    parts = (payload,)
    return StreamEntry(
        stream_id, 1, base, count, 1_700_000_000_000, parts, attributes, crc32c_parts(parts)
    )


ENTRIES = (
    _entry(1, 0, b"first", attributes=b"attr-1"),
    _entry(1, 1, b"in pieces" * 3, 9),
    _entry(5, 1 << 40, b"x" * 200, 1000, bytes(range(64))),
    _entry(5, (1 << 40) + 1000, b"y" * 200),
    _entry((1 << 63) - 1, 3, b"after a gap"),
)
IDENTITY = ObjectIdentity("cluster-ä", 7, 3, 0x1234_5678_9ABC)


def _object(compression: str) -> tuple[bytes, ObjectRow]:
    built = build_object(IDENTITY, ENTRIES, compression=compression, block_target_bytes=100)
    return b"".join(built.parts), built.row


def _staged_object() -> bytes:
    entries = (_entry(1, 0, b"a" * 80, 3), _entry(1, 3, b"b" * 80), _entry(4, 0, b"c" * 20))
    return b"".join(build_object(IDENTITY, entries, is_staged=True).parts)


OBJECTS = (*(_object(compression)[0] for compression in ("none", "zstd")), _staged_object())
ROW = _object("none")[1]
REGION = OBJECTS[0][ROW.index_position : ROW.index_position + ROW.index_length]
FOOTER = OBJECTS[0][ROW.index_position + ROW.index_length :]


def _batches(found: list[StoredBatch]) -> object:
    return [
        (b.base_offset, b.record_count, b.base_timestamp_ms, b"".join(b.parts), b.attributes)
        for b in found
    ]


def parse_object(data: bytes) -> object:
    """All of an object file, from its own footer."""
    object_header.decode_header(data, object_key="o")
    footer = object_footer.decode_footer(data, size_bytes=len(data), object_key="o")
    row = footer.row
    region = data[row.index_position : row.index_position + row.index_length]
    index = object_index.decode_index(region, row, object_key="o")
    found: list[object] = [footer]
    for block in index.blocks():
        piece = data[block.position : block.position + block.length]
        found.append(_batches(decode_block(piece, block, object_key="o")))
    for rows in footer.ranges:
        found.append(object_index.decode_attributes(region, rows.stream_id, rows.start, rows.end))
    if footer.is_staged:
        found.append(_placed(data, region, footer))
    return found


def _placed(data: bytes, region: bytes, footer: object_footer.ObjectFooter) -> object:
    """As if it were attached, with payloads that are taken for Kafka batches."""
    places = tuple(Placement(rows.stream_id, 1000, 2, 3) for rows in footer.ranges)
    row = dataclasses.replace(footer.row, placements=places)
    return [
        _batches(decode_block(data[b.position : b.position + b.length], b, object_key="o"))
        for b in object_index.decode_index(region, row, object_key="o").blocks()
        if b.stream_id != 4
    ]


def mend_object(data: bytes) -> bytes:
    """Header, footer, index region and trailer, at the places that the trailer says."""
    size = object_footer.TRAILER_BYTES
    if len(data) < object_header.HEADER_BYTES + size:
        return data
    changed = bytearray(_crc_at(12)(data))
    trailer = bytearray(changed[-size:])
    footer_at, footer_length, _, index_at, index_length = struct.unpack_from("<QIIQI", trailer)
    region = bytes(changed[index_at : index_at + index_length])
    if region:
        region = _crc_at(16, 20)(region)
        changed[index_at : index_at + len(region)] = region
    footer_crc = crc32c(bytes(changed[footer_at : footer_at + footer_length]))
    trailer[12:16] = footer_crc.to_bytes(4, "little")
    trailer[28:32] = crc32c(region).to_bytes(4, "little")
    trailer[32:40] = len(changed).to_bytes(8, "little")
    changed[-size:] = _crc_at(size - 12)(bytes(trailer))
    return bytes(changed)


def _header(data: bytes) -> object:
    return object_header.decode_header(data, object_key="o")


def _footer(data: bytes) -> object:
    size = ROW.index_position + ROW.index_length + len(data)
    trailer = object_footer.decode_trailer(data, size_bytes=size, object_key="o")
    return trailer, object_footer.decode_footer(data, size_bytes=size, object_key="o")


def mend_footer(data: bytes) -> bytes:
    size = object_footer.TRAILER_BYTES
    if len(data) < size:
        return data
    footer, trailer = data[:-size], bytearray(data[-size:])
    trailer[8:16] = struct.pack("<II", len(footer), crc32c(footer))
    end = ROW.index_position + ROW.index_length
    trailer[32:40] = (end + len(data)).to_bytes(8, "little")
    return footer + _crc_at(size - 12)(bytes(trailer))


def _index(data: bytes) -> object:
    row = ObjectRow(1, 1 << 41, 1 << 40, len(data), crc32c(data))
    return object_index.decode_index(data, row, object_key="o").blocks()


def _attributes(data: bytes) -> object:
    return [
        object_index.decode_attributes(data, stream, 0, 1 << 62) for stream in (1, 5, (1 << 63) - 1)
    ]


def _row_of(data: bytes) -> BlockRow:
    """As an index that agrees with the block's header would have it."""
    count, stream_id = struct.unpack_from("<IQ", data.ljust(32, b"\0"), 4)
    start, end = BLOCK_ROW.start, BLOCK_ROW.end
    compression = data[28] if len(data) > 28 else 0
    return BlockRow(stream_id, start, end, 16, len(data), crc32c(data), count, 0, compression)


def _blocks(data: bytes) -> tuple[BlockRow, bytes]:
    region = data[-object_footer.TRAILER_BYTES :]
    position, length = struct.unpack_from("<QI", region, 16)
    rows = data[position : position + length]
    row = ObjectRow(1, len(data), position, length, crc32c(rows))
    block = object_index.decode_index(rows, row).blocks()[1]
    return block, data[block.position : block.position + block.length]


BLOCK_ROW, BLOCK = _blocks(OBJECTS[0])
ZSTD_BLOCK = _blocks(OBJECTS[1])[1]


def _block(data: bytes) -> object:
    return _batches(decode_block(data, BLOCK_ROW, object_key="o"))


def _block_by_itself(data: bytes) -> object:
    return _batches(decode_block(data, _row_of(data), object_key="o"))


# write-ahead log

LIFE = FileLife(17, 0xDEAD_BEEF_0123_4567)


def _frame(entries: tuple[StreamEntry, ...], position: int, sequence: int) -> bytes:
    parts = encode_frame(
        encode_group(entries), LIFE, position=position, sequence=sequence, released_through=3
    )
    return b"".join(parts)


FRAME = _frame(ENTRIES, ALIGNMENT, 41)
_SMALL_FRAME = FRAME[: FRAME.rstrip(b"\0").__len__()]


def _parse_frame(data: bytes) -> object:
    header = decode_frame_header(data, LIFE, ALIGNMENT, file_name="f")
    entries = None if header is None else decode_entries(header, data)
    if entries is None:
        raise Corrupt("no frame")
    return [(e.stream_id, e.base_offset, b"".join(e.parts), e.attributes) for e in entries]


def mend_frame(data: bytes) -> bytes:
    if len(data) < HEADER_BYTES:
        return data
    (tables,) = struct.unpack_from("<I", data, 52)
    crc = crc32c(data[HEADER_BYTES : HEADER_BYTES + tables])
    return _crc_at(68)(data[:64] + crc.to_bytes(4, "little") + data[68:])


def _superblock(file_bytes: int = 4 * ALIGNMENT) -> bytes:
    block = Superblock(FileState.ACTIVE, LIFE, Tenure(3, 9), 41, 38, file_bytes)
    return encode_superblock(block)


class _File:
    """A DiskFile over bytes, for reading."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def read(self, position: int, length: int) -> bytes:
        return self._data[position : position + length]

    def size(self) -> int:
        return len(self._data)


def _scan(data: bytes) -> object:
    """A whole file. Without its superblock there is nothing to walk."""
    superblock = decode_superblock(data, file_name="f")
    found = scan_file("f", _File(data), superblock)  # type: ignore[arg-type]
    return found.frames, found.released_through, found.is_header_torn


WAL_FILE = (
    _superblock()
    + _frame(ENTRIES[:2], ALIGNMENT, 41)
    + _frame(ENTRIES[2:], 2 * ALIGNMENT, 42)
    + bytes(ALIGNMENT)
)

# checkpoints

_GROUPS = (
    RangeGroup(3, 10, array("I", [1, 2]), array("Q", [5, 1 << 40])),
    RangeGroup(4, 0, array("I", [7]), array("Q", [5])),
)
_OBJECT_ENTRIES = (
    ObjectEntry(5, 100, 90, 10, 0xFFFF, 2, 0),
    ObjectEntry(6, 1 << 40, 1, 2, 3, 0, 1),
)
_STATE = CheckpointState(
    StreamTable(
        array("Q", [3, 4]),
        array("I", [2, 1]),
        array("I", [0, 1]),
        array("Q", [10, 0]),
        array("Q", [13, 7]),
        bytes([1, 2]),
        {1: (b"token", (("a", "b"),))},
        [(7, 9), (8, 1)],
    ),
    DeadTable(array("Q", [9]), array("Q", [1_700_000_000_000]), array("Q", [55])),
    array("Q", [2]),
    3,
    2,
)
_TAILS = (
    CheckpointTail(
        RangeBlockIndex(array("Q", [3]), array("Q", [10]), array("Q", [8, 100])),
        ObjectBlockIndex(array("Q", [5]), array("Q", [100, 190])),
        3,
        2,
    ),
    CheckpointTail(state=checkpoint_state.encode_state(_STATE)),
)


def _parse_state(data: bytes) -> object:
    """As the loader calls it: what makes no sense behind a right CRC is Corrupt."""
    try:
        return checkpoint_state.decode_state(data)
    except (ValueError, struct.error) as error:
        raise Corrupt(f"the state makes no sense: {error}") from error


# records


def _rows(streams: list[int], counts: list[int]) -> ObjectRows:
    return ObjectRows(5, 1 << 20, 1 << 19, 4096, 0xABCD, 0, array("Q", streams), array("I", counts))


_RECORD = CommitRecord(
    0x0102030405060708,
    0x11223344,
    (
        RecordEntry(
            creates=(Create(65536, 1, (("topic", "läufe"), ("n", ""))),),
            objects=(_rows([3, 3, 1 << 33], [1, 2, (1 << 32) - 1]),),
            tokens=(Token(3, 2, b"\x00tok"),),
        ),
        RecordEntry(trims=(Trim(3, 2, 9),), closes=(StreamAt(3, 2),), destroys=(StreamAt(4, 1),)),
    ),
)
_LARGE_RECORD = CommitRecord(
    1, 2, (RecordEntry(objects=(_rows(list(range(9, 400, 3)), [7] * 131),)),)
)
_COMPACTION = CompactionRecord(
    9,
    4,
    array("Q", [3, 5, 1 << 40]),
    (
        OutputRows(
            7, 99, 50, 40, 1, 0, array("Q", [1, 1, 4]), array("Q", [0, 9, 2]), array("I", [3, 1, 1])
        ),
    ),
)
_STAGE = Stage(
    ObjectRow(9, 1 << 20, 1 << 19, 4096, 0xABCD),
    "spark-läufe",
    "3/0",
    1_700_000_000_000,
    array("Q", [3, 1 << 33]),
    array("I", [5, 6]),
)
_STAGED_RECORD = CommitRecord(
    1,
    2,
    (
        RecordEntry(stages=(_STAGE,)),
        RecordEntry(
            attaches=(
                Attach("w", 4, 5, 7, array("Q", [9, 4]), array("Q", [3, 5]), array("I", [7, 8])),
            ),
            unstages=(Unstage(8, array("Q", [10]), (("w", 3), ("ä", 0))),),
        ),
    ),
)
_STAGED_STATE = CheckpointState(
    StreamTable(),
    DeadTable(),
    array("Q"),
    0,
    0,
    staging=StagingRows(
        [_STAGE],
        [WriterRow("w", 3, 99, array("Q", [3]), array("Q", [10]), array("Q", [15]))],
        [(5, Placements.of((Placement(3, 10, 2, 7), Placement(4, 1 << 40, 1))))],
    ),
)
COMMITS = tuple(commit_record.encode(one) for one in (_RECORD, _LARGE_RECORD, _STAGED_RECORD))
COMPACTION = compaction_record.encode(_COMPACTION)

_HEADERS = (OBJECTS[0][: object_header.HEADER_BYTES],)

PARSERS = (
    Parser("object_header", _header, _HEADERS, mend=_crc_at(12)),
    Parser("object_footer", _footer, (FOOTER,), mend=mend_footer),
    Parser("object_index", _index, (REGION,), mend=_crc_at(16, 20)),
    Parser("object_attributes", _attributes, (REGION,), mend=_crc_at(16, 20)),
    Parser("object_block", _block, (BLOCK,), is_sealed=True),
    Parser("object_block_unsealed", _block_by_itself, (BLOCK, ZSTD_BLOCK)),
    Parser("object_file", parse_object, OBJECTS, mend=mend_object, is_sealed=True),
    Parser("wal_frame", _parse_frame, (_SMALL_FRAME,), mend=mend_frame),
    Parser(
        "wal_superblock",
        lambda data: decode_superblock(data, file_name="f"),
        (_superblock()[:80],),
        mend=_crc_at(68),
    ),
    Parser(
        "wal_identity",
        lambda data: decode_identity(data, file_name="f"),
        (encode_identity(WalIdentity("cluster-ä", frozenset({Tenure(3, 9), Tenure(3, 8)}), 38)),),
        mend=_crc_at(24, 28),
    ),
    Parser("wal_file", _scan, (WAL_FILE,), mend=_crc_at(68), memory_bytes=4 << 20),
    Parser(
        "checkpoint_ranges",
        checkpoint_blocks.decode_ranges,
        (checkpoint_blocks.encode_ranges(_GROUPS),),
        mend=mend_seal,
        is_sealed=True,
    ),
    Parser(
        "checkpoint_objects",
        lambda data: checkpoint_blocks.decode_objects(data).rows(),
        (checkpoint_blocks.encode_objects(_OBJECT_ENTRIES),),
        mend=mend_seal,
        is_sealed=True,
    ),
    Parser(
        "checkpoint_state",
        _parse_state,
        tuple(map(checkpoint_state.encode_state, (_STATE, _STAGED_STATE))),
    ),
    Parser(
        "checkpoint_tail",
        lambda data: checkpoint_tail.decode_tail(data, "f", 0),
        tuple(checkpoint_tail.encode_tail(tail) for tail in _TAILS),
        mend=mend_seal,
        is_sealed=True,
    ),
    Parser(
        "commit_record",
        commit_record.decode,
        COMMITS,
        mend=mend_seal,
        is_sealed=True,
        memory_bytes=16 << 20,
    ),
    Parser(
        "compaction_record",
        compaction_record.decode,
        (COMPACTION,),
        mend=mend_seal,
        is_sealed=True,
        memory_bytes=16 << 20,
    ),
    Parser(
        "record",
        record.decode,
        (*COMMITS, COMPACTION),
        mend=mend_seal,
        is_sealed=True,
        memory_bytes=16 << 20,
    ),
)
