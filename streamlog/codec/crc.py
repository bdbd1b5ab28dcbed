"""CRC-32C over any buffer, without a copy and in hardware where there is any."""

from __future__ import annotations

from typing import cast

from awscrt import checksums

from streamlog.codec.choice import native
from streamlog.runtime.buffers import Buffer, Parts

_NATIVE_BYTES_MAX = 768 << 10
"""Up to here the interpreter is held, for 30 µs at most. awscrt, twice as fast, gives it away for
more than some kilobytes, and has it back after up to 5 ms where other threads are busy."""


def crc32c(data: Buffer, previous: int = 0) -> int:
    """The CRC-32C of `data`, or with `previous` of what came before and `data`."""
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
