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


_LASTING = frozenset(
    {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EMFILE, errno.ENFILE}
)


def typed_os_error(
    error: OSError, path: str, doing: str, unavailable: type[Unavailable]
) -> Unavailable:
    """DiskFull where there is no room, else `unavailable`; says what failed, where, what to do.

    Its field `waiting_helps` is False where the same call fails until a person changes something.
    """
    reason = error.strerror or str(error)
    if error.errno in DISK_FULL:
        return DiskFull(
            f"{doing} failed at {path}: {reason}; free some space, work goes on by itself",
            path=path,
        )
    # A person has to change something; what hangs or is not mounted yet may come back by itself.
    waiting_helps = error.errno not in _LASTING
    advice = _ADVICE.get(error.errno or 0, "look at the disk and its file system")
    return unavailable(
        f"{doing} failed at {path}: {reason}; {advice}", path=path, waiting_helps=waiting_helps
    )


def fsync_folder(path: str) -> None:
    """Makes the folder's entries durable. Errors: OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(path: str, *, above: str | None = None) -> None:
    """Makes the folder and its parents where absent; durable on return. Errors: OSError.

    The entries of folders that exist already are synced as well: a process that died between making
    one and syncing its parent leaves an entry that a power cut takes away, with all that later
    processes stored below it. `above`: a parent whose own entry is durable.
    """
    missing: list[str] = []
    folder = os.path.abspath(path)
    while not os.path.isdir(folder):
        missing.append(folder)
        folder = os.path.dirname(folder)
    for absent in reversed(missing):
        try:
            os.mkdir(absent)
        except FileExistsError:
            if not os.path.isdir(absent):
                raise NotADirectoryError(errno.ENOTDIR, "Not a directory", absent) from None
        fsync_folder(os.path.dirname(absent))
    _sync_entries(folder, above)


def _sync_entries(folder: str, above: str | None) -> None:
    """Makes the entry of `folder`, and those of its parents, durable.

    It ends at a mount point, whose entry no process of this node made, and at a parent that this
    user may not write, in which no process of this user can have made an entry.
    """
    while folder != above and not os.path.ismount(folder):
        parent = os.path.dirname(folder)
        if not os.access(parent, os.R_OK | os.W_OK):
            return
        fsync_folder(parent)
        folder = parent
