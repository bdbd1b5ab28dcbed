"""Writes groups one behind another, in the order of calls, up to WRITES_MAX of them at a time.

1. A group that fits the active file becomes a frame in it. A group that does not seals that file
   and activates a ready one. If none is ready, the writer stalls: it returns this group and later
   ones unwritten.
2. Groups are answered in their order: one that is durable before those in front of it waits for
   them. Its frame says how many of them were under way (`format/wal/frame.py`).
3. After a failed write, groups that were handed over before the caller knew of the failure fail
   too, written or not: groups never change their order.

Invariants
- A file is activated by one write of superblock and first frame together, and only when it is free
  (its superblock says so, durably) or taken back after a failed activation. No other write is under
  way then.
- Frames are written without gaps, and never overwritten in the same life of the file.
- Writes that are under way together have descriptors of their own. The kernel tells of a page that
  could not be written once to each of them: with one for all, another write would be told of it,
  and that page's own write would end without an error.
- After a failed write nothing more is written in this life. The file is given up when all of its
  writes have ended.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
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
from streamlog.runtime.disk.interface import DiskFile
from streamlog.runtime.rand import Random
from streamlog.wal.file import WalFile, close_file

log = logging.getLogger(__name__)

WRITES_MAX = 4
"""Groups under way at a time."""


class Written(NamedTuple):
    """`has_rolled`: the group activated a file. `under_way`: how many groups before it were being
    written when its write began."""

    sequence: int
    size_bytes: int
    entry_count: int
    has_rolled: bool
    under_way: int


class NotWritten(NamedTuple):
    """No file is ready for a frame of `size_bytes`."""

    size_bytes: int


class EarlierFailed(Exception):
    """A group before this one failed after this one was handed over. `is_begun`: this one was being
    written, and may be stored."""

    def __init__(self, *, is_begun: bool = False) -> None:
        super().__init__()
        self.is_begun = is_begun


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
    begun: asyncio.Event | None
    encoded: EncodedGroup | None = None


@dataclass(slots=True, eq=False)
class _Write:
    """A frame on its way through `handle`. `error`: with what it has ended."""

    call: _Call
    file: WalFile
    group: EncodedGroup
    handle: DiskFile
    is_activation: bool
    under_way: int
    has_ended: bool = False
    error: BaseException | None = None


class GroupWriter:
    """Used on one event loop."""

    def __init__(
        self,
        shelf: Shelf,
        random: Random,
        writes: DurableWrites,
        open_again: Callable[[str], Awaitable[DiskFile]],
        *,
        next_sequence: int,
        next_generation: int,
        group_bytes_max: int,
    ) -> None:
        """`open_again(name)`: another descriptor of a file. Errors: OSError."""
        self._shelf = shelf
        self._open_again = open_again
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
        self._under_way: deque[_Write] = deque()
        """In the order of their sequences."""
        self._handles: list[DiskFile] = []
        """Descriptors of the active file that no write has."""
        self._opened: list[DiskFile] = []
        """Those beside the file's own."""
        self._opening: asyncio.Future[None] | None = None
        self._may_open = True
        self._idle = asyncio.Event()
        self._idle.set()

    def write(
        self,
        entries: Sequence[StreamEntry],
        released_through: int,
        known_failures: int,
        file: WalFile | None = None,
        begun: asyncio.Event | None = None,
    ) -> asyncio.Future[Written | NotWritten]:
        """Ends when the group is durable, or cannot be written; calls end in their order.
        `known_failures`: how many failures the caller has seen. `file`: ends a stall, and has room
        for the group. `begun`: is set when the group is being written, or the call has ended.

        Cancelled, a group that is being written may be stored, and one that waits is left out.
        Errors: OSError, EarlierFailed, MessageTooLarge.
        """
        outcome: asyncio.Future[Written | NotWritten]
        outcome = asyncio.get_running_loop().create_future()
        self._calls.append(_Call(entries, released_through, known_failures, file, outcome, begun))
        self._go_on()
        return outcome

    async def idle(self) -> None:
        """Returns when nothing is written, or waits to be."""
        await self._idle.wait()

    async def close(self) -> None:
        """Waits until nothing is written, and closes the active file."""
        await self._idle.wait()
        if self._opening is not None:
            await asyncio.wait([self._opening])
        self._let_go()
        if self.active is not None:
            close_file(self.active.file)

    def _go_on(self) -> None:
        while self._calls and self._may_begin():
            call = self._calls.popleft()
            try:
                has_begun = self._begins(call)
            except EarlierFailed as error:
                self._answer_unwritten(call, error)
                continue
            except Exception as error:  # noqa: BLE001 - the caller's
                # Those behind it must not take its place.
                self.failures += 1
                self._answer_unwritten(call, error)
                continue
            if not has_begun:
                self._calls.appendleft(call)
                break
        if self._under_way:
            self._idle.clear()
        else:
            self._idle.set()

    def _may_begin(self) -> bool:
        """Whether another write may be under way beside those that are."""
        if not self._under_way:
            return True
        if len(self._under_way) >= WRITES_MAX or any(
            write.is_activation or write.error is not None for write in self._under_way
        ):
            return False
        if not self._handles and self._opening is None and self._may_open:
            file = self._under_way[0].file
            self._opening = asyncio.ensure_future(self._open_handle(file))
        return bool(self._handles)

    def _begins(self, call: _Call) -> bool:
        """Has the group written, or ends the call without. False: not beside those under way."""
        if call.outcome.done():
            self._unstall(call)
            self._give_back(call.file)
            return True
        if call.known_failures < self.failures:
            self._unstall(call)
            self._give_back(call.file)
            raise EarlierFailed
        try:
            group = call.encoded = call.encoded or self._encoded(call)
        except BaseException:
            self._unstall(call)
            self._give_back(call.file)
            raise
        active = self.active
        is_room = call.file is None and active is not None and active.has_room(group.size_bytes)
        if self._under_way and not (is_room and not self.is_stalled):
            return False
        self._unstall(call)
        if self.is_stalled:
            self._answer_unwritten(call, NotWritten(group.size_bytes))
        elif is_room:
            assert active is not None
            self._append(call, active, group)
        else:
            self._roll(call, group)
        return True

    def _unstall(self, call: _Call) -> None:
        if call.file is not None:
            self.is_stalled = False

    def _roll(self, call: _Call, group: EncodedGroup) -> None:
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
            self._let_go()
            self._shelf.sealed.append(self.active)
            self.active = None
        ready = self._shelf.ready
        if not ready or SUPERBLOCK_BYTES + size_bytes > ready[0].size_bytes:
            return None
        return ready.popleft()

    def _append(self, call: _Call, file: WalFile, group: EncodedGroup) -> None:
        under_way = len(self._under_way)
        frame = encode_frame(
            group,
            file.superblock.life,
            position=file.position,
            sequence=self.next_sequence + under_way,
            released_through=call.released_through,
            under_way=under_way,
        )
        position = file.position
        file.position += group.size_bytes
        write = _Write(call, file, group, self._handles.pop(), False, under_way)
        self._start(write, position, frame)

    def _activate(self, call: _Call, file: WalFile, group: EncodedGroup) -> None:
        """Begins a file's new life: superblock and first frame in one write."""
        assert self.tenure is not None
        # The file may have been freed since the call, for a release that it alone states.
        released = max(call.released_through, file.superblock.released_through)
        salt = int.from_bytes(self._random.bytes(8), "little")
        superblock = Superblock(
            FileState.ACTIVE,
            FileLife(self._next_generation, salt),
            self.tenure,
            self.next_sequence,
            released,
            file.size_bytes,
        )
        self._next_generation += 1
        file.begin(superblock)
        frame = encode_frame(
            group,
            superblock.life,
            position=SUPERBLOCK_BYTES,
            sequence=self.next_sequence,
            released_through=released,
        )
        file.position += group.size_bytes
        write = _Write(call, file, group, file.file, is_activation=True, under_way=0)
        self._start(write, 0, [encode_superblock(superblock), *frame])

    def _start(self, write: _Write, position: int, parts: Sequence[Buffer]) -> None:
        self._under_way.append(write)
        if write.call.begun is not None:
            write.call.begun.set()
        try:
            self._writes.start(write.handle, position, parts, partial(self._ended, write))
        except Exception as error:  # noqa: BLE001 - the caller's
            self._ended(write, error)

    def _ended(self, write: _Write, error: BaseException | None) -> None:
        write.has_ended, write.error = True, error
        self._handles.append(write.handle)
        while self._under_way and self._under_way[0].has_ended:
            if self._under_way[0].error is not None:
                if all(other.has_ended for other in self._under_way):
                    self._failed(self._under_way[0])
                break
            self._stored(self._under_way.popleft())
        self._go_on()

    def _failed(self, first: _Write) -> None:
        """Nothing more is written in this life of the file."""
        self.failures += 1
        self.active = None
        self._let_go()
        self._shelf.sealed.append(first.file)
        failed, self._under_way = self._under_way, deque()
        for write in failed:
            own = write.error if write is first else EarlierFailed(is_begun=True)
            assert own is not None
            _answer(write.call, own)

    def _stored(self, write: _Write) -> None:
        file, group = write.file, write.group
        if write.is_activation:
            self._shelf.newest = file
            self.active = file
            self._may_open = True
        sequence = self.next_sequence
        file.last_sequence = sequence
        self.next_sequence += 1
        self.stored.append((sequence, group.size_bytes))
        self.stored_bytes += group.size_bytes
        _answer(
            write.call,
            Written(
                sequence,
                group.size_bytes,
                group.entry_count,
                write.is_activation,
                write.under_way,
            ),
        )

    async def _open_handle(self, file: WalFile) -> None:
        """Gives the file another descriptor, if it is still active then."""
        try:
            handle = await self._open_again(file.name)
        except Exception as error:  # noqa: BLE001 - nobody waits for it
            # Asked again for the next file.
            self._may_open = False
            log.warning("groups of the write-ahead log are written one by one for now: %r", error)
        else:
            if file is self.active:
                self._handles.append(handle)
                self._opened.append(handle)
            else:
                close_file(handle)
        finally:
            self._opening = None
        self._go_on()

    def _let_go(self) -> None:
        """Closes the descriptors that the active file has had for writes beside others."""
        self._handles.clear()
        while self._opened:
            close_file(self._opened.pop())


def _answer(call: _Call, answer: Written | NotWritten | BaseException) -> None:
    if call.begun is not None:
        call.begun.set()
    if call.outcome.done():
        return
    if isinstance(answer, BaseException):
        call.outcome.set_exception(answer)
    else:
        call.outcome.set_result(answer)
