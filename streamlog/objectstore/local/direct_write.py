"""Writes large new files past the page cache, where the file system can.

A new page of the page cache costs several times as much as the copy into it, and twenty times on a
virtual machine whose host hands out memory page by page. Readers get a new object from the tail
cache anyway. So the bytes are gathered in an aligned buffer and go to the device from there.

1. `write` fills the file from its start; nothing is durable before the caller's fsync.
2. The last block is written in full, then the file is cut to its size.
3. A file system that refuses O_DIRECT (EINVAL) gets ordinary writes.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from collections import deque
from collections.abc import Sequence

from streamlog.codec.crc import crc32c
from streamlog.runtime.buffers import Buffer

DIRECT_BYTES_MIN = 256 * 1024
"""Smaller files gain nothing."""
BUFFER_BYTES = 1024 * 1024
ALIGNMENT = 4096
WRITEV_PARTS_MAX = 1024
_O_DIRECT = getattr(os, "O_DIRECT", 0)


class FileWriter:
    """May be used by any number of threads; keeps one buffer for each that ever wrote at a time."""

    def __init__(self) -> None:
        self._buffers: deque[mmap.mmap] = deque()
        self._is_direct = bool(_O_DIRECT)

    def write(self, descriptor: int, parts: Sequence[Buffer]) -> int:
        """Fills a new, empty file. Returns a checksum for the etag.

        The checksum covers all bytes of a small file; of a large one the beginning of each buffer
        and the end. Errors: OSError.
        """
        views = [memoryview(part).cast("B") for part in parts if len(part)]
        size = sum(len(view) for view in views)
        if size < DIRECT_BYTES_MIN or not self._is_direct:
            return _write_plain(descriptor, views)
        try:
            _set_direct(descriptor, True)
            return self._write_direct(descriptor, views, size)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
                raise
        self._is_direct = False
        _set_direct(descriptor, False)
        os.ftruncate(descriptor, 0)
        return _write_plain(descriptor, views)

    def _write_direct(self, descriptor: int, views: Sequence[memoryview], size: int) -> int:
        try:
            buffer = self._buffers.pop()
        except IndexError:
            buffer = mmap.mmap(-1, BUFFER_BYTES)
        checksum = position = filled = 0
        buffer.seek(0)
        try:
            with memoryview(buffer) as whole:
                for view in views:
                    left = len(view)
                    while filled + left >= BUFFER_BYTES:
                        count = BUFFER_BYTES - filled
                        buffer.write(view[:count])
                        checksum = crc32c(whole[:ALIGNMENT], checksum)
                        _write_at(descriptor, whole, position)
                        position += BUFFER_BYTES
                        view, left, filled = view[count:], left - count, 0
                        buffer.seek(0)
                    if left:
                        buffer.write(view)
                        filled += left
                if filled:
                    checksum = crc32c(whole[:filled], checksum)
                    padded = -(-filled // ALIGNMENT) * ALIGNMENT
                    buffer.write(bytes(padded - filled))
                    _write_at(descriptor, whole[:padded], position)
                    os.ftruncate(descriptor, size)
        finally:
            self._buffers.append(buffer)
        return checksum


def _set_direct(descriptor: int, is_direct: bool) -> None:
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    flags = flags | _O_DIRECT if is_direct else flags & ~_O_DIRECT
    fcntl.fcntl(descriptor, fcntl.F_SETFL, flags)


def _write_at(descriptor: int, data: memoryview, position: int) -> None:
    """Writes all of `data`. A short write ends on a block, so that the remainder is aligned too."""
    while len(data):
        written = os.pwrite(descriptor, data, position)
        data = data[written:]
        position += written


def _write_plain(descriptor: int, views: list[memoryview]) -> int:
    checksum = 0
    for view in views:
        checksum = crc32c(view, checksum)
    first = 0
    while first < len(views):
        written = os.writev(descriptor, views[first : first + WRITEV_PARTS_MAX])
        while written:
            if written >= len(views[first]):
                written -= len(views[first])
                first += 1
            else:
                views[first] = views[first][written:]
                written = 0
    return checksum
