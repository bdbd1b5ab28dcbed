"""A data block: a run of one stream's record batches, without a gap between their offsets.

Block (little endian)

    offset  field             bytes  meaning
    0       magic             4      "SLBK"
    4       batch count       u32    n ≥ 1
    8       stream id         u64
    16      attributes bytes  u32    of all batches together
    20      payload bytes     u32    of all batches together, before compression
    24      stored bytes      u32    of the payload area in this block
    28      compression       u8     0 none, 1 zstd (one frame that states its content size)
    29      reserved          3      0
    32      batch table       n × 29
            attributes        of the batches, one after another
            payload area      payloads one after another, as one piece when compressed

Batch table entry

    0       base offset       i64    first offset; the next entry's is this + record count
    8       record count      u32    ≥ 1
    12      timestamp         i64    base timestamp, ms
    20      attributes bytes  u8     ≤ 64
    21      payload bytes     u32
    25      payload crc       u32    CRC-32C of the payload before compression

The block's CRC-32C covers all of its bytes and lies in the index. A block has no version of its
own: the index region's holds for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from struct import Struct
from typing import NamedTuple

import zstandard

from streamlog.codec.batch import HEADER_BYTES, place_into
from streamlog.codec.crc import crc32c, crc32c_combine
from streamlog.errors import Corrupt, MessageTooLarge
from streamlog.format.corrupt import corrupt
from streamlog.format.entry import StreamEntry
from streamlog.format.rows import NO_LEADER_EPOCH, Placement
from streamlog.model.batch import StoredBatch
from streamlog.runtime.buffers import Buffer

PAYLOAD_BYTES_MAX = 1 << 30
"""Most bytes of a block before compression that a reader accepts."""
BATCH_BYTES = 29
BLOCK_HEADER_BYTES = 32

_MAGIC = b"SLBK"
_HEADER = Struct("<4sIQIIIB3x")
_BATCH = Struct("<qIqBII")
_PAYS_BELOW = 0.9
"""Compressed size over plain size from which on compression is not worth a reader's time."""
_SAMPLE_BYTES = 64 * 1024
_LEVEL = 1


class BlockCompression(IntEnum):
    NONE = 0
    ZSTD = 1


class BlockRow(NamedTuple):
    """A block's row in the index: offsets start (inclusive) to end (exclusive) of one stream.

    `position` and `length` are bytes in the object; `attributes_position` is a byte position in the
    attributes section. `place`: of an attached object; start and end count in the stream.
    """

    stream_id: int
    start: int
    end: int
    position: int
    length: int
    crc32c: int
    batch_count: int
    attributes_position: int
    compression: int
    place: Placement | None = None


class EncodedBlock(NamedTuple):
    """`parts` joined are the block; uncompressed payloads are the entries' own buffers."""

    parts: list[Buffer]
    size_bytes: int
    crc32c: int
    compression: BlockCompression


def encode_block(
    entries: Sequence[StreamEntry], sizes: Sequence[int], compression: BlockCompression
) -> EncodedBlock:
    """A block of consecutive entries of one stream; `sizes` are their payloads' bytes.

    The payload CRCs are taken from the entries and combined: plain payloads are not read.
    """
    payload_bytes = sum(sizes)
    if payload_bytes > PAYLOAD_BYTES_MAX:
        raise MessageTooLarge(
            f"a block of {payload_bytes} bytes; at most {PAYLOAD_BYTES_MAX} are allowed",
            size_bytes=payload_bytes,
            max_bytes=PAYLOAD_BYTES_MAX,
        )
    pack = _BATCH.pack
    table = b"".join(
        [
            pack(
                e.base_offset,
                e.record_count,
                e.base_timestamp_ms,
                len(e.attributes),
                size,
                e.payload_crc32c,
            )
            for e, size in zip(entries, sizes, strict=True)
        ]
    )
    attributes = b"".join([e.attributes for e in entries])
    packed = _compress(entries, payload_bytes) if compression is BlockCompression.ZSTD else None
    stored_bytes = payload_bytes if packed is None else len(packed)
    used = BlockCompression.NONE if packed is None else BlockCompression.ZSTD
    header = _HEADER.pack(
        _MAGIC,
        len(entries),
        entries[0].stream_id,
        len(attributes),
        payload_bytes,
        stored_bytes,
        used,
    )
    head = header + table + attributes
    crc = crc32c(head)
    parts: list[Buffer] = [head]
    if packed is None:
        for entry, size in zip(entries, sizes, strict=True):
            parts += entry.parts
            crc = crc32c_combine(crc, entry.payload_crc32c, size)
    else:
        parts.append(packed)
        crc = crc32c(packed, crc)
    return EncodedBlock(parts, len(head) + stored_bytes, crc, used)


def _compress(entries: Sequence[StreamEntry], payload_bytes: int) -> bytes | None:
    """The compressed area; None where compression does not pay, which a sample shows first."""
    raw = b"".join([part for entry in entries for part in entry.parts])
    compressor = zstandard.ZstdCompressor(level=_LEVEL, write_checksum=False)
    if payload_bytes > 2 * _SAMPLE_BYTES:
        sample = compressor.compress(memoryview(raw)[:_SAMPLE_BYTES])
        if len(sample) >= _SAMPLE_BYTES * _PAYS_BELOW:
            return None
    packed = compressor.compress(raw)
    return packed if len(packed) < payload_bytes * _PAYS_BELOW else None


