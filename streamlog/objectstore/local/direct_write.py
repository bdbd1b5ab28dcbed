"""Writes large new files past the page cache, where the file system can.

A new page of the page cache costs several times as much as the copy into it, and twenty times on a
virtual machine whose host hands out memory page by page. Readers get a new object from the tail
cache anyway. So the bytes are gathered in an aligned buffer and go to the device from there.

1. `write` fills the file from its start; nothing is durable before the caller's fsync.
2. A file may come in pieces (`begin`); whole or not, 1 MiB of it is held.
3. The last block is written in full, then the file is cut to its size.
4. A file system that refuses O_DIRECT (EINVAL) gets ordinary writes.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from collections import deque
from collections.abc import Callable, Sequence

from streamlog.codec.crc import crc32c
from streamlog.runtime.buffers import Buffer

DIRECT_BYTES_MIN = 256 * 1024
"""Smaller files gain nothing."""
BUFFER_BYTES = 1024 * 1024
ALIGNMENT = 4096
WRITEV_PARTS_MAX = 1024
_O_DIRECT = getattr(os, "O_DIRECT", 0)
_NO_DIRECT = (errno.EINVAL, errno.EOPNOTSUPP)


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
            return self._write_direct(descriptor, views)
        except OSError as error:
            if error.errno not in _NO_DIRECT:
                raise
        self._is_direct = False
        _set_direct(descriptor, False)
        os.ftruncate(descriptor, 0)
        return _write_plain(descriptor, views)

    def begin(self, descriptor: int, about_bytes: int) -> FileStream:
        """Fills a new, empty file piece by piece; the caller ends the stream, or drops it.

        Errors: OSError.
        """
        if about_bytes >= DIRECT_BYTES_MIN and self._is_direct:
            try:
                _set_direct(descriptor, True)
            except OSError as error:
                if error.errno not in _NO_DIRECT:
                    raise
                self._is_direct = False
        return self._stream(descriptor, repeats=True)

    def _stream(self, descriptor: int, *, repeats: bool) -> FileStream:
        try:
            buffer = self._buffers.pop()
        except IndexError:
            buffer = mmap.mmap(-1, BUFFER_BYTES)
        return FileStream(descriptor, buffer, self._buffers.append, repeats=repeats)

    def _write_direct(self, descriptor: int, views: Sequence[memoryview]) -> int:
        stream = self._stream(descriptor, repeats=False)
        try:
            stream.add(views)
            return stream.end()
        finally:
            stream.drop()


class FileStream:
    """A file that is written from its start to its end. One call at a time.

    Errors of `add` and `end`: OSError. After one the stream is of no more use.
    """

    def __init__(
        self,
        descriptor: int,
        buffer: mmap.mmap,
        give_back: Callable[[mmap.mmap], None],
        *,
        repeats: bool,
    ) -> None:
        """`repeats`: a direct write that is refused is repeated as an ordinary one."""
        self._descriptor = descriptor
        self._buffer = buffer
        self._give_back = give_back
        self._repeats = repeats
        self._checksum = self._position = self._filled = 0
        self._is_dropped = False
        buffer.seek(0)

    def add(self, views: Sequence[memoryview]) -> None:
        """Bytes are written when a buffer is full; the caller may reuse their memory on return."""
        buffer = self._buffer
        with memoryview(buffer) as whole:
            for view in views:
                left = len(view)
                while self._filled + left >= BUFFER_BYTES:
                    count = BUFFER_BYTES - self._filled
                    buffer.write(view[:count])
                    self._checksum = crc32c(whole[:ALIGNMENT], self._checksum)
                    self._write(whole)
                    self._position += BUFFER_BYTES
                    view, left, self._filled = view[count:], left - count, 0
                    buffer.seek(0)
                if left:
                    buffer.write(view)
                    self._filled += left

    def end(self) -> int:
        """The file is whole, and not durable. Returns a checksum as FileWriter.write."""
        filled, buffer = self._filled, self._buffer
        if filled:
            with memoryview(buffer) as whole:
                self._checksum = crc32c(whole[:filled], self._checksum)
                padded = -(-filled // ALIGNMENT) * ALIGNMENT
                buffer.write(bytes(padded - filled))
                self._write(whole[:padded])
            os.ftruncate(self._descriptor, self._position + filled)
        return self._checksum

    def drop(self) -> None:
        """Frees the buffer; harmless when called again."""
        if not self._is_dropped:
            self._is_dropped = True
            self._give_back(self._buffer)

    def _write(self, data: memoryview) -> None:
        try:
            _write_at(self._descriptor, data, self._position)
        except OSError as error:
            if error.errno not in _NO_DIRECT or not self._repeats:
                raise
            self._repeats = False
            _set_direct(self._descriptor, False)
            _write_at(self._descriptor, data, self._position)


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
