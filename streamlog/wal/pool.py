"""Which WAL files are free, and the background work that keeps some ready.

Life of a file: made (zeros, superblock "free") → free → ready → active → sealed → free …; or, from
free or sealed, or where it could not be made, → discarded → removed.

Invariants
- A sealed file is freed only when all of its groups are released.
- The file of the newest generation is never freed: its first sequence makes the remains of failed
  writes in older files void. Activating a newer file takes that over.
- If objects are on the same disk, a file is made, or made ready, only if room for another one is
  left, on the disk or in free files: a full log can only be emptied if the disk has room for the
  uploads. While an upload finds none (`give_room`), free files are removed and none are made:
  appends wait for uploads, not the other way round.
- A released file that the disk does not free is discarded, and so is one that could not be made. A
  discarded file is closed and never used again: a removal that failed may have taken its name away,
  and with the name what would be written to it. It is removed as soon as the disk does that; until
  then it counts in the bound, and holds up no other file. Appends are refused for it only where no
  upload can let another file go.
- Before a file is removed, the identity file states that its groups are released; a freed file
  states it in its own superblock. So an absent group is always known to be released, and a removed
  file that a power cut brings back has released groups and failed writes alone.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from streamlog.errors import Closed
from streamlog.format.rows import Tenure
from streamlog.format.wal.frame import FileLife, aligned
from streamlog.format.wal.superblock import (
    SUPERBLOCK_BYTES,
    FileState,
    Superblock,
    encode_superblock,
)
from streamlog.runtime.disk.interface import Disk
from streamlog.runtime.offload import Lane, Offload
from streamlog.wal.config import WalConfig
from streamlog.wal.file import WalFile, close_file
from streamlog.wal.folder import Folder, file_name
from streamlog.wal.metrics import WalMetrics
from streamlog.wal.writer import Shelf

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _DiscardedFile:
    """A closed file that is to be removed.

    `released_through`: what the identity file is to state before. `error`: of the last removal.
    """

    name: str
    size_bytes: int
    released_through: int
    error: OSError | None = None


class FilePool:
    """Keeps the shelf filled. Used by one event loop and one taker."""

    def __init__(
        self,
        shelf: Shelf,
        disk: Disk,
        offload: Offload,
        config: WalConfig,
        metrics: WalMetrics,
        folder: Folder,
        persist_release: Callable[[int], Awaitable[None]],
        on_full: Callable[[], None],
        uploads_bytes: int | None,
    ) -> None:
        """`persist_release(through)` makes the release durable in the identity file; it raises
        OSError. `on_full()` is called while an append waits for a release. `uploads_bytes`: as in
        WriteAheadLog.open."""
        self._shelf = shelf
        self._disk = disk
        self._offload = offload
        self._config = config
        self._metrics = metrics
        self._next_number = folder.next_number
        self._released_through = folder.plan.released_through
        self._persist_release = persist_release
        self._on_full = on_full
        self._free: list[WalFile] = []
        self._disk_bytes = 0
        self._wanted_bytes = 0
        self._wake = asyncio.Event()
        self._changed = asyncio.Event()
        self._trouble: OSError | None = None
        self._discarded: list[_DiscardedFile] = []
        self._is_unstated = False
        """The last look found released files that stay, because that cannot be stated."""
        self._is_closed = False
        self._is_giving_room = False
        # A file's groups take a little more space as objects, with their indexes; and later ones of
        # several concurrent uploads may be stored before the first one finds no room.
        full_bytes = config.file_bytes * 9 // 8
        self._reserve_bytes = 0 if uploads_bytes is None else full_bytes + uploads_bytes

    def adopt(self, file: WalFile) -> None:
        """Takes a file found in the folder; active ones in the order of their generations."""
        if file.superblock.state is FileState.FREE:
            self._free.append(file)
        else:
            self._shelf.sealed.append(file)
            self._shelf.newest = file
        self._count(file.size_bytes)

    def nudge(self) -> None:
        """The writer has taken a ready file or sealed a file."""
        self._wake.set()

    def release(self, through: int) -> None:
        """Groups up to `through` are in the object store."""
        self._released_through = through
        self._wake.set()

    def give_room(self, is_giving: bool) -> None:
        """Whether uploads to the same disk need its room: then free files are removed."""
        self._is_giving_room = is_giving
        self._wake.set()

    async def take(self, frame_bytes: int) -> WalFile:
        """A file for a stalled writer, with room for a frame of this size.

        Waits until one is free or can be made. Cancellation takes none. Errors: OSError if none can
        be made, Closed.
        """
        size = max(aligned(SUPERBLOCK_BYTES + frame_bytes), self._config.file_bytes)
        file = await self._pop(size)
        if file is None:
            self._metrics.room_waits.inc()
            self._wanted_bytes, self._trouble = size, None
            try:
                file = await self._wait_for(size)
            finally:
                self._wanted_bytes = 0
        self._wake.set()
        return file

    async def _wait_for(self, size: int) -> WalFile:
        self._wake.set()
        while True:
            if self._is_closed:
                raise Closed("the write-ahead log was closed")
            # Cleared before the attempt, which awaits: a change meanwhile causes another attempt.
            self._changed.clear()
            file = await self._pop(size)
            if file is not None:
                return file
            if self._trouble is not None:
                trouble, self._trouble = self._trouble, None
                raise trouble
            await self._changed.wait()

    async def _pop(self, size: int) -> WalFile | None:
        """Takes a file for a stalled writer, which takes no ready file itself, if one is free.

        Errors: OSError if uploads need the room of the free file.
        """
        while True:
            self._free += self._shelf.ready
            self._shelf.ready.clear()
            file = next((file for file in self._free if file.size_bytes >= size), None)
            if file is None:
                return None
            if not await self._leaves_room(file):
                raise _no_room("what is left is kept for uploads to the same disk")
            if self._is_closed:
                raise Closed("the write-ahead log was closed")
            # `_tidy` may have made it ready, or removed it, meanwhile.
            if file in self._free:
                self._free.remove(file)
                return file

    async def _leaves_room(self, file: WalFile) -> bool:
        """Whether uploads of a full file still have room when this file is filled as well: on the
        disk, or in free files that can be removed."""
        left = self._reserve_bytes - sum(
            other.size_bytes for other in self._free if other is not file
        )
        return left <= 0 or left <= await self._offload.run(Lane.CPU, self._disk.free_bytes)

    async def run(self) -> None:
        """Frees, removes and makes files until `close`. An error is told once while it lasts."""
        told: tuple[int | None, str] | None = None
        while not self._is_closed:
            self._wake.clear()
            try:
                await self._tidy()
                told = None
            except OSError as error:
                # Each try has a new file, whose name is in the error's text.
                if (reason := (error.errno, error.strerror or str(error))) != told:
                    told = reason
                    log.warning(
                        "a file of the write-ahead log could not be made ready, or removed: %s",
                        error,
                    )
                self._trouble = error
                self._changed.set()
            await self._wake.wait()

    def close(self) -> None:
        """`run` ends after the step under way; a waiting `take` fails with Closed."""
        self._is_closed = True
        self._wake.set()
        self._changed.set()

    def close_files(self) -> None:
        """After `run` has ended."""
        for file in (*self._free, *self._shelf.ready, *self._shelf.sealed):
            close_file(file.file)

    async def _tidy(self) -> None:
        for discarded in list(self._discarded):
            await self._remove_discarded(discarded)
        trouble = await self._recycle_released()
        await self._fill()
        for discarded in self._discarded:
            trouble = trouble or discarded.error
        is_stalled = bool(self._wanted_bytes) and not self._free
        if trouble is not None and is_stalled and not self._awaits_release():
            raise trouble

    async def _recycle_released(self) -> OSError | None:
        """Why the release cannot be stated, without which no file is removed; told once while it
        lasts. Files that are not to be removed are freed all the same."""
        unstated: OSError | None = None
        for file in [file for file in self._shelf.sealed if self._may_go(file)]:
            if unstated is not None and self._is_superfluous(file):
                continue
            try:
                await self._recycle(file)
            except OSError as error:
                unstated = error
        if unstated is not None and not self._is_unstated:
            log.warning(
                "released files of the write-ahead log are not removed yet, because the release "
                "cannot be stated: %s",
                unstated,
            )
        self._is_unstated = unstated is not None
        return unstated

    async def _fill(self) -> None:
        """Removes and makes files until there are as many as there should be."""
        size = self._config.file_bytes
        if self._is_giving_room:
            await self._give_back()
            return
        # Looked for anew each time: during the await a stalled writer may have taken others.
        while (misfit := next(filter(self._is_misfit, self._free), None)) is not None:
            await self._remove(misfit, self._free)
        if self._wanted_bytes > size:
            await self._make_large(self._wanted_bytes)
            return
        while not self._is_closed and self._is_short():
            if self._free and not self._wanted_bytes:
                file = self._free[0]
                if not await self._leaves_room(file):
                    return
                # During the await a stalled writer may have taken it, or may want it now.
                if file in self._free and not self._wanted_bytes:
                    self._free.remove(file)
                    self._shelf.ready.append(file)
            elif not await self._make_within_bound(size):
                return

    async def _give_back(self) -> None:
        """Removes all free files, unless this look could not state the release, without which none
        is removed; an append that waits for a file fails."""
        self._free += self._shelf.ready
        self._shelf.ready.clear()
        while self._free and not self._is_unstated:
            await self._remove(self._free[0], self._free)
        if self._wanted_bytes:
            raise _no_room("uploads to the same disk need what is left")

    def _is_short(self) -> bool:
        if self._wanted_bytes:
            return not self._free
        return len(self._shelf.ready) < self._config.spare_files

    def _may_go(self, file: WalFile) -> bool:
        return file is not self._shelf.newest and file.last_sequence <= self._released_through

    def _awaits_release(self) -> bool:
        """Whether uploads will let another file go."""
        newest = self._shelf.newest
        return any(file is not newest and not self._may_go(file) for file in self._shelf.sealed)

    def _is_misfit(self, file: WalFile) -> bool:
        """Whether the free file was made for one large group, or under other settings, and is not
        wanted now."""
        is_too_much = self._disk_bytes > self._config.wal_bytes_max
        is_wanted = 0 < self._wanted_bytes <= file.size_bytes
        return (file.size_bytes != self._config.file_bytes or is_too_much) and not is_wanted

    def _is_superfluous(self, file: WalFile) -> bool:
        """Whether the file is to be removed once it is released."""
        is_too_much = self._disk_bytes > self._config.wal_bytes_max
        is_misfit = file.size_bytes != self._config.file_bytes
        return is_misfit or is_too_much or self._is_giving_room

    async def _recycle(self, file: WalFile) -> None:
        """Errors: OSError if its groups' release cannot be stated; it is sealed still."""
        if self._is_superfluous(file):
            await self._remove(file, self._shelf.sealed)
            return
        superblock = replace(
            file.superblock, state=FileState.FREE, released_through=self._released_through
        )
        try:
            await self._offload.run(Lane.CPU, file.free, superblock)
        except OSError as error:
            log.warning(
                "file %s of the write-ahead log cannot be used again and is to be removed: %s",
                file.name,
                error,
            )
            await self._discard(file, self._shelf.sealed)
        else:
            self._shelf.sealed.remove(file)
            self._free.append(file)
            self._changed.set()

    async def _make_large(self, size: int) -> None:
        """Makes a file for one group that no regular file can hold; removes free regular files."""
        if any(file.size_bytes >= size for file in self._free):
            return
        while self._free and self._disk_bytes + size > self._config.wal_bytes_max:
            await self._remove(self._free[0], self._free)
        await self._make_within_bound(size)

    async def _make_within_bound(self, size: int) -> bool:
        """Makes a file, if the bound has room for one of this size.

        The newest file, which is never freed, may have been made under a larger bound and leave no
        room for any other. A stalled writer then gets a file beyond the bound, with which the
        newest one can go.
        """
        newest = self._shelf.newest
        is_newest_alone = newest is not None and self._disk_bytes == newest.size_bytes
        if self._disk_bytes + size <= self._config.wal_bytes_max or (
            self._wanted_bytes and is_newest_alone
        ):
            await self._make(size)
            return True
        if self._wanted_bytes:
            self._on_full()
        return False

    async def _make(self, size: int) -> None:
        name = file_name(self._next_number)
        self._next_number += 1
        superblock = Superblock(
            FileState.FREE, FileLife(0, 0), Tenure(0, 0), 0, self._released_through, size
        )
        try:
            file = await self._offload.run(
                Lane.CPU, _create, self._disk, name, superblock, self._reserve_bytes
            )
        except FileExistsError:
            raise  # It is not the pool's.
        except OSError:
            # It may be there, in whole or in part. It has no groups.
            self._count(size)
            await self._remove_later(_DiscardedFile(name, size, released_through=0))
            raise
        self._free.append(file)
        self._count(size)
        self._changed.set()

    async def _remove(self, file: WalFile, owner: list[WalFile]) -> None:
        """The owner has the file no more. Errors: OSError if its groups' release cannot be stated:
        the owner keeps it."""
        await self._persist_release(self._released_through)
        # During the await a stalled writer may have taken it.
        if file in owner:
            await self._discard(file, owner)

    async def _discard(self, file: WalFile, owner: list[WalFile]) -> None:
        owner.remove(file)
        close_file(file.file)
        await self._remove_later(_DiscardedFile(file.name, file.size_bytes, self._released_through))

    async def _remove_later(self, file: _DiscardedFile) -> None:
        """At once, if the disk does it; else at a later look."""
        self._discarded.append(file)
        await self._remove_discarded(file)

    async def _remove_discarded(self, file: _DiscardedFile) -> None:
        """Tries it; an error is told once a file."""
        try:
            await self._persist_release(file.released_through)
            await self._offload.run(Lane.CPU, _remove_if_there, self._disk, file.name)
        except OSError as error:
            if file.error is None:
                log.warning(
                    "file %s of the write-ahead log cannot be removed yet: %s", file.name, error
                )
            file.error = error
        else:
            self._discarded.remove(file)
            self._count(-file.size_bytes)
            self._changed.set()

    def _count(self, size_bytes: int) -> None:
        self._disk_bytes += size_bytes
        self._metrics.disk_bytes.set(self._disk_bytes)
        self._metrics.files.inc(1 if size_bytes > 0 else -1)


def _no_room(why: str) -> OSError:
    return OSError(errno.ENOSPC, f"{os.strerror(errno.ENOSPC)} ({why})")


def _remove_if_there(disk: Disk, name: str) -> None:
    """It is absent where a removal whose sync failed has taken the name away, and where the file
    could not be made. A file system that takes no writes refuses the removal of any name."""
    if name in disk.list():
        disk.remove(name)


def _create(disk: Disk, name: str, superblock: Superblock, reserve_bytes: int) -> WalFile:
    """Errors: OSError, after which the file may be there."""
    # Asked for first: a file that does not fit would fill the disk to its last byte until it is
    # removed again, and other files, as those of the metadata, grow on it.
    if disk.free_bytes() < superblock.file_bytes + reserve_bytes:
        kept = f", and {reserve_bytes} beside it are kept free for uploads" if reserve_bytes else ""
        raise _no_room(f"a new file has {superblock.file_bytes} bytes{kept}")
    file = disk.create(name, superblock.file_bytes)
    try:
        file.write_sync(0, [encode_superblock(superblock)])
    except OSError:
        file.close()
        raise
    return WalFile(name, file, superblock)
