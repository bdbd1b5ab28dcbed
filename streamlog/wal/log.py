"""The write-ahead log of `wal=disk`: groups of appends, each made durable by one write.

1. `append` queues a group; one writer takes them in order. A group is a frame in the active file; a
   frame that does not fit activates the next file, which the pool keeps ready.
2. Sequences count up without a gap over all files, tenures and restarts.
3. A failed write: how much of the frame is on the disk is unknown, and it is not written again in
   place, since after a failed sync the kernel may take lost pages for clean. The file is left as it
   is; the next group gets the same sequence and activates another file, whose superblock states
   that sequence as its first. From that write on, whatever the failed one left is void (recovery,
   rule 1). Until then it may be found whole: stored, unacknowledged, the last of all.
   So an acknowledged group is never followed by a doubtful one, and none is lost behind one.
4. `release` frees whole files in the background. How far the release went is stated by later frames
   and superblocks; after a crash released groups may be yielded again.
5. A tenure stays in `tenures` until everything of earlier tenures is released and this one has
   appended: from then on nobody asks for them.

Reading is in folder, scan and recovery; writing in file; space in pool.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections import deque
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace

from prometheus_client import CollectorRegistry

from streamlog.errors import (
    Closed,
    DiskFull,
    ForeignCluster,
    Internal,
    MessageTooLarge,
    StoreUnavailable,
    StreamlogError,
)
from streamlog.format.entry import StreamEntry
from streamlog.format.rows import Tenure
from streamlog.format.wal_frame import ALIGNMENT, EncodedGroup, Life
from streamlog.format.wal_superblock import SUPERBLOCK_BYTES, FileState, Superblock, WalIdentity
from streamlog.runtime.background import Background
from streamlog.runtime.disk import Disk
from streamlog.runtime.offload import Lane, Offload
from streamlog.runtime.rand import Random
from streamlog.wal.config import WalConfig
from streamlog.wal.file import WalFile, encode_and_write
from streamlog.wal.folder import Folder, load_folder
from streamlog.wal.identity import IdentityKeeper
from streamlog.wal.metrics import WalMetrics
from streamlog.wal.pool import FilePool
from streamlog.wal.replay import RecoveredGroup, read_groups, reading_order

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Request:
    entries: Sequence[StreamEntry]
    done: asyncio.Future[int]


class WriteAheadLog:
    """One folder's log: open, begin, recover (once), then append and release. One event loop."""

    def __init__(
        self,
        disk: Disk,
        offload: Offload,
        config: WalConfig,
        registry: CollectorRegistry,
        random: Random,
        folder: Folder,
    ) -> None:
        """Use `open`."""
        self._offload = offload
        self._config = config
        self._random = random
        self._metrics = WalMetrics(registry)
        self._keeper = IdentityKeeper(disk, offload, folder.identity)
        plan = folder.plan
        self._unread = plan.live
        self._released_through = plan.released_through
        self._next_sequence = plan.next_sequence
        self._next_generation = plan.next_generation
        self._recovered_through = plan.next_sequence - 1
        self._live = deque((frame.sequence, frame.end - frame.position) for _, frame in plan.live)
        self._live_bytes = sum(size for _, size in self._live)
        self._metrics.live_bytes.set(self._live_bytes)
        self._pool = FilePool(
            disk,
            offload,
            config,
            self._metrics,
            next_number=folder.next_number,
            released_through=plan.released_through,
            persist_release=self._persist_release,
        )
        for file in _adopted(folder):
            self._pool.adopt(file)
        self._tenure: Tenure | None = None
        self._active: WalFile | None = None
        self._queue: deque[_Request] = deque()
        self._wake = asyncio.Event()
        self._is_closing = False
        self._failure: BaseException | None = None
        self._background = Background("wal", self._fail)
        self._tasks: list[asyncio.Task[None]] = []
        self._is_forgetting = False

    @classmethod
    async def open(
        cls,
        disk: Disk,
        offload: Offload,
        config: WalConfig,
        registry: CollectorRegistry,
        random: Random,
    ) -> WriteAheadLog:
        """Reads the folder. What `recover` will yield is durable on return.

        Nothing is made or written before `begin`.
        Errors: Corrupt (file name and byte range), UnsupportedVersion, StoreUnavailable.
        """
        try:
            folder = await offload.run(Lane.WAL, load_folder, disk)
        except OSError as error:
            raise _typed(error, "reading the write-ahead log") from error
        if folder.plan.torn is not None:
            name, position = folder.plan.torn
            log.info("cut a torn write", extra={"file": name, "position": position})
        return cls(disk, offload, config, registry, random, folder)

    @property
    def cluster_id(self) -> str | None:
        """Whose log this is; None before the first `begin`."""
        identity = self._keeper.identity
        return identity.cluster_id if identity else None

    @property
    def tenures(self) -> frozenset[Tenure]:
        """Those whose whole log is in hand: what they acknowledged is stored or in `recover`."""
        identity = self._keeper.identity
        return identity.tenures if identity else frozenset()

    @property
    def last_sequence(self) -> int:
        """Of the last durable group; 0 where there was none."""
        return self._next_sequence - 1

    @property
    def released_through(self) -> int:
        return self._released_through

    @property
    def live_bytes(self) -> int:
        """On disk, of groups that are not released."""
        return self._live_bytes

    @property
    def capacity_bytes_max(self) -> int:
        """Disk space of the log. Space is freed by whole files: appends may wait before
        `live_bytes` gets there.
        """
        return self._config.wal_bytes_max

    @property
    def group_bytes_max(self) -> int:
        """Size of the largest group that `append` takes, tables included."""
        # Half: the newest file is kept until the next is active, and both may be this large.
        return self._config.wal_bytes_max // 2 // ALIGNMENT * ALIGNMENT - SUPERBLOCK_BYTES

    async def begin(self, tenure: Tenure, *, cluster_id: str) -> None:
        """From now on `tenure` appends; its name is durable in the folder on return.

        Call it once, before take_over_previous. The first append says that this was done.
        Errors: ForeignCluster, DiskFull, StoreUnavailable.
        """
        if self._tenure is not None:
            raise Internal(f"the write-ahead log was begun by {self._tenure} already")
        identity = self._keeper.identity
        if identity is not None and identity.cluster_id != cluster_id:
            raise ForeignCluster(
                f"the write-ahead log belongs to cluster {identity.cluster_id}, the metadata to "
                f"{cluster_id}; give this node the folder or the metadata that belong together",
                store_cluster=identity.cluster_id,
                meta_cluster=cluster_id,
            )

        def with_tenure(earlier: WalIdentity | None) -> WalIdentity:
            earlier = earlier or WalIdentity(cluster_id, frozenset())
            return replace(earlier, tenures=earlier.tenures | {tenure})

        try:
            await self._keeper.change(with_tenure)
        except OSError as error:
            raise _typed(error, "naming the tenure in the write-ahead log") from error
        self._tenure = tenure
        self._tasks = [
            self._background.spawn(self._pool.run(), name="files"),
            self._background.spawn(self._write_all(), name="writer"),
        ]

    async def recover(self) -> AsyncIterator[RecoveredGroup]:
        """The groups that are not released, in order; all are durable.

        Payloads are slices of pieces of the file of a few MiB. Errors: Corrupt, StoreUnavailable.
        """
        for scanned, frames in reading_order(self._unread):
            if frames[-1].sequence <= self._released_through:
                continue
            try:
                groups = await self._offload.run(Lane.WAL, read_groups, scanned, frames)
            except OSError as error:
                raise _typed(error, "reading the write-ahead log") from error
            for group in groups:
                if group.sequence > self._released_through:
                    yield group
        self._unread = []

    async def append(self, entries: Sequence[StreamEntry]) -> int:
        """Stores one group; its sequence is returned when it is durable.

        Groups are written in the order of calls. Waits while the log is full. Cancelling a call
        that waits its turn stores nothing; one whose turn has come may be stored.
        Errors: DiskFull, StoreUnavailable (`has_no_side_effects` False: the group may be found at
        recovery if nothing is appended after it); MessageTooLarge; Closed.
        """
        if self._tenure is None or not entries:
            raise Internal("append before begin, or of nothing")
        self._check_open()
        request = _Request(entries, asyncio.get_running_loop().create_future())
        self._queue.append(request)
        self._wake.set()
        return await request.done

    def release(self, through_sequence: int) -> None:
        """All groups up to `through_sequence` are uploaded and committed; their space is freed."""
        if through_sequence > self.last_sequence:
            raise Internal(f"released {through_sequence}, appended {self.last_sequence}")
        if through_sequence <= self._released_through:
            return
        self._released_through = through_sequence
        while self._live and self._live[0][0] <= through_sequence:
            self._live_bytes -= self._live.popleft()[1]
        self._metrics.live_bytes.set(self._live_bytes)
        self._pool.release(through_sequence)
        self._forget_earlier()

    async def close(self) -> None:
        """Waits for groups under way; those that wait for room are told Closed.

        What was released is durable on return, unless the disk fails (then it is logged).
        """
        if self._is_closing:
            return
        self._is_closing = True
        self._wake.set()
        self._pool.close()
        # Not cancelled: the thread that writes for them must not outlive the file handles.
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._background.close()
        if self._tenure is not None:
            try:
                await self._persist_release(self._released_through)
            except OSError as error:
                log.warning("released groups will be recovered again: %s", error)
        self._pool.close_files()
        if self._active is not None:
            self._active.file.close()

    async def _write_all(self) -> None:
        while True:
            while self._queue:
                request = self._queue[0]
                if not request.done.cancelled():
                    await self._answer(request)
                self._queue.popleft()
            if self._is_closing:
                return
            self._wake.clear()
            await self._wake.wait()

    async def _answer(self, request: _Request) -> None:
        try:
            sequence = await self._store(request.entries)
        except StreamlogError as error:
            if not request.done.done():
                request.done.set_exception(error)
        else:
            if not request.done.done():
                request.done.set_result(sequence)

    async def _store(self, entries: Sequence[StreamEntry]) -> int:
        sequence = self._next_sequence
        loop = asyncio.get_running_loop()
        start = loop.time()
        active = self._active
        try:
            group, is_written = await self._offload.run(
                Lane.WAL, encode_and_write, active, entries, sequence, self._released_through
            )
        except OSError as error:
            assert active is not None
            self._active = None
            self._pool.seal(active)
            raise self._write_failed(error) from error
        if not is_written:
            file = await self._next_file(group)
            start = loop.time()
            await self._activate(file, group, sequence)
        self._next_sequence = sequence + 1
        self._live.append((sequence, group.size_bytes))
        self._live_bytes += group.size_bytes
        self._metrics.write_seconds.observe(loop.time() - start)
        self._metrics.group_bytes.observe(group.size_bytes)
        self._metrics.group_entries.observe(group.entry_count)
        self._metrics.live_bytes.set(self._live_bytes)
        return sequence

    async def _next_file(self, group: EncodedGroup) -> WalFile:
        if group.size_bytes > self.group_bytes_max:
            raise MessageTooLarge(
                f"a group of {group.size_bytes} bytes; the write-ahead log takes at most "
                f"{self.group_bytes_max}: raise wal_bytes_max or append less at a time",
                size_bytes=group.size_bytes,
                max_bytes=self.group_bytes_max,
            )
        if self._active is not None:
            self._pool.seal(self._active)
            self._active = None
        try:
            return await self._pool.take(group.size_bytes)
        except OSError as error:
            raise _typed(error, "making a file of the write-ahead log") from error

    async def _activate(self, file: WalFile, group: EncodedGroup, sequence: int) -> None:
        assert self._tenure is not None
        salt = int.from_bytes(self._random.bytes(8), "little")
        superblock = Superblock(
            FileState.ACTIVE,
            Life(self._next_generation, salt),
            self._tenure,
            sequence,
            self._released_through,
            file.size_bytes,
        )
        self._next_generation += 1
        try:
            await self._offload.run(Lane.WAL, file.activate, superblock, group)
        except OSError as error:
            self._pool.seal(file)
            raise self._write_failed(error) from error
        self._pool.activated(file)
        self._active = file
        self._forget_earlier()

    def _write_failed(self, error: OSError) -> StreamlogError:
        self._metrics.write_failures.inc()
        typed = _typed(error, "writing to the write-ahead log")
        typed.has_no_side_effects = False
        return typed

    async def _persist_release(self, through: int) -> None:
        def released(identity: WalIdentity | None) -> WalIdentity:
            assert identity is not None
            return replace(identity, released_through=max(through, identity.released_through))

        await self._keeper.change(released)

    def _forget_earlier(self) -> None:
        is_due = (
            self._active is not None
            and self._released_through >= self._recovered_through
            and len(self.tenures) > 1
        )
        if is_due and not self._is_forgetting:
            self._is_forgetting = True
            self._tasks.append(self._background.spawn(self._forget(), name="forget"))

    async def _forget(self) -> None:
        assert self._tenure is not None
        own = frozenset({self._tenure})

        def without_earlier(identity: WalIdentity | None) -> WalIdentity:
            assert identity is not None
            return replace(identity, tenures=own)

        try:
            await self._keeper.change(without_earlier)
        except OSError as error:
            log.warning("earlier tenures stay named in the write-ahead log: %s", error)
        finally:
            self._is_forgetting = False

    def _check_open(self) -> None:
        if self._failure is not None:
            raise Internal("the write-ahead log failed") from self._failure
        if self._is_closing:
            raise Closed("the write-ahead log was closed")

    def _fail(self, error: BaseException) -> None:
        """A bug: nothing more is written, and every caller hears why."""
        self._failure = error
        self._pool.close()
        for request in self._queue:
            if not request.done.done():
                failure = Internal("the write-ahead log failed; see the process's log")
                failure.__cause__ = error
                request.done.set_exception(failure)


def _adopted(folder: Folder) -> list[WalFile]:
    """The files of a folder by generation, each with its last live sequence."""
    last = {scanned.name: frame.sequence for scanned, frame in folder.plan.live}
    return [
        WalFile(
            scanned.name,
            scanned.file,
            scanned.superblock,
            scanned.end,
            last.get(scanned.name, 0),
        )
        for scanned in sorted(folder.files, key=lambda file: file.superblock.life.generation)
    ]


def _typed(error: OSError, operation: str) -> StreamlogError:
    path = str(error.filename or "")
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFull(
            f"{operation}: no room on the disk {path}; free space, then retry", path=path
        )
    return StoreUnavailable(
        f"{operation} failed: {error}; check the disk, then retry", operation=operation
    )
