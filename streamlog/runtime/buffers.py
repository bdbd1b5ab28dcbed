"""Names for bytes that are passed along without a copy."""

from __future__ import annotations

from collections.abc import Sequence

Buffer = bytes | bytearray | memoryview
"""Read-only by contract: a receiver may keep a buffer and never writes to it."""

Parts = tuple[Buffer, ...]
"""One run of bytes in pieces, in order."""


def parts_size(parts: Sequence[Buffer]) -> int:
    """Size of all pieces together."""
    count = len(parts)
    if count == 2:  # A batch of a log: its new header, and the client's own bytes.
        return len(parts[0]) + len(parts[1])
    return len(parts[0]) if count == 1 else sum(map(len, parts))


def join(parts: Sequence[Buffer]) -> Buffer:
    """One buffer; without a copy if there is only one piece."""
    return parts[0] if len(parts) == 1 else b"".join(parts)
