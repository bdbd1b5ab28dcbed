"""Names for bytes that are passed along without a copy."""

from __future__ import annotations

from collections.abc import Sequence

Buffer = bytes | bytearray | memoryview
"""Read only by contract: whoever is handed a buffer keeps it and never writes to it."""

Parts = tuple[Buffer, ...]
"""One run of bytes in pieces, in order."""


def parts_size(parts: Sequence[Buffer]) -> int:
    """Bytes in all pieces together."""
    return len(parts[0]) if len(parts) == 1 else sum(map(len, parts))


def join(parts: Sequence[Buffer]) -> Buffer:
    """One buffer; no copy where there is one piece."""
    return parts[0] if len(parts) == 1 else b"".join(parts)
