"""CRC-32C over any buffer, without a copy, and by the processor's instructions if it has them."""

from __future__ import annotations

from typing import cast

from awscrt import checksums

from streamlog.codec.choice import native
from streamlog.runtime.buffers import Buffer, Parts

_NATIVE_BYTES_MAX = 768 << 10
"""Up to this size the native codec holds the interpreter, for 30 µs at most. awscrt is twice as
fast, but releases the interpreter, and gets it back after up to 5 ms if other threads are busy."""


def crc32c(data: Buffer, previous: int = 0) -> int:
    """The CRC-32C of `data`; of `data` behind other bytes, whose CRC is `previous`."""
    if native and len(data) < _NATIVE_BYTES_MAX:
        return native.crc32c(data, previous)
    return cast(int, checksums.crc32c(data, previous))


def crc32c_parts(parts: Parts, previous: int = 0) -> int:
    """The CRC-32C of all pieces in order."""
    for part in parts:
        previous = crc32c(part, previous)
    return previous


def crc32c_combine(first: int, second: int, second_size_bytes: int) -> int:
    """The CRC-32C of two runs from their own CRCs and the second one's size."""
    return cast(int, checksums.combine_crc32c(first, second, second_size_bytes))
