"""Writes groups one after another, in the order of calls, one at a time.

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

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
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
from streamlog.runtime.buffers import Buffer
from streamlog.runtime.disk.durable_writes import DurableWrites
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
    """Files that writer and pool hand to each other.

    `ready`: filled by the pool, emptied by the writer (by the pool while the writer is stalled).
    `sealed`: filled by the writer, emptied by the pool.
    `newest`: the file with the superblock of the newest generation, which is durable.
    """

    ready: deque[WalFile] = field(default_factory=deque)
    sealed: list[WalFile] = field(default_factory=list)
    newest: WalFile | None = None


@dataclass(slots=True, eq=False)
class _Call:
    """A group on its way. `file`: the one that ends a stall."""

    entries: Sequence[StreamEntry]
    released_through: int
    known_failures: int
    file: WalFile | None
    outcome: asyncio.Future[Written | NotWritten]


class GroupWriter:
    """Used on one event loop."""

    def __init__(
        self,
        shelf: Shelf,
        random: Random,
        writes: DurableWrites,
        *,
        next_sequence: int,
        next_generation: int,
        group_bytes_max: int,
    ) -> None:
        self._shelf = shelf
        self._random = random
        self._writes = writes
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
        self._calls: deque[_Call] = deque()
        self._is_writing = False
        self._idle = asyncio.Event()
        self._idle.set()

    def write(
        self,
        entries: Sequence[StreamEntry],
        released_through: int,
        known_failures: int,
        file: WalFile | None = None,
    ) -> asyncio.Future[Written | NotWritten]:
        """Ends when the group is durable, or cannot be written; calls end in their order.
        `known_failures`: how many failures the caller has seen. `file`: ends a stall, and has room
        for the group.

        Cancelled, a group that is being written may be stored, and one that waits is left out.
        Errors: OSError, EarlierFailed, MessageTooLarge.
        """
        outcome: asyncio.Future[Written | NotWritten]
        outcome = asyncio.get_running_loop().create_future()
        self._calls.append(_Call(entries, released_through, known_failures, file, outcome))
        self._go_on()
        return outcome

    async def idle(self) -> None:
        """Returns when nothing is written, or waits to be."""
        await self._idle.wait()

    def _go_on(self) -> None:
        while self._calls and not self._is_writing:
            call = self._calls.popleft()
            try:
                self._begin(call)
            except Exception as error:  # noqa: BLE001 - the caller's
                self._answer_unwritten(call, error)
        if self._is_writing:
            self._idle.clear()
        else:
            self._idle.set()

    def _begin(self, call: _Call) -> None:
        """Has the group written, or ends the call without."""
        if call.file is not None:
            self.is_stalled = False
        if call.outcome.done():
            self._give_back(call.file)
            return
        if call.known_failures < self.failures:
            self._give_back(call.file)
            raise EarlierFailed
        try:
            group = self._encoded(call)
        except BaseException:
            self._give_back(call.file)
            raise
        if self.is_stalled:
            self._answer_unwritten(call, NotWritten(group.size_bytes))
            return
        active = self.active
        if call.file is None and active is not None and active.has_room(group.size_bytes):
            self._append(call, active, group)
            return
        file = call.file or self._next_file(group.size_bytes)
        if file is None:
            self.is_stalled = True
            self._answer_unwritten(call, NotWritten(group.size_bytes))
            return
        try:
            self._activate(call, file, group)
        except BaseException:
            self._give_back(file)
            raise

    def _encoded(self, call: _Call) -> EncodedGroup:
        """Errors: MessageTooLarge."""
        group = encode_group(call.entries)
        if group.size_bytes > self._group_bytes_max:
            raise MessageTooLarge(
                f"a group of {group.size_bytes} bytes; the write-ahead log takes at most "
                f"{self._group_bytes_max}: raise wal_bytes_max or append less at a time",
                size_bytes=group.size_bytes,
                max_bytes=self._group_bytes_max,
            )
        return group

    def _answer_unwritten(self, call: _Call, answer: NotWritten | Exception) -> None:
        """In the next turn: at once, a call that is made now would be answered before those that
        waited, whose callers have yet to wake up."""
        asyncio.get_running_loop().call_soon(_answer, call, answer)

    def _give_back(self, file: WalFile | None) -> None:
        """The pool finds it among the sealed ones."""
        if file is not None:
            self._shelf.sealed.append(file)

    def _next_file(self, size_bytes: int) -> WalFile | None:
        if self.active is not None:
            self._shelf.sealed.append(self.active)
            self.active = None
        ready = self._shelf.ready
        if not ready or SUPERBLOCK_BYTES + size_bytes > ready[0].size_bytes:
            return None
        return ready.popleft()

    def _append(self, call: _Call, file: WalFile, group: EncodedGroup) -> None:
        frame = encode_frame(
            group,
            file.superblock.life,
            position=file.position,
            sequence=self.next_sequence,
            released_through=call.released_through,
        )
        self._start(call, file, group, file.position, frame)

    def _activate(self, call: _Call, file: WalFile, group: EncodedGroup) -> None:
        """Begins a file's new life: superblock and first frame in one write."""
        assert self.tenure is not None
        salt = int.from_bytes(self._random.bytes(8), "little")
        superblock = Superblock(
            FileState.ACTIVE,
            FileLife(self._next_generation, salt),
            self.tenure,
            self.next_sequence,
            call.released_through,
            file.size_bytes,
        )
        self._next_generation += 1
        file.begin(superblock)
        frame = encode_frame(
            group,
            superblock.life,
            position=SUPERBLOCK_BYTES,
            sequence=self.next_sequence,
            released_through=call.released_through,
        )
        self._start(call, file, group, 0, [encode_superblock(superblock), *frame])

    def _start(
        self,
        call: _Call,
        file: WalFile,
        group: EncodedGroup,
        position: int,
        parts: Sequence[Buffer],
    ) -> None:
        self._is_writing = True
        try:
            self._writes.start(file.file, position, parts, partial(self._ended, call, file, group))
        except Exception as error:  # noqa: BLE001 - the caller's
            self._ended(call, file, group, error)

    def _ended(
        self, call: _Call, file: WalFile, group: EncodedGroup, error: BaseException | None
    ) -> None:
        self._is_writing = False
        if error is None:
            self._stored(call, file, group)
        else:
            self._failed(file)
            _answer(call, error)
        self._go_on()

    def _failed(self, file: WalFile) -> None:
        """Nothing more is written in this life of the file."""
        self.failures += 1
        self.active = None
        self._shelf.sealed.append(file)

    def _stored(self, call: _Call, file: WalFile, group: EncodedGroup) -> None:
        has_rolled = file is not self.active
        if has_rolled:
            self._shelf.newest = file
            self.active = file
        sequence = self.next_sequence
        file.position += group.size_bytes
        file.last_sequence = sequence
        self.next_sequence += 1
        self.stored.append((sequence, group.size_bytes))
        self.stored_bytes += group.size_bytes
        _answer(call, Written(sequence, group.size_bytes, group.entry_count, has_rolled))


def _answer(call: _Call, answer: Written | NotWritten | BaseException) -> None:
    if call.outcome.done():
        return
    if isinstance(answer, BaseException):
        call.outcome.set_exception(answer)
    else:
        call.outcome.set_result(answer)
