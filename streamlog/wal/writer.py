"""Writes groups one after another: the part of the log that runs in the WAL lane.

A group handed over while another one syncs is written next, without a step of the event loop in
between.

1. A group that fits the active file becomes a frame in it. A group that does not seals that file
   and activates a ready one. If none is ready, the writer stalls: it returns this group and later
   ones unwritten.
2. After a failed write, groups that were handed over before the caller knew of the failure fail
   too, unwritten: groups never change their order.

Invariants
- A file is activated by one write of superblock and first frame together, and only when it is free
  (its superblock says so, durably) or taken back after a failed activation.
- Frames are written without gaps, and never overwritten in the same life of the file.
- After a failed write nothing more is written in this life.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from streamlog.errors import MessageTooLarge
from streamlog.format.entry import StreamEntry
from streamlog.format.rows import Tenure
from streamlog.format.wal.frame import EncodedGroup, FileLife, encode_frame, encode_group
from streamlog.format.wal.superblock import (
    SUPERBLOCK_BYTES,
    FileState,
    Superblock,
    encode_superblock,
)
from streamlog.runtime.rand import Random
from streamlog.wal.file import WalFile


class Written(NamedTuple):
    """`has_rolled`: the group activated a file."""

    sequence: int
    size_bytes: int
    entry_count: int
    has_rolled: bool


class NotWritten(NamedTuple):
    """No file is ready for a frame of `size_bytes`."""

    size_bytes: int


class EarlierFailed(Exception):
    """A group before this one failed after this one was handed over."""


@dataclass(slots=True)
class Shelf:
    """Files that writer and pool hand to each other; each operation on a field is atomic.

    `ready`: filled by the pool, emptied by the writer (by the pool while the writer is stalled).
    `sealed`: filled by the writer, emptied by the pool.
    `newest`: the file with the superblock of the newest generation, which is durable.
    """

    ready: deque[WalFile] = field(default_factory=deque)
    sealed: list[WalFile] = field(default_factory=list)
    newest: WalFile | None = None


class GroupWriter:
    """`write` and `resume` block, and run only in Lane.WAL; other threads may read the fields."""

    def __init__(
        self,
        shelf: Shelf,
        random: Random,
        *,
        next_sequence: int,
        next_generation: int,
        group_bytes_max: int,
    ) -> None:
        self._shelf = shelf
        self._random = random
        self._next_generation = next_generation
        self._group_bytes_max = group_bytes_max
        self.tenure: Tenure | None = None
        self.active: WalFile | None = None
        self.next_sequence = next_sequence
        self.is_stalled = False
        self.failures = 0
        self.stored: deque[tuple[int, int]] = deque()
        """(sequence, bytes on disk) of groups; the log removes released ones."""
        self.stored_bytes = 0
        """Bytes of all groups ever added to `stored`."""

    def write(
        self, entries: Sequence[StreamEntry], released_through: int, known_failures: int
    ) -> Written | NotWritten:
        """Durable on return. `known_failures`: how many failures the caller has seen.

        Errors: OSError, EarlierFailed, MessageTooLarge.
        """
        group = encode_group(entries)
        if known_failures < self.failures:
            raise EarlierFailed
        if group.size_bytes > self._group_bytes_max:
            raise MessageTooLarge(
                f"a group of {group.size_bytes} bytes; the write-ahead log takes at most "
                f"{self._group_bytes_max}: raise wal_bytes_max or append less at a time",
                size_bytes=group.size_bytes,
                max_bytes=self._group_bytes_max,
            )
        if self.is_stalled:
            return NotWritten(group.size_bytes)
        active = self.active
        if active is not None and active.has_room(group.size_bytes):
            self._append(active, group, released_through)
            return self._stored(group, has_rolled=False)
        if active is not None:
            self.active = None
            self._shelf.sealed.append(active)
        ready = self._shelf.ready
        if not ready or SUPERBLOCK_BYTES + group.size_bytes > ready[0].size_bytes:
            self.is_stalled = True
            return NotWritten(group.size_bytes)
        self._activate(ready.popleft(), group, released_through)
        return self._stored(group, has_rolled=True)

    def resume(
        self,
        entries: Sequence[StreamEntry],
        released_through: int,
        known_failures: int,
        file: WalFile,
    ) -> Written:
        """Ends a stall with a file that has room for the group. Errors: OSError, EarlierFailed."""
        self.is_stalled = False
        if known_failures < self.failures:
            self._shelf.sealed.append(file)
            raise EarlierFailed
        group = encode_group(entries)
        self._activate(file, group, released_through)
        return self._stored(group, has_rolled=True)

    def _append(self, file: WalFile, group: EncodedGroup, released_through: int) -> None:
        frame = encode_frame(
            group,
            file.superblock.life,
            position=file.position,
            sequence=self.next_sequence,
            released_through=released_through,
        )
        try:
            file.file.write_sync(file.position, frame)
        except OSError:
            self.failures += 1
            self.active = None
            self._shelf.sealed.append(file)
            raise
        file.position += group.size_bytes

    def _activate(self, file: WalFile, group: EncodedGroup, released_through: int) -> None:
        """Begins a file's new life: superblock and first frame in one write."""
        assert self.tenure is not None
        salt = int.from_bytes(self._random.bytes(8), "little")
        superblock = Superblock(
            FileState.ACTIVE,
            FileLife(self._next_generation, salt),
            self.tenure,
            self.next_sequence,
            released_through,
            file.size_bytes,
        )
        self._next_generation += 1
        file.begin(superblock)
        frame = encode_frame(
            group,
            superblock.life,
            position=SUPERBLOCK_BYTES,
            sequence=self.next_sequence,
            released_through=released_through,
        )
        try:
            file.file.write_sync(0, [encode_superblock(superblock), *frame])
        except OSError:
            self.failures += 1
            self._shelf.sealed.append(file)
            raise
        file.position += group.size_bytes
        self._shelf.newest = file
        self.active = file

    def _stored(self, group: EncodedGroup, *, has_rolled: bool) -> Written:
        assert self.active is not None
        sequence = self.next_sequence
        self.active.last_sequence = sequence
        self.next_sequence += 1
        self.stored.append((sequence, group.size_bytes))
        self.stored_bytes += group.size_bytes
        return Written(sequence, group.size_bytes, group.entry_count, has_rolled)
