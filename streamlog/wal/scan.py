"""Finds the frames of a WAL file, going from frame to frame. Blocking.

Behind an invalid frame the scan looks for a later one of the same life at every possible position:
if there is one, the bytes in between are damaged, or torn while the later one was written whole
(recovery, rules 3 and 4).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from streamlog.format.wal.frame import (
    ALIGNMENT,
    HEADER_BYTES,
    FrameHeader,
    decode_entries,
    decode_frame_header,
    is_damaged_header,
)
from streamlog.format.wal.superblock import SUPERBLOCK_BYTES, FileState, Superblock
from streamlog.runtime.disk.interface import DiskFile

_WINDOW_BYTES = 1 << 20


class FrameRef(NamedTuple):
    """A frame with a valid header. `is_whole`: its tables and payloads are valid as well.

    `follows`: end of the frame before it; bytes in between are damaged, or torn.
    `durable_through`: the last group that it proves to have been durable before it.
    """

    sequence: int
    position: int
    length: int
    end: int
    follows: int
    is_whole: bool
    durable_through: int


@dataclass(frozen=True, slots=True)
class ScannedFile:
    """`frames` in order; `released_through` is the highest that superblock or frames state.

    `is_header_torn`: behind the last frame there is a damaged header of this life.
    """

    name: str
    file: DiskFile
    superblock: Superblock
    frames: list[FrameRef]
    released_through: int
    is_header_torn: bool = False

    @property
    def end(self) -> int:
        """Position behind the last frame."""
        return self.frames[-1].end if self.frames else SUPERBLOCK_BYTES


def scan_file(name: str, file: DiskFile, superblock: Superblock) -> ScannedFile:
    """Reads the whole file. Errors: OSError, UnsupportedVersion."""
    frames: list[FrameRef] = []
    is_header_torn = False
    released_through = superblock.released_through
    if superblock.state is FileState.ACTIVE:
        # The stated size may be wrong, or the file truncated: never read past its end.
        window = _Window(file, min(superblock.file_bytes, file.size()))
        follows = SUPERBLOCK_BYTES
        for header in _headers(name, window, superblock):
            entries = decode_entries(header, window.read(header.position, header.length))
            frames.append(
                FrameRef(
                    header.sequence,
                    header.position,
                    header.length,
                    header.end,
                    follows,
                    entries is not None,
                    header.durable_through,
                )
            )
            released_through = max(released_through, header.released_through)
            follows = header.end
        header_bytes = window.read(follows, HEADER_BYTES)
        is_header_torn = is_damaged_header(header_bytes, superblock.life, follows)
    return ScannedFile(name, file, superblock, frames, released_through, is_header_torn)


def _headers(name: str, window: _Window, superblock: Superblock) -> Iterator[FrameHeader]:
    position = SUPERBLOCK_BYTES
    while position < window.size:
        header = decode_frame_header(
            window.read(position, HEADER_BYTES), superblock.life, position, file_name=name
        )
        if header is None or header.position + header.length > window.size:
            position += ALIGNMENT
        else:
            yield header
            position = header.end


class _Window:
    """Reads a file in large pieces."""

    def __init__(self, file: DiskFile, size: int) -> None:
        self._file = file
        self.size = size
        self._start = 0
        self._data = memoryview(b"")

    def read(self, position: int, length: int) -> memoryview:
        start = position - self._start
        if start < 0 or start + length > len(self._data):
            self._data = memoryview(self._file.read(position, max(length, _WINDOW_BYTES)))
            self._start, start = position, 0
        return self._data[start : start + length]
