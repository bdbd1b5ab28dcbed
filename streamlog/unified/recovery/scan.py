"""Goes through the batches of a segment's file. It blocks: call it through Offload."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from streamlog.codec.batch import (
    HEADER_BYTES,
    LENGTH_END,
    MAGIC,
    BatchHeader,
    ScannedBatch,
    check_crc,
    parse_header,
)
from streamlog.errors import CorruptMessage
from streamlog.runtime.disk.growing import GrowingFile

CHUNK_BYTES = 1 << 20
LOOKED_AT_MAX = 100_000
"""Batches between two entries of an index, at most."""


class FoundBatch(NamedTuple):
    """`view` is the whole batch; it is valid until the next one is asked for."""

    position: int
    header: BatchHeader
    view: memoryview


def batches(
    file: GrowingFile, position: int, next_offset: int, *, verify: bool, end: int | None = None
) -> Iterator[FoundBatch]:
    """Sound batches from `position` to `end` (None: the file's); it ends at the first byte that
    belongs to none.

    A batch is sound where its header agrees with itself, its offsets come behind `next_offset`, and
    its CRC is right (`verify`). Errors: OSError.
    """
    size = file.size() if end is None else end
    chunk, start = memoryview(b""), position
    while position < size:
        at = position - start
        header = _header(chunk, at)
        if header is None or header.size_bytes > len(chunk) - at:
            wanted = CHUNK_BYTES if header is None else max(CHUNK_BYTES, header.size_bytes)
            if header is not None and not _is_sound(header, next_offset, size - position):
                return
            wanted = min(wanted, size - position)
            chunk, start, at = memoryview(file.read(position, wanted)), position, 0
            header = _header(chunk, 0)
            if header is not None and len(chunk) < header.size_bytes <= size - position:
                continue  # It is longer than a chunk: its length is known now.
        if header is None or not _is_sound(header, next_offset, len(chunk) - at):
            return
        view = chunk[at : at + header.size_bytes]
        if verify and not _has_crc(header, view, position):
            return
        yield FoundBatch(position, header, view)
        position += header.size_bytes
        next_offset = header.next_offset


def _has_crc(header: BatchHeader, view: memoryview, position: int) -> bool:
    try:
        check_crc(ScannedBatch(header, view), position)
    except CorruptMessage:
        return False
    return True


def header_at(file: GrowingFile, position: int) -> BatchHeader | None:
    """The header at the position, unchecked; None where the file ends before. Errors: OSError."""
    data = file.read(position, HEADER_BYTES)
    return parse_header(data) if len(data) == HEADER_BYTES else None


def holds_time(file: GrowingFile, position: int, last_offset: int, timestamp_ms: int) -> bool:
    """Whether the batch that ends at the offset, at or behind the position, has that timestamp as
    its largest. Errors: OSError."""
    for _ in range(LOOKED_AT_MAX):
        header = header_at(file, position)
        if header is None or header.size_bytes < HEADER_BYTES or header.last_offset > last_offset:
            return False
        if header.last_offset == last_offset:
            return header.max_timestamp_ms == timestamp_ms
        position += header.size_bytes
    return False


def header_with(file: GrowingFile, position: int, offset: int) -> tuple[BatchHeader, bytes] | None:
    """The first batch at or behind the position that ends at or behind the offset; None where there
    is none. Errors: OSError."""
    for _ in range(LOOKED_AT_MAX):
        header = header_at(file, position)
        if header is None or header.size_bytes < HEADER_BYTES or header.last_offset_delta < 0:
            return None
        if header.last_offset >= offset:
            # A marker is small: of another batch its header is enough.
            return header, file.read(position, min(header.size_bytes, CHUNK_BYTES))
        position += header.size_bytes
    return None


def _header(chunk: memoryview, at: int) -> BatchHeader | None:
    return parse_header(chunk, at) if len(chunk) - at >= HEADER_BYTES else None


def _is_sound(header: BatchHeader, next_offset: int, room: int) -> bool:
    return (
        header.magic == MAGIC
        and HEADER_BYTES <= header.length + LENGTH_END <= room
        and header.base_offset >= next_offset
        and header.last_offset_delta >= 0
        and 0 <= header.record_count <= header.last_offset_delta + 1
    )
