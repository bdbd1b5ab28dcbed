"""Whole reads and writes on a file descriptor, however little the kernel moves at a time."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from streamlog.runtime.buffers import Buffer

try:
    from streamlog.runtime import _native
except ImportError:  # There was no compiler, or this is no Linux.
    in_c: Callable[[int, int, int], bytes | None] | None = None
else:
    in_c = getattr(_native, "read_now", None)

_NOWAIT = getattr(os, "RWF_NOWAIT", 0)

PARTS_MAX = 1024
"""IOV_MAX on every system that counts."""


def write_whole(descriptor: int, position: int, parts: Sequence[Buffer], flags: int = 0) -> int:
    """Writes the parts one after another at `position`; returns the end. Errors: OSError, after
    which a prefix of them may be there."""
    pieces = [part for part in parts if len(part)]
    while pieces:
        written = os.pwritev(descriptor, pieces[:PARTS_MAX], position, flags)
        position += written
        whole = 0
        while whole < len(pieces) and written >= len(pieces[whole]):
            written -= len(pieces[whole])
            whole += 1
        pieces = pieces[whole:]
        if written:
            pieces[0] = memoryview(pieces[0])[written:]
    return position


def read_whole(descriptor: int, position: int, length: int) -> bytes:
    """`length` bytes from `position` on; fewer only at the end of the file. Errors: OSError."""
    pieces: list[bytes] = []
    while length > 0:
        piece = os.pread(descriptor, length, position)
        if not piece:
            break
        pieces.append(piece)
        position += len(piece)
        length -= len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def read_now(descriptor: int, position: int, length: int) -> Buffer | None:
    """`length` bytes, from the page cache alone; None where it lacks any, or nobody knows. Whoever
    comes again where it may block hears of an error."""
    if in_c is not None:
        return in_c(descriptor, position, length)
    if not _NOWAIT:
        return None
    buffer = bytearray(length)
    try:
        found = os.preadv(descriptor, [buffer], position, _NOWAIT)
    except OSError:
        return None
    return buffer if found == length else None
