"""FolderTree over a real folder."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

from streamlog.runtime.disk.folders import fsync_folder
from streamlog.runtime.disk.real_folder import check_name
from streamlog.runtime.disk.system_folder import SystemFolder


class SystemTree:
    """A folder of folders, made when it is not there."""

    def __init__(self, root: Path) -> None:
        """Errors: OSError."""
        self._root = root
        self.top = SystemFolder(root)

    def __str__(self) -> str:
        return str(self._root)

    def folders(self) -> list[str]:
        with os.scandir(self._root) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))

    def make(self, name: str) -> SystemFolder:
        path = self._path(name)
        is_new = not path.is_dir()
        if is_new:
            path.mkdir()
            fsync_folder(str(self._root))
        return SystemFolder(path, is_made=True)

    def open(self, name: str) -> SystemFolder:
        path = self._path(name)
        if not path.is_dir():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        return SystemFolder(path, is_made=True)

    def rename(self, old: str, new: str) -> None:
        target = self._path(new)
        if target.exists():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target))
        os.rename(self._path(old), target)
        fsync_folder(str(self._root))

    def remove(self, name: str) -> None:
        path = self._path(name)
        if path.is_dir():
            shutil.rmtree(path)
            fsync_folder(str(self._root))

    def _path(self, name: str) -> Path:
        check_name(name)
        return self._root / name
