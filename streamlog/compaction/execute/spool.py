"""Where an output grows until it is uploaded: memory, or an unnamed file."""

from __future__ import annotations

import contextlib
import mmap
import os
import tempfile
import threading
from collections.abc import Sequence
from typing import Protocol

from streamlog.errors import Closed, StoreUnavailable, Unavailable
from streamlog.runtime.buffers import Buffer, parts_size
from streamlog.runtime.disk.folders import typed_os_error

WRITEV_PARTS_MAX = 1024


class Spool(Protocol):
    """Blocking."""

    def write(self, parts: Sequence[Buffer]) -> None:
        """Errors: DiskFull, StoreUnavailable."""
        ...

    def content(self) -> Sequence[Buffer]:
        """All that was written; valid until `close`."""
        ...

    def close(self) -> None:
        """Frees it; harmless when called again."""
        ...


class MemorySpool:
    def __init__(self) -> None:
        self._parts: list[Buffer] = []

    def write(self, parts: Sequence[Buffer]) -> None:
        # Copied: slices would keep whole GETs in memory.
        self._parts.append(b"".join(parts))

    def content(self) -> Sequence[Buffer]:
        return self._parts

    def close(self) -> None:
        self._parts = []


class FileSpool:
    """Ends with its process. The kernel may drop the pages of `content`, which are the file's."""

    def __init__(self, folder: str | None) -> None:
        self._folder = folder or tempfile.gettempdir()
        self._map: mmap.mmap | None = None
        self._view: memoryview | None = None
        # A thread that outlives its cancelled job must never write to a reused descriptor.
        self._lock = threading.Lock()
        try:
            self._descriptor, path = tempfile.mkstemp(prefix="streamlog-", dir=self._folder)
            os.unlink(path)
        except OSError as error:
            raise self._typed(error) from error

    def write(self, parts: Sequence[Buffer]) -> None:
        with self._lock:
            self._check_open()
            try:
                for first in range(0, len(parts), WRITEV_PARTS_MAX):
                    self._write_all(parts[first : first + WRITEV_PARTS_MAX])
            except OSError as error:
                raise self._typed(error) from error

    def _write_all(self, parts: Sequence[Buffer]) -> None:
        written = os.writev(self._descriptor, parts)
        if written < parts_size(parts):
            rest = memoryview(b"".join(parts))[written:]
            while len(rest):
                rest = rest[os.write(self._descriptor, rest) :]

    def content(self) -> Sequence[Buffer]:
        with self._lock:
            self._check_open()
            try:
                self._map = mmap.mmap(self._descriptor, 0, access=mmap.ACCESS_READ)
            except OSError as error:
                raise self._typed(error) from error
            self._view = memoryview(self._map)
            return [self._view]

    def close(self) -> None:
        # A cancelled PUT may still read a piece: the map is then freed with that piece.
        with self._lock, contextlib.suppress(BufferError):
            if self._descriptor >= 0:
                os.close(self._descriptor)
                self._descriptor = -1
            if self._view is not None and self._map is not None:
                self._view.release()
                self._map.close()

    def _check_open(self) -> None:
        if self._descriptor < 0:
            raise Closed("the compaction output was given up")

    def _typed(self, error: OSError) -> Unavailable:
        return typed_os_error(error, self._folder, "writing a compaction output", StoreUnavailable)
