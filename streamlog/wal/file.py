"""A WAL file in use: what is written to it, and in which order. Blocking where it says so.

Invariants
- A file is activated by one write of superblock and first frame together, and only when it is free
  (its superblock says so, durably), new, or holds no frame that matters.
- Frames follow one another without a gap; none is ever written over in the same life.
- After a failed write nothing more is written in this life.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from streamlog.format.entry import StreamEntry
from streamlog.format.wal_frame import EncodedGroup, encode_frame, encode_group
from streamlog.format.wal_superblock import (
    SUPERBLOCK_BYTES,
    FileState,
    Superblock,
    encode_superblock,
)
from streamlog.runtime.disk import DiskFile


@dataclass(slots=True, eq=False)
class WalFile:
    """`last_sequence`: of the last durable frame of this life; 0 where there is none."""

    name: str
    file: DiskFile
    superblock: Superblock
    position: int = SUPERBLOCK_BYTES
    last_sequence: int = 0

    @property
    def size_bytes(self) -> int:
        return self.superblock.file_bytes

    @property
    def generation(self) -> int:
        return self.superblock.life.generation

    def has_room(self, size_bytes: int) -> bool:
        return self.position + size_bytes <= self.size_bytes

    def write(self, group: EncodedGroup, sequence: int, released_through: int) -> None:
        """Appends a frame; durable on return. Blocking. Errors: OSError."""
        parts = encode_frame(
            group,
            self.superblock.life,
            position=self.position,
            sequence=sequence,
            released_through=released_through,
        )
        self.file.write_sync(self.position, parts)
        self.position += group.size_bytes
        self.last_sequence = sequence

    def activate(self, superblock: Superblock, group: EncodedGroup) -> None:
        """Begins a new life with its first frame; durable on return. Blocking. Errors: OSError."""
        self.superblock = superblock
        self.last_sequence = 0
        self.position = SUPERBLOCK_BYTES
        frame = encode_frame(
            group,
            superblock.life,
            position=SUPERBLOCK_BYTES,
            sequence=superblock.first_sequence,
            released_through=superblock.released_through,
        )
        self.file.write_sync(0, [encode_superblock(superblock), *frame])
        self.position += group.size_bytes
        self.last_sequence = superblock.first_sequence

    def free(self, superblock: Superblock) -> None:
        """Ends a life; durable on return. Blocking. Errors: OSError."""
        assert superblock.state is FileState.FREE
        self.file.write_sync(0, [encode_superblock(superblock)])
        self.superblock = superblock


def encode_and_write(
    file: WalFile | None, entries: Sequence[StreamEntry], sequence: int, released_through: int
) -> tuple[EncodedGroup, bool]:
    """The encoded group, and whether it was written: False where `file` has no room for it."""
    group = encode_group(entries)
    if file is None or not file.has_room(group.size_bytes):
        return group, False
    file.write(group, sequence, released_through)
    return group, True
