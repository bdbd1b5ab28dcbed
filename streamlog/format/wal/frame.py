"""One frame of the write-ahead log: the appends that one write makes durable together.

Frame (little endian); it starts at a multiple of 4096 and is filled up with zeros to the next one,
so that no later write touches a sector that holds acknowledged bytes.

    offset  field             bytes  meaning
    0       magic             4      "SLWF"
    4       version           u16    1, or 2 where the next field is not 0
    6       groups under way  u16    before this one, that were not known to be durable
    8       generation        u64    of the file's present life
    16      salt              u64    random, of the file's present life
    24      position          u64    of this frame in the file
    32      sequence          u64    of this group; the next group has the next number
    40      released through  u64    groups up to this one are stored elsewhere
    48      entry count       u32    n
    52      tables bytes      u32    entry table and attributes
    56      payload bytes     u64
    64      tables crc        u32    CRC-32C of entry table and attributes
    68      header crc        u32    CRC-32C of bytes 0 to 68
    72      entry table       n × 45
            attributes        of the entries, one after another
            payloads          one after another

Entry

    0       stream id         u64
    8       epoch             u64    stream epoch
    16      base offset       i64
    24      record count      u32
    28      timestamp         i64    base timestamp, ms
    36      attributes bytes  u8
    37      payload bytes     u32
    41      payload crc       u32    CRC-32C of the payload

Every byte but the padding is covered: the header by its own CRC, tables by the header, payloads by
the table; payloads are not read again to write a frame. Generation, salt and position tie a frame
to one life of one file: a stale frame, or a copy of one in a payload, is never taken for a frame.

Groups are written beside each other, but each is answered behind those before it. So a frame proves
that all groups up to `sequence` - 1 - `groups under way` are durable, and of those under way
nothing: a crash may leave this frame and none of them.

Version policy: magic, version and header CRC stay where they are in every version; a newer version
is refused, every version once released stays readable. Version 1 knows no groups under way: its
readers would take a write that was torn before this frame for damage.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import NamedTuple

from streamlog.codec.crc import crc32c
from streamlog.format.corrupt import unsupported
from streamlog.format.entry import StreamEntry
from streamlog.model.batch import ATTRIBUTES_BYTES_MAX
from streamlog.runtime.buffers import Buffer, parts_size

VERSION = 2
ALIGNMENT = 4096
_MAGIC = b"SLWF"
_HEADER = Struct("<4sHHQQQQQIIQII")
_ENTRY = Struct("<QQqIqBII")
_HEADER_CRC_POSITION = 68
HEADER_BYTES = _HEADER.size
TABLES_BYTES_MAX = _ENTRY.size + ATTRIBUTES_BYTES_MAX
"""Bytes that one append takes in a frame beside its payload."""
_ZEROS = bytes(ALIGNMENT)


class FileLife(NamedTuple):
    """One life of a file: from its activation until it is freed."""

    generation: int
    salt: int


class EncodedGroup(NamedTuple):
    """A frame without its header, which depends on the frame's position."""

    tables: bytes
    payloads: list[Buffer]
    entry_count: int
    tables_crc32c: int
    payload_bytes: int

    @property
    def length(self) -> int:
        """Bytes of the frame without its padding."""
        return HEADER_BYTES + len(self.tables) + self.payload_bytes

    @property
    def size_bytes(self) -> int:
        """Bytes on disk, with padding."""
        return aligned(self.length)


class FrameHeader(NamedTuple):
    """A header whose CRC, life and position are right."""

    position: int
    sequence: int
    released_through: int
    entry_count: int
    tables_bytes: int
    payload_bytes: int
    tables_crc32c: int
    under_way: int

    @property
    def durable_through(self) -> int:
        """Sequence of the last group that this frame proves to have been durable before it."""
        return self.sequence - 1 - self.under_way

    @property
    def length(self) -> int:
        """Bytes of the frame without its padding."""
        return HEADER_BYTES + self.tables_bytes + self.payload_bytes

    @property
    def end(self) -> int:
        """Position of the next frame."""
        return self.position + aligned(self.length)


