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
from streamlog.runtime.disk.descriptors import PARTS_MAX, read_whole, write_whole
from streamlog.runtime.disk.real_folder import RealFolder

_ZEROS = bytes(1 << 20)
_DSYNC = getattr(os, "RWF_DSYNC", 0)
NOT_SUPPORTED = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)
"""How a kernel or a file system refuses the flags."""


class SystemFile:
    """A file of a SystemDisk. `flags`: of a write that is durable on return; 0: there are none."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.flags = _DSYNC

    def write_sync(self, position: int, parts: Sequence[Buffer]) -> None:
        if len(parts) > PARTS_MAX or not self.flags:
            write_whole(self.descriptor, position, parts)
            getattr(os, "fdatasync", os.fsync)(self.descriptor)
            return
        try:
            write_whole(self.descriptor, position, parts, self.flags)
        except OSError as error:
            if error.errno not in NOT_SUPPORTED:
                raise
            self.flags = 0
            self.write_sync(position, parts)

    def read(self, position: int, length: int) -> bytes:
        return read_whole(self.descriptor, position, length)

    def sync(self) -> None:
        os.fsync(self.descriptor)

    def size(self) -> int:
        return os.fstat(self.descriptor).st_size

    def close(self) -> None:
        os.close(self.descriptor)


class SystemDisk(RealFolder):
    """A folder, made when it is not there."""

    def __init__(self, root: Path) -> None:
        """Errors: OSError."""
        super().__init__(root)
        self._make()

    def create(self, name: str, size: int) -> SystemFile:
        file = SystemFile(self._create_file(name))
        try:
            for position in range(0, size, len(_ZEROS)):
                file.write_sync(position, [memoryview(_ZEROS)[: size - position]])
            file.sync()
            self._sync_names()
        except OSError:
            file.close()
            os.unlink(self._path(name))
            raise
        return file

    def open(self, name: str) -> SystemFile:
        return SystemFile(self._open_file(name))

    def rename(self, old: str, new: str) -> None:
        os.rename(self._path(old), self._path(new))
        self._sync_names()

    def remove(self, name: str) -> None:
        os.unlink(self._path(name))
        self._sync_names()
