"""The compression codecs of Kafka record batches; the decompressed size is bounded.

Snappy is written as snappy-java's blocks, which every Kafka client reads; raw snappy is read, too.
LZ4 is written in independent blocks without a content checksum, as Kafka's brokers want it.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator

import cramjam
import zstandard

from streamlog.codec.batch import Compression
from streamlog.codec.compressed_blocks import XERIAL_HEADER, XERIAL_MAGIC
from streamlog.errors import CorruptMessage, InvalidRecord
from streamlog.runtime.buffers import Buffer

DECOMPRESSED_BYTES_MAX = 128 << 20
"""The default bound on the bytes of one decompressed batch."""

LEVEL_DEFAULT = {
    Compression.NONE: 0,
    Compression.GZIP: 6,
    Compression.SNAPPY: 0,
    Compression.LZ4: 1,
    Compression.ZSTD: 3,
}

_XERIAL_BLOCK_BYTES = 32 * 1024
_LZ4_RATIO_MAX = 255
_CHUNK_BYTES = 1 << 20
GZIP_MEMBERS_MAX = 64
"""Clients write one. Each costs a copy of all bytes behind it."""


def compress(codec: Compression, data: Buffer, level: int | None = None) -> Buffer:
    """`data` as one block; `level` None is the codec's default (snappy has none)."""
    level = LEVEL_DEFAULT[codec] if level is None else level
    if codec is Compression.GZIP:
        return zlib.compress(data, level, wbits=31)
    if codec is Compression.SNAPPY:
        return _snappy_compress(data)
    if codec is Compression.LZ4:
        frame = cramjam.lz4.Compressor(level=level, content_checksum=False, block_linked=False)
        frame.compress(bytes(data))
        return bytes(frame.finish())
    if codec is Compression.ZSTD:
        return zstandard.ZstdCompressor(level=level).compress(data)
    return data


def decompress(codec: int, data: Buffer, limit_bytes: int = DECOMPRESSED_BYTES_MAX) -> Buffer:
    """`data` decompressed.

    Errors: CorruptMessage (not of that codec), InvalidRecord (unknown codec, larger than
    `limit_bytes`).
    """
    try:
        if codec == Compression.NONE:
            return data
        if codec == Compression.GZIP:
            return _gzip_decompress(data, limit_bytes)
        if codec == Compression.SNAPPY:
            return _snappy_decompress(data, limit_bytes)
        if codec == Compression.LZ4:
            return _lz4_decompress(data, limit_bytes)
        if codec == Compression.ZSTD:
            return _zstd_decompress(data, limit_bytes)
    except (zlib.error, cramjam.DecompressionError, zstandard.ZstdError, EOFError) as error:
        raise not_of(codec, error) from error
    raise InvalidRecord(
        f"compression codec {codec} is not known; use none, gzip, snappy, lz4 or zstd"
    )


_MAGICS = {
    Compression.GZIP: b"\x1f\x8b",
    Compression.LZ4: b"\x04\x22\x4d\x18",
    Compression.ZSTD: b"\x28\xb5\x2f\xfd",
}


def begins_as(codec: int, data: Buffer) -> bool:
    """Whether the bytes begin with the codec's magic; the rest is not read."""
    if codec == Compression.NONE:
        return True
    magic = _MAGICS.get(Compression(codec), b"")
    return len(data) > 0 and bytes(memoryview(data)[: len(magic)]) == magic


def not_of(codec: int, error: BaseException) -> CorruptMessage:
    name = Compression(codec).name.lower()
    return CorruptMessage(f"the records of the batch cannot be decompressed as {name}: {error}")


def too_large(limit_bytes: int) -> InvalidRecord:
    return InvalidRecord(
        f"the records of the batch expand to more than {limit_bytes} bytes; use smaller batches",
        max_bytes=limit_bytes,
    )


def _gzip_decompress(data: Buffer, limit_bytes: int) -> bytes:
    pieces: list[bytes] = []
    room = limit_bytes
    rest: Buffer = data
    while len(rest) > 0:
        if len(pieces) == GZIP_MEMBERS_MAX:
            raise EOFError(f"it has more than {GZIP_MEMBERS_MAX} members")
        member = zlib.decompressobj(wbits=31)
        piece = member.decompress(rest, room + 1)
        room -= len(piece)
        if room < 0:
            raise too_large(limit_bytes)
        if not member.eof:
            raise EOFError("the block was cut short")
        pieces.append(piece)
        rest = member.unused_data
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _snappy_compress(data: Buffer) -> bytes:
    view = memoryview(data)
    pieces: list[bytes] = [XERIAL_HEADER]
    for start in range(0, len(view), _XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(view[start : start + _XERIAL_BLOCK_BYTES]))
        pieces += (len(block).to_bytes(4, "big"), block)
    return b"".join(pieces)


def _snappy_decompress(data: Buffer, limit_bytes: int) -> bytes:
    pieces: list[bytes] = []
    room = limit_bytes
    for piece in snappy_blocks(data, limit_bytes):
        room -= len(piece)
        if room < 0:
            raise too_large(limit_bytes)
        pieces.append(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def snappy_blocks(data: Buffer, block_bytes_max: int) -> Iterator[bytes]:
    """Each block decompressed; raw snappy is one block. Errors: as for `decompress`."""
    view = memoryview(data)
    if view[: len(XERIAL_MAGIC)] != XERIAL_MAGIC:
        yield _snappy_block(view, block_bytes_max)
        return
    if len(view) < len(XERIAL_HEADER):
        raise EOFError("the header was cut short")
    position = len(XERIAL_HEADER)
    while position < len(view):
        size = int.from_bytes(view[position : position + 4], "big")
        position += 4
        if size > len(view) - position:
            raise EOFError("the block was cut short")
        yield _snappy_block(view[position : position + size], block_bytes_max)
        position += size


def _snappy_block(block: memoryview, limit_bytes: int) -> bytes:
    """The size is read from the block before anything is allocated for it."""
    try:
        if cramjam.snappy.decompress_raw_len(block) > limit_bytes:
            raise too_large(limit_bytes)
        return bytes(cramjam.snappy.decompress_raw(block))
    except cramjam.DecompressionError as error:
        raise not_of(Compression.SNAPPY, error) from error


def _lz4_decompress(data: Buffer, limit_bytes: int) -> memoryview:
    """Tries growing buffers, as a frame need not state its size; a block grows 255-fold at most."""
    most = min(limit_bytes, _LZ4_RATIO_MAX * len(data) + _CHUNK_BYTES)
    room = min(most, 8 * len(data) + 65536)
    while True:
        target = bytearray(room)
        try:
            return memoryview(target)[: cramjam.lz4.decompress_into(data, target)]
        except cramjam.DecompressionError:
            if room >= most:
                if most == limit_bytes and _LZ4_RATIO_MAX * len(data) > limit_bytes:
                    raise too_large(limit_bytes) from None
                raise
            room = min(most, room * 4)


def _zstd_decompress(data: Buffer, limit_bytes: int) -> bytes:
    """Frames that state their size are refused before anything is allocated for them."""
    stated = zstandard.frame_content_size(data)
    if stated > limit_bytes:
        raise too_large(limit_bytes)
    reader = zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True)
    pieces: list[bytes] = []
    room = limit_bytes + 1
    chunk = stated if stated > 0 else _CHUNK_BYTES
    while room > 0:
        piece = reader.read(min(room, chunk))
        if not piece:
            break
        pieces.append(piece)
        room -= len(piece)
        chunk = _CHUNK_BYTES
    else:
        raise too_large(limit_bytes)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)
