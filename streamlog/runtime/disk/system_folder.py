"""GrowingFolder over a real folder."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from streamlog.runtime.buffers import Buffer
from streamlog.runtime.disk.descriptors import read_now, read_whole, write_whole
from streamlog.runtime.disk.real_folder import RealFolder
from streamlog.runtime.writer_threads import Done, WriterThreads

log = logging.getLogger(__name__)

_PIECE_BYTES = 1 << 20


class SystemGrowingFile:
    """A file of a SystemFolder."""

    def __init__(self, descriptor: int) -> None:
        """The descriptor is the file's, and is closed behind an error. Errors: OSError (as a file
        system of another machine may have of a file that is open)."""
        self._descriptor = descriptor
        try:
            self._end = os.fstat(descriptor).st_size
        except OSError:
            self.close()
            raise

    def append(self, parts: Sequence[Buffer]) -> int:
        start = self._end
        self._end = write_whole(self._descriptor, start, parts)
        return start

    def append_by(
        self, threads: WriterThreads, parts: Sequence[Buffer], done: Done, *, is_synced: bool
    ) -> bool:
        """As `append`, and with `is_synced` a `sync` behind it, for an event loop. The file has its
        new size when `done` is called without an error. False: no thread could be begun."""
        start = self._end

        def ended(error: OSError | None, is_written: bool) -> None:
            if is_written:
                self._end = start + sum(map(len, parts))
            done(error, is_written)

        if self._descriptor < 0:
            raise OSError(errno.EBADF, "the file was closed")
        return threads.write(self._descriptor, start, parts, ended, is_synced=is_synced)

    def read(self, position: int, length: int) -> bytes:
        # A failed append may have left bytes behind the end.
        return read_whole(self._descriptor, position, min(length, self._end - position))

    def read_now(self, position: int, length: int) -> Buffer | None:
        wanted = max(0, min(length, self._end - position))
        return read_now(self._descriptor, position, wanted)

    def truncate(self, size: int) -> None:
        # What a failed append left lies behind `_end`, and goes as well.
        if not 0 <= size <= self._end:
            raise ValueError(f"a file of {self._end} bytes cannot be cut to {size}")
        with self._no_change():
            os.ftruncate(self._descriptor, size)
        self._end = size

    def write_again(self, position: int) -> None:
        with self._no_change():
            while position < self._end:
                data = self.read(position, _PIECE_BYTES)
                position = write_whole(self._descriptor, position, [data])

    @contextmanager
    def _no_change(self) -> Iterator[None]:
        """Puts the time of the last change back at its end."""
        before = os.fstat(self._descriptor)
        yield
        try:
            os.utime(self._descriptor, ns=(before.st_atime_ns, before.st_mtime_ns))
        except OSError as error:  # The file is another user's, or its file system keeps no times.
            log.warning("a file counts as changed now, by which it is too young: %s", error)

    def sync(self) -> None:
        if self._descriptor < 0:
            raise OSError(errno.EBADF, "the file was closed")  # Python says ValueError.
        os.fsync(self._descriptor)

    def size(self) -> int:
        return self._end

    def close(self) -> None:
        # The number may be another file's by a second call, or by a late one of another method.
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


class SystemFolder(RealFolder):
    """A folder, made when it is not there."""

    def __init__(self, root: Path, *, is_made: bool = False) -> None:
        """`is_made`: it is there, and its entry durable. Errors: OSError."""
        super().__init__(root)
        if not is_made:
            self._make()

    def create(self, name: str) -> SystemGrowingFile:
        return SystemGrowingFile(self._create_file(name))

    def open(self, name: str) -> SystemGrowingFile:
        return SystemGrowingFile(self._open_file(name))

    def open_to_read(self, name: str) -> SystemGrowingFile:
        return SystemGrowingFile(self._open_file(name, os.O_RDONLY))

    def path_of(self, name: str) -> Path:
        return self._path(name)

    def rename(self, old: str, new: str) -> None:
        os.rename(self._path(old), self._path(new))

    def remove(self, name: str) -> None:
        os.unlink(self._path(name))

    def sync(self) -> None:
        self._sync_names()