def aligned(size: int) -> int:
    """`size` rounded up to a multiple of ALIGNMENT."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def encode_group(entries: Sequence[StreamEntry]) -> EncodedGroup:
    """Tables and payloads of a frame; payload parts are passed through."""
    pack = _ENTRY.pack
    rows: list[bytes] = []
    payloads: list[Buffer] = []
    payload_bytes = 0
    for e in entries:
        size = parts_size(e.parts)
        rows.append(
            pack(
                e.stream_id,
                e.epoch,
                e.base_offset,
                e.record_count,
                e.base_timestamp_ms,
                len(e.attributes),
                size,
                e.payload_crc32c,
            )
        )
        payloads += e.parts
        payload_bytes += size
    rows += [e.attributes for e in entries]
    tables = b"".join(rows)
    return EncodedGroup(tables, payloads, len(entries), crc32c(tables), payload_bytes)


def encode_frame(
    group: EncodedGroup,
    life: FileLife,
    *,
    position: int,
    sequence: int,
    released_through: int,
    under_way: int = 0,
) -> list[Buffer]:
    """The frame's parts, padding included: `group.size_bytes` in all."""
    checked = _HEADER.pack(
        _MAGIC,
        VERSION if under_way else 1,
        under_way,
        life.generation,
        life.salt,
        position,
        sequence,
        released_through,
        group.entry_count,
        len(group.tables),
        group.payload_bytes,
        group.tables_crc32c,
        0,
    )[:_HEADER_CRC_POSITION]
    head = checked + crc32c(checked).to_bytes(4, "little") + group.tables
    return [head, *group.payloads, memoryview(_ZEROS)[: group.size_bytes - group.length]]


def decode_frame_header(
    data: Buffer, life: FileLife, position: int, *, file_name: str
) -> FrameHeader | None:
    """The header at the start of `data`, which lies at `position`; None: none of this life.

    Errors: UnsupportedVersion.
    """
    if len(data) < HEADER_BYTES or data[:4] != _MAGIC:
        return None
    (
        _,
        version,
        under_way,
        generation,
        salt,
        own_position,
        sequence,
        released_through,
        entry_count,
        tables_bytes,
        payload_bytes,
        tables_crc,
        header_crc,
    ) = _HEADER.unpack_from(data)
    if header_crc != crc32c(memoryview(data)[:_HEADER_CRC_POSITION]):
        return None
    if (generation, salt) != life or own_position != position:
        return None
    if not 1 <= version <= VERSION:
        raise unsupported(file_name, version, VERSION)
    return FrameHeader(
        position,
        sequence,
        released_through,
        entry_count,
        tables_bytes,
        payload_bytes,
        tables_crc,
        under_way if version > 1 else 0,
    )


def is_damaged_header(data: Buffer, life: FileLife, position: int) -> bool:
    """`data` is no header of this life, but was meant to be: the salt, or generation and place, are
    this life's, which no other bytes have but by design."""
    if len(data) < HEADER_BYTES:
        return False
    _, _, _, generation, salt, own_position, *_ = _HEADER.unpack_from(data)
    return bool(salt == life.salt or (generation, own_position) == (life.generation, position))


def decode_entries(header: FrameHeader, frame: Buffer) -> list[StreamEntry] | None:
    """The entries of a frame whose bytes start `frame`; None where a CRC or a size is wrong.

    Their parts are slices of `frame`.
    """
    view = memoryview(frame)[: header.length]
    table_end = HEADER_BYTES + header.entry_count * _ENTRY.size
    payload_at = HEADER_BYTES + header.tables_bytes
    if len(view) != header.length or table_end > payload_at:
        return None
    if crc32c(view[HEADER_BYTES:payload_at]) != header.tables_crc32c:
        return None
    attributes = bytes(view[table_end:payload_at])
    attribute_at = 0
    entries: list[StreamEntry] = []
    for (
        stream_id,
        epoch,
        base_offset,
        record_count,
        timestamp,
        attribute_bytes,
        size,
        crc,
    ) in _ENTRY.iter_unpack(view[HEADER_BYTES:table_end]):
        payload = view[payload_at : payload_at + size]
        if len(payload) != size or crc32c(payload) != crc:
            return None
        own = attributes[attribute_at : attribute_at + attribute_bytes]
        entries.append(
            StreamEntry(
                stream_id, epoch, base_offset, record_count, timestamp, (payload,), own, crc
            )
        )
        attribute_at += attribute_bytes
        payload_at += size
    if payload_at != len(view) or attribute_at != len(attributes):
        return None
    return entries
