"""Disk over a real folder that is only looked at: nothing is made, written or synced."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import NoReturn

from streamlog.runtime.disk.real_folder import RealFolder
from streamlog.runtime.disk.system_disk import SystemFile


class ReadOnlyDisk(RealFolder):
    """Errors of the constructor: FileNotFoundError, NotADirectoryError."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        os.scandir(root).close()

    def open(self, name: str) -> SystemFile:
        return SystemFile(self._open_file(name, os.O_RDONLY))

    def free_bytes(self) -> int:
        return 0

    def create(self, name: str, size: int) -> NoReturn:
        raise self._refused(name)

    def rename(self, old: str, new: str) -> NoReturn:
        raise self._refused(old)

    def remove(self, name: str) -> NoReturn:
        raise self._refused(name)

    def _refused(self, name: str) -> OSError:
        return OSError(errno.EROFS, "opened for reading only", str(self._path(name)))
