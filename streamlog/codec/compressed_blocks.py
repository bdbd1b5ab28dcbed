"""Whether compressed records are whole, by the sizes that stand before their blocks.

Nothing is decompressed, so the cost is that of some blocks, whatever they hold. What was cut short
is found; a byte that was changed within a block is not. Gzip and raw snappy have no blocks whose
size stands before them, and snappy-java's have none that says to be the last.

Sources: the LZ4 frame format 1.6.4, RFC 8878 (Zstandard), snappy-java's SnappyOutputStream.
"""

from __future__ import annotations

from streamlog.codec.batch import Compression

BLOCKS_MAX = 256
"""Behind so many the rest is taken on trust: a frame may have a block for every four bytes."""

XERIAL_MAGIC = b"\x82SNAPPY\x00"
XERIAL_HEADER = XERIAL_MAGIC + b"\x00\x00\x00\x01\x00\x00\x00\x01"

_LZ4_MAGIC = b"\x04\x22\x4d\x18"
_LZ4_RAW = 1 << 31
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_ZSTD_SKIPPED = range(0x184D2A50, 0x184D2A60)
_ZSTD_RLE, _ZSTD_RESERVED = 1, 3
_ZSTD_DICTIONARY_ID = (0, 1, 2, 4)
_ZSTD_CONTENT_SIZE = (0, 2, 4, 8)


def is_cut(codec: int, data: memoryview) -> bool:
    """True: a client cannot decompress all of it. False: it may be whole."""
    if codec == Compression.LZ4:
        end = _lz4_end(data)
    elif codec == Compression.ZSTD:
        end = _zstd_end(data)
    elif codec == Compression.SNAPPY and data[: len(XERIAL_MAGIC)] == XERIAL_MAGIC:
        end = _xerial_end(data)
    else:
        end = 0
    return end > len(data)


def _number(data: memoryview, position: int, size: int) -> int:
    return int.from_bytes(data[position : position + size], "little")


def _lz4_end(data: memoryview) -> int:
    """Where the frame ends, or a place behind the data; what follows a frame is nobody's."""
    flags = _number(data, len(_LZ4_MAGIC), 1)
    block_checksum, content_checksum = flags >> 4 & 1, flags >> 2 & 1
    # Magic, flags, block descriptor, content size, dictionary id, checksum of the header.
    position = 7 + 8 * (flags >> 3 & 1) + 4 * (flags & 1)
    for _ in range(BLOCKS_MAX):
        size = _number(data, position, 4)
        position += 4
        if position > len(data):
            return position
        if size == 0:
            return position + 4 * content_checksum
        position += size % _LZ4_RAW + 4 * block_checksum
    return 0


def _zstd_end(data: memoryview) -> int:
    """Where the last frame ends, or a place behind the data."""
    position, blocks = 0, 0
    while position < len(data):
        magic = _number(data, position, 4)
        if magic in _ZSTD_SKIPPED:
            position += 8 + _number(data, position + 4, 4)
            blocks += 1
        elif data[position : position + 4] == _ZSTD_MAGIC:
            position, more = _zstd_frame_end(data, position, BLOCKS_MAX - blocks)
            blocks += more
        else:
            return len(data) + 1
        if blocks >= BLOCKS_MAX:
            return 0
    return position


def _zstd_frame_end(data: memoryview, position: int, blocks_max: int) -> tuple[int, int]:
    """Where the frame ends, and how many blocks were seen."""
    flags = _number(data, position + 4, 1)
    is_single_segment, has_checksum = flags >> 5 & 1, flags >> 2 & 1
    content_size = _ZSTD_CONTENT_SIZE[flags >> 6] or is_single_segment
    position += 5 + (1 - is_single_segment) + _ZSTD_DICTIONARY_ID[flags & 3] + content_size
    for number in range(blocks_max):
        header = _number(data, position, 3)
        position += 3
        kind, size = header >> 1 & 3, header >> 3
        if position > len(data) or kind == _ZSTD_RESERVED:
            return len(data) + 1, number
        position += 1 if kind == _ZSTD_RLE else size
        if header & 1:
            return position + 4 * has_checksum, number + 1
    return position, blocks_max


def _xerial_end(data: memoryview) -> int:
    position = len(XERIAL_HEADER)
    for _ in range(BLOCKS_MAX):
        if position >= len(data):
            break
        if data[position : position + 4] == XERIAL_MAGIC[:4]:
            return 0  # Another stream, which some readers take.
        position += 4 + int.from_bytes(data[position : position + 4], "big")
    else:
        return 0
    return position
