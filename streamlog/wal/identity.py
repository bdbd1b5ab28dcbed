"""The folder's identity file: the cluster of the log, and the tenures whose logs it holds.

The file is replaced as a whole: written under another name, then renamed. A file for the next
change is kept ready, because on a full disk there is no room to make it: the log makes room by
removing one of its files, but before that the identity has to state the release.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from streamlog.format.wal.superblock import WalIdentity, decode_identity, encode_identity
from streamlog.runtime.concurrency.background import Background
from streamlog.runtime.disk.interface import Disk, DiskFile
from streamlog.runtime.offload import Lane, Offload

IDENTITY_NAME = "wal-identity"
_NEW_NAME = "wal-identity.new"


def load_identity(disk: Disk) -> WalIdentity | None:
    """None in a folder without a log. Blocking. Errors: OSError, Corrupt."""
    if IDENTITY_NAME not in disk.list():
        return None
    file = disk.open(IDENTITY_NAME)
    try:
        return decode_identity(file.read(0, file.size()), file_name=IDENTITY_NAME)
    finally:
        file.close()


def store_identity(disk: Disk, identity: WalIdentity) -> None:
    """Durable on return; after an error the old or the new identity is stored. Blocking."""
    data = encode_identity(identity)
    file = _next_file(disk, len(data))
    try:
        file.write_sync(0, [data])
    except OSError:
        # Never repeat a failed write in place.
        with contextlib.suppress(OSError):
            disk.remove(_NEW_NAME)
        raise
    finally:
        file.close()
    disk.rename(_NEW_NAME, IDENTITY_NAME)
    # Without room now, the next change tries to make it.
    with contextlib.suppress(OSError):
        disk.create(_NEW_NAME, len(data)).close()


def _next_file(disk: Disk, size: int) -> DiskFile:
    """Releases do not change the identity's size; a change of the tenures does."""
    if _NEW_NAME in disk.list():
        file = disk.open(_NEW_NAME)
        if file.size() == size:
            return file
        file.close()
        disk.remove(_NEW_NAME)
    return disk.create(_NEW_NAME, size)


class IdentityKeeper:
    """Owns the current identity, and runs its changes one after another.

    A change continues when its caller is cancelled: the writing thread cannot be stopped, and a
    second one beside it would write the same temporary file.
    """

    def __init__(
        self, disk: Disk, offload: Offload, background: Background, identity: WalIdentity | None
    ) -> None:
        self._disk = disk
        self._offload = offload
        self._background = background
        self._lock = asyncio.Lock()
        self.identity = identity

    async def change(self, edit: Callable[[WalIdentity | None], WalIdentity]) -> None:
        """Durable on return. Errors: OSError; Closed when the log ends first."""

        async def change() -> OSError | None:
            return await self._change(edit)

        failure = await self._background.shielded(change, name="identity")
        if failure is not None:
            raise failure

    async def idle(self) -> None:
        """Waits for all changes called before."""
        async with self._lock:
            pass

    async def _change(self, edit: Callable[[WalIdentity | None], WalIdentity]) -> OSError | None:
        async with self._lock:
            identity = edit(self.identity)
            if identity != self.identity:
                try:
                    await self._offload.run(Lane.CPU, store_identity, self._disk, identity)
                except OSError as error:
                    return error
                self.identity = identity
        return None
