"""GrowingFolder over a real folder."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from streamlog.runtime.buffers import Buffer
from streamlog.runtime.disk.folders import fsync_folder, make_folder

_PARTS_MAX = 1024
"""IOV_MAX on every system that counts."""


class SystemGrowingFile:
    """A file of a SystemFolder."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._end = os.fstat(descriptor).st_size

    def append(self, parts: Sequence[Buffer]) -> int:
        start = position = self._end
        pieces = [part for part in parts if len(part)]
        while pieces:
            written = os.pwritev(self._descriptor, pieces[:_PARTS_MAX], position)
            position += written
            whole = 0
            while whole < len(pieces) and written >= len(pieces[whole]):
                written -= len(pieces[whole])
                whole += 1
            pieces = pieces[whole:]
            if written:
                pieces[0] = memoryview(pieces[0])[written:]
        self._end = position
        return start

    def read(self, position: int, length: int) -> bytes:
        pieces: list[bytes] = []
        length = min(length, self._end - position)
        while length > 0:
            piece = os.pread(self._descriptor, length, position)
            if not piece:
                break
            pieces.append(piece)
            position += len(piece)
            length -= len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def truncate(self, size: int) -> None:
        # What a failed append left lies behind `_end`, and goes as well.
        if not 0 <= size <= self._end:
            raise ValueError(f"a file of {self._end} bytes cannot be cut to {size}")
        os.ftruncate(self._descriptor, size)
        self._end = size

    def sync(self) -> None:
        os.fsync(self._descriptor)

    def size(self) -> int:
        return self._end

    def close(self) -> None:
        os.close(self._descriptor)


class SystemFolder:
    """A folder, made when it is not there. Its entries are durable when it is opened: a process
    that died may have made or renamed a file without syncing the folder.
    """

    def __init__(self, root: Path) -> None:
        """Errors: OSError."""
        self._root = root
        make_folder(str(root))
        fsync_folder(str(root))

    def __str__(self) -> str:
        return str(self._root)

    def list(self) -> list[str]:
        with os.scandir(self._root) as entries:
            return sorted(entry.name for entry in entries if entry.is_file(follow_symlinks=False))

    def free_bytes(self) -> int:
        status = os.statvfs(self._root)
        return status.f_bavail * status.f_frsize

    def create(self, name: str) -> SystemGrowingFile:
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        return SystemGrowingFile(os.open(self._path(name), flags, 0o640))

    def open(self, name: str) -> SystemGrowingFile:
        return SystemGrowingFile(os.open(self._path(name), os.O_RDWR | os.O_CLOEXEC))

    def rename(self, old: str, new: str) -> None:
        os.rename(self._path(old), self._path(new))

    def remove(self, name: str) -> None:
        os.unlink(self._path(name))

    def sync(self) -> None:
        fsync_folder(str(self._root))

    def _path(self, name: str) -> Path:
        if name in ("", ".", "..") or "/" in name or "\0" in name:
            raise ValueError(f"not a file name: {name!r}")
        return self._root / name
