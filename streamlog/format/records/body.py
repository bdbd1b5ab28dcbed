"""The body of a record of any kind: plain, or one zstd frame; and a cursor that reads it."""

from __future__ import annotations

import struct

import zstandard

from streamlog.errors import UnsupportedVersion

ZSTD = 1
"""Flag: the body is one zstd frame."""
ZSTD_LEVEL = 3
COMPRESS_FROM_BYTES = 256
BODY_BYTES_MAX = 4 << 20
"""Most bytes that a reader decompresses; writers stay far below it (`record_bytes_max`)."""


def check_kind(kind: int, known: int) -> None:
    """Errors: UnsupportedVersion."""
    if kind != known:
        raise UnsupportedVersion(
            f"a record of kind {kind} needs a newer version of streamlog; upgrade this node",
            found=kind,
            supported=known,
        )


def pack_body(body: bytes) -> tuple[bytes, int]:
    """The body as stored, compressed where that pays, and the flags."""
    if len(body) >= COMPRESS_FROM_BYTES:
        packed = zstandard.compress(body, ZSTD_LEVEL)
        if len(packed) < len(body):
            return packed, ZSTD
    return body, 0


def unpack_body(stored: memoryview, flags: int, size: int) -> memoryview:
    """Errors: ValueError, ZstdError."""
    if size > BODY_BYTES_MAX or flags & ~ZSTD:
        raise ValueError(f"{size} bytes with flags {flags}")
    if flags & ZSTD:
        # zstandard ignores the bound for a frame that states its size.
        if zstandard.frame_content_size(stored) != size:
            raise ValueError(f"the compressed body does not hold {size} bytes")
        stored = memoryview(zstandard.decompress(stored, max_output_size=size))
    if len(stored) != size:
        raise ValueError(f"the body has {len(stored)} bytes, not {size}")
    return stored


class RecordCursor:
    """Reads bytes in order, and never past their end."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._position = 0

    def take(self, size: int) -> memoryview:
        start, self._position = self._position, self._position + size
        if self._position > len(self._data):
            raise ValueError(f"{size} bytes at {start} pass the end at {len(self._data)}")
        return self._data[start : self._position]

    def unpack(self, layout: struct.Struct) -> tuple[int, ...]:
        return layout.unpack(self.take(layout.size))

    def check_at_end(self) -> None:
        if self._position != len(self._data):
            raise ValueError(f"{len(self._data) - self._position} bytes too many")
