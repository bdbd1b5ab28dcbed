"""Disk over a real folder.

Writes go out with one `pwritev` and RWF_DSYNC where the kernel has it, else with fdatasync behind.
New files are written in pieces that are each synced: one large flush would hold up the syncs of
other files on the same device.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path

from streamlog.runtime.buffers import Buffer
from streamlog.runtime.disk.folders import fsync_folder, make_folder

_ZEROS = bytes(1 << 20)
_PARTS_MAX = 1024
"""IOV_MAX on every system that counts."""
_DSYNC = getattr(os, "RWF_DSYNC", 0)
_NOT_SUPPORTED = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)


class SystemFile:
    """A file of a SystemDisk."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._flags = _DSYNC

    def write_sync(self, position: int, parts: Sequence[Buffer]) -> None:
        pieces = [part for part in parts if len(part)]
        if len(pieces) > _PARTS_MAX or not self._flags:
            for first in range(0, len(pieces), _PARTS_MAX):
                position = self._write(position, pieces[first : first + _PARTS_MAX], 0)
            getattr(os, "fdatasync", os.fsync)(self._descriptor)
            return
        try:
            self._write(position, pieces, self._flags)
        except OSError as error:
            if error.errno not in _NOT_SUPPORTED:
                raise
            self._flags = 0
            self.write_sync(position, pieces)

    def _write(self, position: int, pieces: list[Buffer], flags: int) -> int:
        """Writes all pieces, however little the kernel takes at a time; the end is returned."""
        while pieces:
            written = os.pwritev(self._descriptor, pieces, position, flags)
            position += written
            done = 0
            while done < len(pieces) and written >= len(pieces[done]):
                written -= len(pieces[done])
                done += 1
            pieces = pieces[done:]
            if pieces and written:
                pieces[0] = memoryview(pieces[0])[written:]
        return position

    def read(self, position: int, length: int) -> bytes:
        pieces: list[bytes] = []
        while length:
            piece = os.pread(self._descriptor, length, position)
            if not piece:
                break
            pieces.append(piece)
            position += len(piece)
            length -= len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def sync(self) -> None:
        os.fsync(self._descriptor)

    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def close(self) -> None:
        os.close(self._descriptor)


class SystemDisk:
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
        return sorted(entry.name for entry in os.scandir(self._root) if entry.is_file())

    def free_bytes(self) -> int:
        status = os.statvfs(self._root)
        return status.f_bavail * status.f_frsize

    def create(self, name: str, size: int) -> SystemFile:
        path = self._path(name)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o640)
        file = SystemFile(descriptor)
        try:
            for position in range(0, size, len(_ZEROS)):
                file.write_sync(position, [memoryview(_ZEROS)[: size - position]])
            file.sync()
            fsync_folder(str(self._root))
        except OSError:
            file.close()
            os.unlink(path)
            raise
        return file

    def open(self, name: str) -> SystemFile:
        return SystemFile(os.open(self._path(name), os.O_RDWR | os.O_CLOEXEC))

    def rename(self, old: str, new: str) -> None:
        os.rename(self._path(old), self._path(new))
        fsync_folder(str(self._root))

    def remove(self, name: str) -> None:
        os.unlink(self._path(name))
        fsync_folder(str(self._root))

    def _path(self, name: str) -> Path:
        if name in ("", ".", "..") or "/" in name or "\0" in name:
            raise ValueError(f"not a file name: {name!r}")
        return self._root / name
