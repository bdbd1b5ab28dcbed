"""An open WAL file and its write position."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from streamlog.format.wal.superblock import (
    SUPERBLOCK_BYTES,
    FileState,
    Superblock,
    encode_superblock,
)
from streamlog.runtime.disk.interface import DiskFile

log = logging.getLogger(__name__)


def close_file(file: DiskFile) -> None:
    """What was written through it is durable, or was given up: an error is told and no more."""
    try:
        file.close()
    except OSError as error:
        log.warning("a file of the write-ahead log could not be closed: %s", error)


@dataclass(slots=True, eq=False)
class WalFile:
    """`position`: of the next frame. `last_sequence`: of this life's last durable frame, or 0."""

    name: str
    file: DiskFile
    superblock: Superblock
    position: int = SUPERBLOCK_BYTES
    last_sequence: int = 0

    @property
    def size_bytes(self) -> int:
        return self.superblock.file_bytes

    def has_room(self, size_bytes: int) -> bool:
        return self.position + size_bytes <= self.size_bytes

    def begin(self, superblock: Superblock) -> None:
        """Begins a new life; the caller writes the superblock."""
        self.superblock = superblock
        self.position = SUPERBLOCK_BYTES
        self.last_sequence = 0

    def free(self, superblock: Superblock) -> None:
        """Ends a life; durable on return. Blocking. Errors: OSError."""
        assert superblock.state is FileState.FREE
        self.file.write_sync(0, [encode_superblock(superblock)])
        self.superblock = superblock