def decode_block(data: Buffer, block: BlockRow, *, object_key: str) -> list[StoredBatch]:
    """The batches of a block whose bytes are `data`; their parts are slices of it, or of one
    decompressed buffer. Errors: Corrupt.
    """
    table, attributes, payload = _sections(data, block, object_key)
    return _batches(table, bytes(attributes), payload, block, object_key)


def decode_payload(data: Buffer, block: BlockRow, *, object_key: str) -> Buffer:
    """The payloads of a block's batches as they lie, one behind the other, without a look at each:
    the block's CRC holds. Errors: Corrupt.
    """
    if block.place is not None:
        batches = decode_block(data, block, object_key=object_key)
        return b"".join([part for batch in batches for part in batch.parts])
    _, _, payload = _sections(data, block, object_key)
    return payload


def _sections(
    data: Buffer, block: BlockRow, object_key: str
) -> tuple[memoryview, memoryview, memoryview]:
    """Batch table, attributes, and payloads before compression."""
    if len(data) != block.length:
        raise _corrupt(f"{len(data)} bytes instead of {block.length}", block, object_key)
    if crc32c(data) != block.crc32c:
        raise _corrupt("the block's CRC does not match", block, object_key)
    if len(data) < BLOCK_HEADER_BYTES:
        raise _corrupt("the block's header is cut short", block, object_key)
    magic, count, stream_id, attributes_bytes, payload_bytes, stored_bytes, compression = (
        _HEADER.unpack_from(data)
    )
    attributes_at = BLOCK_HEADER_BYTES + count * BATCH_BYTES
    payload_at = attributes_at + attributes_bytes
    if (
        magic != _MAGIC
        or stream_id != block.stream_id
        or count != block.batch_count
        or compression != block.compression
        or payload_at + stored_bytes != len(data)
        or payload_bytes > PAYLOAD_BYTES_MAX
    ):
        raise _corrupt("the block's header contradicts the index", block, object_key)
    view = memoryview(data)
    stored = view[payload_at:]
    if compression == BlockCompression.ZSTD:
        payload = memoryview(_decompress(stored, payload_bytes, block, object_key))
    elif compression == BlockCompression.NONE and stored_bytes == payload_bytes:
        payload = stored
    else:
        raise _corrupt("unknown compression", block, object_key)
    return view[BLOCK_HEADER_BYTES:attributes_at], view[attributes_at:payload_at], payload


def _batches(
    table: memoryview, attributes: bytes, payload: memoryview, block: BlockRow, object_key: str
) -> list[StoredBatch]:
    is_compressed = block.compression != BlockCompression.NONE
    place = block.place
    shift = 0 if place is None else place.base
    is_patched = place is not None and place.leader_epoch != NO_LEADER_EPOCH
    patched = bytearray(payload) if is_patched else None
    handed_out = payload if patched is None else memoryview(patched).toreadonly()
    batches: list[StoredBatch] = []
    expected, attribute_at, payload_at = block.start, 0, 0
    for base, count, timestamp, attribute_bytes, size, crc in _BATCH.iter_unpack(table):
        if base + shift != expected or count < 1:
            raise _corrupt("the offsets in the block do not meet", block, object_key)
        piece = payload[payload_at : payload_at + size]
        if len(piece) != size or (is_compressed and crc32c(piece) != crc):
            raise _corrupt("a payload's size or CRC does not match", block, object_key)
        own = attributes[attribute_at : attribute_at + attribute_bytes]
        if patched is not None and place is not None:
            if size < HEADER_BYTES:
                raise _corrupt("a staged record batch is cut short", block, object_key)
            place_into(patched, payload_at, size, expected, place.leader_epoch)
            piece = handed_out[payload_at : payload_at + size]
        batches.append(StoredBatch(expected, count, timestamp, (piece,), own))
        expected += count
        attribute_at += attribute_bytes
        payload_at += size
    if expected != block.end or attribute_at != len(attributes) or payload_at != len(payload):
        raise _corrupt("the batches do not fill the block", block, object_key)
    return batches


def _decompress(stored: memoryview, size: int, block: BlockRow, object_key: str) -> bytes:
    """Never allocates more than the size that the header states, which is bounded."""
    try:
        if zstandard.frame_content_size(stored) != size:
            raise _corrupt("the compressed size is wrong", block, object_key)
        raw = zstandard.ZstdDecompressor().decompress(
            stored, max_output_size=size, allow_extra_data=False
        )
    except zstandard.ZstdError as error:
        raise _corrupt("the compressed bytes cannot be read", block, object_key) from error
    if len(raw) != size:
        raise _corrupt("the compressed size is wrong", block, object_key)
    return raw


def _corrupt(what: str, block: BlockRow, object_key: str) -> Corrupt:
    return corrupt(what, object_key, block.position, block.position + block.length)
