"""Disk over a real folder that is only looked at: nothing is made, written or synced."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import NoReturn

from streamlog.runtime.disk.system_disk import SystemFile


class ReadOnlyDisk:
    """Errors of the constructor: FileNotFoundError, NotADirectoryError."""

    def __init__(self, root: Path) -> None:
        self._root = root
        os.scandir(root).close()

    def __str__(self) -> str:
        return str(self._root)

    def list(self) -> list[str]:
        return sorted(entry.name for entry in os.scandir(self._root) if entry.is_file())

    def open(self, name: str) -> SystemFile:
        return SystemFile(os.open(self._root / name, os.O_RDONLY | os.O_CLOEXEC))

    def free_bytes(self) -> int:
        return 0

    def create(self, name: str, size: int) -> NoReturn:
        raise self._refused(name)

    def rename(self, old: str, new: str) -> NoReturn:
        raise self._refused(old)

    def remove(self, name: str) -> NoReturn:
        raise self._refused(name)

    def _refused(self, name: str) -> OSError:
        return OSError(errno.EROFS, "opened for reading only", str(self._root / name))
