"""What a copy reads: the files of a segment, in pieces."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import TypeVar

from streamlog.errors import Internal, Invalid
from streamlog.runtime.buffers import Buffer
from streamlog.tiered.api.storage_manager import LogSegmentData, SegmentFile
from streamlog.tiered.storage.names import FileKind

T = TypeVar("T")

PIECE_BYTES = 4 << 20
"""What a copy holds of a file at a time. More means fewer calls, less means less memory."""


def files_of(data: LogSegmentData) -> Iterator[tuple[FileKind, SegmentFile | bytes]]:
    """Those that there are, in the order of KINDS."""
    yield from data.indexes()
    yield None, data.log_segment


async def pieces(content: SegmentFile | bytes) -> AsyncIterator[Buffer]:
    """All bytes, in order. Errors: StoreUnavailable; Internal (the file shrank)."""
    if isinstance(content, bytes):
        yield content
        return
    position, size_bytes = 0, content.size_bytes
    while position < size_bytes:
        piece = await content.read(position, min(PIECE_BYTES, size_bytes - position))
        if not len(piece):
            raise Internal(
                f"{content.path or 'a file'} that is copied to the remote tier ended at "
                f"{position} of {size_bytes} bytes: somebody changed it meanwhile"
            )
        position += len(piece)
        yield piece


def range_length(start_position: int, end_position: int) -> int:
    """Bytes of a range whose ends are both inclusive. Errors: Invalid."""
    if not 0 <= start_position <= end_position:
        raise Invalid(f"there are no bytes from {start_position} to {end_position} of a segment")
    return end_position - start_position + 1
