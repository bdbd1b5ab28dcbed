"""Opens a local folder that one process has for itself."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TypeVar

from streamlog.errors import StoreUnavailable
from streamlog.runtime.disk.folders import typed_os_error
from streamlog.runtime.disk.lockfile import Lock, hold
from streamlog.runtime.offload import Lane, Offload, run_owned

T = TypeVar("T")


async def open_locked(
    path: Path,
    lock_name: str,
    open_folder: Callable[[Path], T],
    what: str,
    offload: Offload,
    lane: Lane,
    built: AsyncExitStack,
) -> T:
    """What `open_folder` makes of the path; the folder stays locked until `built` ends.

    `what`: the folder, for errors. Errors: DataInUse, StoreUnavailable.
    """

    def opening() -> tuple[T, Lock]:
        folder = open_folder(path)
        return folder, hold(str(path / lock_name))

    try:
        folder, lock = await run_owned(offload, lane, opening, lambda held: held[1].release())
    except OSError as error:
        raise typed_os_error(error, str(path), f"opening {what}", StoreUnavailable) from error
    built.callback(lock.release)
    return folder
