"""What disks over a real folder share: names, free room, and entries that survive a power cut."""

from __future__ import annotations

import os
from pathlib import Path

from streamlog.runtime.disk.folders import fsync_folder, make_folder


def check_name(name: str) -> None:
    """A name is one component of a path. Errors: ValueError."""
    if name in ("", ".", "..") or "/" in name or "\0" in name:
        raise ValueError(f"not a file name: {name!r}")


class RealFolder:
    """Base of disks. Making and syncing the folder is up to them."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def __str__(self) -> str:
        return str(self._root)

    def list(self) -> list[str]:
        with os.scandir(self._root) as entries:
            return sorted(entry.name for entry in entries if entry.is_file())

    def free_bytes(self) -> int:
        status = os.statvfs(self._root)
        return status.f_bavail * status.f_frsize

    def _make(self) -> None:
        """Makes the folder when it is not there. On return its entries are durable: a process that
        died may have made or renamed a file without syncing the folder. Errors: OSError."""
        make_folder(str(self._root))
        self._sync_names()

    def _sync_names(self) -> None:
        fsync_folder(str(self._root))

    def _create_file(self, name: str) -> int:
        """The descriptor of a new file. Errors: OSError (also where the name is taken)."""
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        return os.open(self._path(name), flags, 0o640)

    def _open_file(self, name: str, access: int = os.O_RDWR) -> int:
        return os.open(self._path(name), access | os.O_CLOEXEC)

    def _path(self, name: str) -> Path:
        check_name(name)
        return self._root / name
