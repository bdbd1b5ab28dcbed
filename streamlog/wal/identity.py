"""The folder's identity file: whose log this is, which tenures' logs it holds.

Replaced as a whole: written under another name, then renamed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from streamlog.format.wal_superblock import WalIdentity, decode_identity, encode_identity
from streamlog.runtime.disk import Disk
from streamlog.runtime.offload import Lane, Offload

IDENTITY_NAME = "wal-identity"
_NEW_NAME = "wal-identity.new"


def load_identity(disk: Disk) -> WalIdentity | None:
    """None in a folder that no log was begun in. Blocking. Errors: OSError, Corrupt."""
    if IDENTITY_NAME not in disk.list():
        return None
    file = disk.open(IDENTITY_NAME)
    try:
        return decode_identity(file.read(0, file.size()), file_name=IDENTITY_NAME)
    finally:
        file.close()


def store_identity(disk: Disk, identity: WalIdentity) -> None:
    """Durable on return; after an error the old or the new one is there. Blocking."""
    if _NEW_NAME in disk.list():
        disk.remove(_NEW_NAME)
    data = encode_identity(identity)
    file = disk.create(_NEW_NAME, len(data))
    try:
        file.write_sync(0, [data])
    finally:
        file.close()
    disk.rename(_NEW_NAME, IDENTITY_NAME)


class IdentityKeeper:
    """The identity in force, and its changes one after another."""

    def __init__(self, disk: Disk, offload: Offload, identity: WalIdentity | None) -> None:
        self._disk = disk
        self._offload = offload
        self._lock = asyncio.Lock()
        self.identity = identity

    async def change(self, edit: Callable[[WalIdentity | None], WalIdentity]) -> None:
        """Durable on return. Errors: OSError."""
        async with self._lock:
            identity = edit(self.identity)
            if identity != self.identity:
                await self._offload.run(Lane.CPU, store_identity, self._disk, identity)
                self.identity = identity
