"""Folders that survive a power cut, and what the operating system's errors mean to a caller."""

from __future__ import annotations

import errno
import os

from streamlog.errors import DiskFull, Unavailable

DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""No room: the disk, the user's quota, or the process's limit on file sizes (`ulimit -f`)."""

_ADVICE = {
    errno.EACCES: "give this user the right to write there, or choose another folder",
    errno.EPERM: "give this user the right to write there, or choose another folder",
    errno.EROFS: "the file system is mounted read-only: mount it writable or choose another folder",
    errno.ENOTDIR: "a file stands where a folder is needed: move it away or choose another folder",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.ENFILE: "raise the system's limit of open files (fs.file-max)",
    errno.EIO: "the disk reports an error: look at the kernel log",
}


def typed_os_error(
    error: OSError, path: str, doing: str, unavailable: type[Unavailable]
) -> Unavailable:
    """DiskFull where there is no room, else `unavailable`; says what failed, where, what to do."""
    reason = error.strerror or str(error)
    if error.errno in DISK_FULL:
        return DiskFull(
            f"{doing} failed at {path}: {reason}; free some space, work goes on by itself",
            path=path,
        )
    advice = _ADVICE.get(error.errno or 0, "look at the disk and its file system")
    return unavailable(f"{doing} failed at {path}: {reason}; {advice}", path=path)


def fsync_folder(path: str) -> None:
    """Makes the folder's entries durable. Errors: OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(path: str) -> None:
    """Makes the folder and its parents where absent; durable on return. Errors: OSError."""
    missing: list[str] = []
    folder = os.path.abspath(path)
    while not os.path.isdir(folder):
        missing.append(folder)
        folder = os.path.dirname(folder)
    for folder in reversed(missing):
        try:
            os.mkdir(folder)
        except FileExistsError:
            if not os.path.isdir(folder):
                raise NotADirectoryError(errno.ENOTDIR, "Not a directory", folder) from None
        fsync_folder(os.path.dirname(folder))
