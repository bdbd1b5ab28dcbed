"""A lock on a folder that names its holder.

The lock is the kernel's: it ends with the process, however that ends. It is of two kinds: flock,
and a lock of the open file description. Java's locks conflict with the second one, so that a Kafka
and a node keep each other out of a log folder. The file's content only names the holder to other
processes; it is stale when the lock is free. A child made by fork without exec shares the lock.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import struct
import sys
from datetime import UTC, datetime
from types import TracebackType
from typing import Any

from streamlog.errors import DataInUse, StoreUnavailable, Unavailable
from streamlog.runtime.disk.folders import typed_os_error

_FLOCK = struct.Struct("hhqqi0q")
"""C's struct flock: type, whence, start, length (0: all), pid."""


class Lock:
    """A held lock; released by `release`, at the end of a `with`, or with the process."""

    def __init__(self, path: str, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor

    def release(self) -> None:
        """A second call does nothing. The file stays: removing it would let two hold the lock."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __enter__(self) -> Lock:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()


def hold(path: str, unavailable: type[Unavailable] = StoreUnavailable) -> Lock:
    """Takes the lock at `path`, whose folder exists.

    Errors: DataInUse (path, pid, host) where another process, or this one, holds it; DiskFull;
    `unavailable` where the file cannot be written.
    """
    descriptor = -1
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        _take(path, descriptor, is_shared=False)
        content = json.dumps(_who()).encode() + b"\n"
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, content, 0)
    except DataInUse:
        os.close(descriptor)
        raise
    except OSError as error:
        if descriptor >= 0:
            os.close(descriptor)
        raise typed_os_error(error, path, "taking the lock", unavailable) from error
    return Lock(path, descriptor)


def publish(path: str, address: str) -> None:
    """Adds where this process can be reached to the lock that it holds at `path`.

    Errors: OSError. A lock that another process holds is left alone.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        holder = _read(descriptor)
        if holder.get("pid") == os.getpid():
            os.pwrite(descriptor, json.dumps(holder | {"address": address}).encode() + b"\n", 0)
    finally:
        os.close(descriptor)


def check_free(path: str) -> None:
    """Raises if a process holds the lock at `path`; a missing file is free.

    Errors: DataInUse, OSError.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        _take(path, descriptor, is_shared=True)
    finally:
        os.close(descriptor)


def _take(path: str, descriptor: int, *, is_shared: bool) -> None:
    """Both kinds, until the descriptor is closed. Errors: DataInUse, OSError."""
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise _in_use(path, _read(descriptor)) from error
    if sys.platform != "linux":
        return  # The kernels of BSD and macOS compare both kinds with each other.
    kind = fcntl.F_RDLCK if is_shared else fcntl.F_WRLCK
    try:
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _FLOCK.pack(kind, os.SEEK_SET, 0, 0, 0))
    except BlockingIOError as error:
        # This program would have the other kind, too: what the file says is of an earlier holder.
        raise DataInUse(
            f"{path} is held by another program, such as a Kafka; stop it or use another folder",
            path=path,
            pid=0,
            host="",
        ) from error
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        # gVisor's kernel does not know this kind: nodes keep each other out by the other one.


def _who() -> dict[str, str | int]:
    return {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": " ".join(sys.argv)[:500],
    }


def _read(descriptor: int) -> dict[str, Any]:
    """Empty when the holder has not written it yet."""
    try:
        content = json.loads(os.pread(descriptor, 4096, 0))
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}


def _in_use(path: str, holder: dict[str, Any]) -> DataInUse:
    pid, host = holder.get("pid"), holder.get("host")
    if not isinstance(pid, int) or not isinstance(host, str):
        return DataInUse(
            f"{path} is held by another process that has just started; stop it or use another "
            "folder",
            path=path,
            pid=0,
            host="",
        )
    address = holder.get("address")
    serves = f", a node that serves at {address}" if isinstance(address, str) else ""
    hint = f"use it with --server {address}, stop it" if serves else "stop it"
    return DataInUse(
        f"{path} is held by process {pid} on {host} (started {holder.get('started')}: "
        f"{holder.get('command')}){serves}; {hint} or use another folder",
        path=path,
        pid=pid,
        host=host,
    )
