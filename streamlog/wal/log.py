"""The write-ahead log of `wal=disk`: groups of appends, each made durable by one write.

1. `append` hands a group to the writer, which takes them in order, writes up to four beside each
   other, and answers each behind those before it. A group is a frame in the active file; one that
   does not fit activates the next file, which the pool keeps ready.
2. Sequences count up without a gap over all files, tenures and restarts.
3. After a failed write it is unknown how much of the frame is on the disk. The frame is not written
   again in place, because after a failed sync the kernel may take lost pages for clean. Groups that
   were being written behind it fail with it. The next group gets the failed one's sequence and
   activates another file, whose superblock states that sequence as its first. From that write on,
   the remains of the failed writes are void (recovery, rule 1). Until then a recovery may find the
   failed groups whole: stored, unacknowledged, the last of all.
   So no acknowledged group is followed by a doubtful one, or lost behind one.
4. `release` frees whole files in the background. Later frames and superblocks state how far the
   release went; after a crash released groups may be recovered again.
5. A tenure stays in `tenures` until everything of earlier tenures is released and this tenure has
   appended: then nothing needs the earlier ones any more.

Reading is in folder, scan and recovery; writing in writer; space in pool.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from functools import partial

from prometheus_client import CollectorRegistry

from streamlog.errors import (
    Closed,
    Corrupt,
    ForeignCluster,
    Internal,
    StoreUnavailable,
    Unavailable,
)
from streamlog.format.entry import StreamEntry
from streamlog.format.rows import Tenure
from streamlog.format.wal.frame import ALIGNMENT
from streamlog.format.wal.superblock import SUPERBLOCK_BYTES, WalIdentity
from streamlog.runtime.concurrency.background import Background
from streamlog.runtime.disk.durable_writes import DurableWrites
from streamlog.runtime.disk.folders import typed_os_error
from streamlog.runtime.disk.interface import Disk
from streamlog.runtime.offload import Lane, Offload
from streamlog.runtime.rand import Random
from streamlog.wal.config import WalConfig
from streamlog.wal.file import WalFile
from streamlog.wal.folder import Folder, load_folder
from streamlog.wal.identity import IdentityKeeper
from streamlog.wal.metrics import WalMetrics
from streamlog.wal.pool import FilePool
from streamlog.wal.replay import RecoveredGroup, read_groups, reading_order
from streamlog.wal.writer import EarlierFailed, GroupWriter, NotWritten, Shelf, Written

log = logging.getLogger(__name__)


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
        uploads_bytes: int | None,
    ) -> None:
        """Use `open`."""
        self.is_beside_objects = uploads_bytes is not None
        """Whether it leaves room for uploads."""
        self._folder_name = str(disk)
        self._offload = offload
        self._config = config
        self._metrics = WalMetrics(registry)
        self._failure: BaseException | None = None
        self._failed = asyncio.Event()
        self._background = Background("wal", self._fail)
        self._keeper = IdentityKeeper(disk, offload, self._background, folder.identity)
        self._lost_tenures = folder.tenures
        plan = folder.plan
        self._lost_through = plan.next_sequence - 1 if folder.lost else 0
        self._unread = plan.live
        self._released_through = plan.released_through
        self._recovered_through = plan.next_sequence - 1
        shelf = Shelf()
        self._writer = GroupWriter(
            shelf,
            random,
            DurableWrites(offload),
            lambda name: offload.run(Lane.WAL, disk.open, name),
            next_sequence=plan.next_sequence,
            next_generation=plan.next_generation,
            group_bytes_max=self.group_bytes_max,
        )
        for _, frame in plan.live:
            self._writer.stored.append((frame.sequence, frame.end - frame.position))
            self._writer.stored_bytes += frame.end - frame.position
        self._freed_bytes = 0
        self._metrics.live_bytes.set_function(lambda: self.live_bytes)
        self._pool = FilePool(
            shelf,
            disk,
            offload,
            config,
            self._metrics,
            folder,
            self._persist_release,
            lambda: self.on_full(),
            uploads_bytes,
        )
        for file in _adopted(folder):
            self._pool.adopt(file)
        self._turn = asyncio.Lock()
        """Of the call that hands its group over: first come, first served."""
        self._known_failures = 0
        self._reading: asyncio.Future[list[RecoveredGroup]] | None = None
        self.on_full: Callable[[], None] = _nothing
        """Called, perhaps again and again, while an append waits for a release."""
        self._is_closing = False
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
        *,
        uploads_bytes: int | None = None,
    ) -> WriteAheadLog:
        """Reads the folder. What `recover` will yield is durable on return.

        `uploads_bytes`: size of all concurrent uploads if objects are stored on the same disk; the
        log leaves room for them. None: they are not.
        No file is made or written before `begin`. With `accept_data_loss` damage is logged and
        skipped; whole groups behind it are kept.
        Errors: Corrupt (file name and byte range), UnsupportedVersion, StoreUnavailable.
        """
        accept_data_loss = config.accept_data_loss
        try:
            folder = await offload.run(
                Lane.WAL, partial(load_folder, disk, accept_data_loss=accept_data_loss)
            )
        except OSError as error:
            raise typed_os_error(
                error, str(disk), "reading the write-ahead log", StoreUnavailable
            ) from error
        except Corrupt as error:
            raise _damaged(str(disk), error) from error
        for lost in folder.lost:
            log.warning("acknowledged groups of the write-ahead log are given up: %s", lost.message)
        if folder.plan.torn is not None:
            name, start, end = folder.plan.torn
            log.warning(
                "cut a torn write from the end of the write-ahead log: its CRC does not match, and "
                "unless the disk damaged it later it was never acknowledged",
                extra={"file": name, "start": start, "end": end},
            )
        return cls(disk, offload, config, registry, random, folder, uploads_bytes)

    @property
    def cluster_id(self) -> str | None:
        """The cluster that the log belongs to; None before the first `begin`."""
        identity = self._keeper.identity
        return identity.cluster_id if identity else None

    @property
    def tenures(self) -> frozenset[Tenure]:
        """Tenures whose log is complete: what they acknowledged is stored or in `recover`."""
        identity = self._keeper.identity
        return identity.tenures if identity else self._lost_tenures

    @property
    def last_sequence(self) -> int:
        """Sequence of the last durable group; 0: there was none."""
        return self._writer.next_sequence - 1

    @property
    def failure_count(self) -> int:
        """Failures so far, whoever has been told of them."""
        return self._writer.failures

    @property
    def released_through(self) -> int:
        return self._released_through

    @property
    def live_bytes(self) -> int:
        """Bytes on disk of groups that are not released."""
        return self._writer.stored_bytes - self._freed_bytes

    @property
    def group_bytes_max(self) -> int:
        """Size of the largest group that `append` takes, tables included."""
        # Half, because the newest file is kept until the next one is active, and both may be this
        # large.
        return self._config.wal_bytes_max // 2 // ALIGNMENT * ALIGNMENT - SUPERBLOCK_BYTES

    async def begin(self, tenure: Tenure, *, cluster_id: str) -> None:
        """From now on `tenure` appends; on return its name is durable in the folder.

        Call it once, before take_over_previous.
        Errors: ForeignCluster, DiskFull, StoreUnavailable.
        """
        if self._writer.tenure is not None:
            raise Internal(f"the write-ahead log was begun by {self._writer.tenure} already")
        identity = self._keeper.identity
        if identity is not None and identity.cluster_id != cluster_id:
            raise ForeignCluster(
                f"the write-ahead log belongs to cluster {identity.cluster_id}, the metadata to "
                f"{cluster_id}; give this node the folder or the metadata that belong together",
                store_cluster=identity.cluster_id,
                meta_cluster=cluster_id,
            )

        def with_tenure(earlier: WalIdentity | None) -> WalIdentity:
            earlier = earlier or WalIdentity(cluster_id, self._lost_tenures)
            return replace(
                earlier,
                tenures=earlier.tenures | {tenure},
                released_through=max(earlier.released_through, self._released_through),
            )

        try:
            await self._keeper.change(with_tenure)
        except OSError as error:
            raise self._typed(error, "naming the tenure in the write-ahead log") from error
        self._writer.tenure = tenure
        self._tasks.append(self._background.spawn(self._pool.run(), name="files"))

    async def recover(self) -> AsyncIterator[RecoveredGroup]:
        """Yields the groups that are not released, in order; all are durable.

        Payloads are slices of buffers of a few MiB. Errors: Corrupt, StoreUnavailable.
        """
        for scanned, frames in reading_order(self._unread):
            if frames[-1].sequence <= self._released_through:
                continue
            reading = self._offload.run(Lane.WAL, read_groups, scanned, frames)
            self._reading = asyncio.ensure_future(reading)
            try:
                groups = await asyncio.shield(self._reading)
            except OSError as error:
                raise self._typed(error, "reading the write-ahead log") from error
            for group in groups:
                if group.sequence > self._released_through:
                    yield group
        self._unread = []

    async def append(
        self, entries: Sequence[StreamEntry], known_failures: int | None = None
    ) -> int:
        """Stores one group, and returns its sequence when it and all groups before are durable.

        Calls may overlap: groups take their places in the order of calls. When one fails, later
        calls made before that failure was raised fail as well; `known_failures`: those made with
        the `failure_count` of before. Waits while the log is full. Cancellation stops the wait; the
        group may be stored.
        Errors: DiskFull, StoreUnavailable (`has_no_side_effects` False: the group may be found at
        recovery if nothing is appended after it); MessageTooLarge; Closed.
        """
        if self._writer.tenure is None or not entries:
            raise Internal("append before begin, or of nothing")
        self._check_open()
        known = self._known_failures if known_failures is None else known_failures
        start = asyncio.get_running_loop().time()
        try:
            written = await self._written(entries, known)
        except OSError as error:
            self._known_failures = self._writer.failures
            self._metrics.write_failures.inc()
            typed = self._typed(error, "writing to the write-ahead log")
            typed.has_no_side_effects = False
            raise typed from error
        except EarlierFailed as error:
            self._known_failures = self._writer.failures
            what = "this one may be stored" if error.is_begun else "nothing of this one was stored"
            earlier = StoreUnavailable(
                "the group before this one could not be written to the write-ahead log; "
                f"{what}, retry both in order",
                operation="writing to the write-ahead log",
            )
            earlier.has_no_side_effects = not error.is_begun
            raise earlier from error
        except Exception:
            self._known_failures = self._writer.failures
            raise
        self._metrics.write_seconds.observe(asyncio.get_running_loop().time() - start)
        self._metrics.group_bytes.observe(written.size_bytes)
        self._metrics.group_entries.observe(written.entry_count)
        if written.under_way:
            self._metrics.groups_beside.inc()
        if written.has_rolled:
            self._pool.nudge()
            self._forget_earlier()
        return written.sequence

    def release(self, through_sequence: int) -> None:
        """Frees the space of groups up to `through_sequence`, which are uploaded and committed."""
        if through_sequence > self.last_sequence:
            raise Internal(f"released {through_sequence}, appended {self.last_sequence}")
        if through_sequence <= self._released_through:
            return
        self._released_through = through_sequence
        stored = self._writer.stored
        while stored and stored[0][0] <= through_sequence:
            self._freed_bytes += stored.popleft()[1]
        self._pool.release(through_sequence)
        self._forget_earlier()
        if 0 < self._lost_through <= through_sequence:
            # The accepted loss is behind us: from now on the log opens without accept_data_loss.
            self._lost_through = 0
            self._tasks.append(self._background.spawn(self._state_loss(), name="state_loss"))

    def give_room(self, is_giving: bool) -> None:
        """Whether uploads to the same disk find no room: then free files are removed."""
        if not self._is_closing:
            self._pool.give_room(is_giving)

    async def persist_release(self) -> None:
        """On return no group released before the call is ever recovered again.

        Errors: DiskFull, StoreUnavailable, Closed.
        """
        self._check_open()
        if self._keeper.identity is None:
            return
        try:
            await self._persist_release(self._released_through)
        except OSError as error:
            raise self._typed(error, "stating the release in the write-ahead log") from error

    async def forget_tenures(self, tenures: frozenset[Tenure]) -> None:
        """On return the log names the tenures no more: their streams may be taken without this log.

        Their groups stay until they are released. Errors: DiskFull, StoreUnavailable.
        """

        def without(identity: WalIdentity | None) -> WalIdentity:
            assert identity is not None
            return replace(identity, tenures=identity.tenures - tenures)

        try:
            await self._keeper.change(without)
        except OSError as error:
            raise self._typed(error, "forgetting tenures in the write-ahead log") from error

    async def close(self) -> None:
        """Waits for groups under way; groups that wait for room fail with Closed.

        On return the release is durable, unless the disk fails, which is logged.
        """
        if self._is_closing:
            return
        self._is_closing = True
        self._pool.close()
        # Tasks are not cancelled, because threads that read and write must not outlive the files.
        await self._writer.idle()
        if self._reading is not None:
            await asyncio.wait([self._reading])
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._keeper.idle()
        if self._writer.tenure is not None:
            try:
                await self._persist_release(self._released_through)
            except OSError as error:
                log.warning("released groups will be recovered again: %s", error)
        await self._background.close()
        self._pool.close_files()
        await self._writer.close()

    async def _written(self, entries: Sequence[StreamEntry], known_failures: int) -> Written:
        """Each call waits until the one before has begun, also where that waits for a file."""
        async with self._turn:
            self._check_open()
            outcome = await self._begun(entries, known_failures)
            if outcome.done() and isinstance(answer := outcome.result(), NotWritten):
                file = await self._take_file(answer.size_bytes)
                outcome = await self._begun(entries, known_failures, file)
        written = await outcome
        assert isinstance(written, Written), "a file ends a stall"
        return written

    async def _begun(
        self, entries: Sequence[StreamEntry], known_failures: int, file: WalFile | None = None
    ) -> asyncio.Future[Written | NotWritten]:
        """The outcome of a group whose write has begun, or that is not written."""
        begun = asyncio.Event()
        released = self._released_through
        outcome = self._writer.write(entries, released, known_failures, file, begun)
        try:
            await begun.wait()
        except asyncio.CancelledError:
            outcome.cancel()
            raise
        return outcome

    async def _take_file(self, frame_bytes: int) -> WalFile:
        self._pool.nudge()
        try:
            return await self._pool.take(frame_bytes)
        except Closed:
            self._check_open()  # raises the bug, if one closed the pool
            raise
        except OSError as error:
            # Later groups must fail as well, to keep the order. The writer is stalled, so it does
            # not change the count meanwhile.
            self._writer.failures += 1
            self._known_failures = self._writer.failures
            raise self._typed(error, "making a file of the write-ahead log") from error

    async def _persist_release(self, through: int) -> None:
        def released(identity: WalIdentity | None) -> WalIdentity:
            assert identity is not None
            return replace(identity, released_through=max(through, identity.released_through))

        await self._keeper.change(released)

    async def _state_loss(self) -> None:
        """Records in the identity file that no group is missing behind the released ones."""
        try:
            await self._persist_release(self._released_through)
        except OSError as error:
            log.warning("the next start needs accept_data_loss again: %s", error)

    def _forget_earlier(self) -> None:
        is_due = (
            self.last_sequence > self._recovered_through
            and self._released_through >= self._recovered_through
            and len(self.tenures) > 1
        )
        if is_due and not self._is_forgetting:
            self._is_forgetting = True
            self._tasks.append(self._background.spawn(self._forget(), name="forget"))

    async def _forget(self) -> None:
        assert self._writer.tenure is not None
        own = frozenset({self._writer.tenure})

        def without_earlier(identity: WalIdentity | None) -> WalIdentity:
            assert identity is not None
            return replace(identity, tenures=own)

        try:
            await self._keeper.change(without_earlier)
        except OSError as error:
            log.warning("earlier tenures stay named in the write-ahead log: %s", error)
        finally:
            self._is_forgetting = False

    def _typed(self, error: OSError, doing: str) -> Unavailable:
        return typed_os_error(error, self._folder_name, doing, StoreUnavailable)

    def _check_open(self) -> None:
        if self._failure is not None:
            raise self._told_failure()
        if self._is_closing:
            raise Closed("the write-ahead log was closed")

    def _fail(self, error: BaseException) -> None:
        """A bug: every later call fails with it."""
        self._failure = error
        self._failed.set()
        self._pool.close()

    async def wait_failed(self) -> Internal:
        """Returns when background work has ended by a bug, with what later calls raise."""
        await self._failed.wait()
        return self._told_failure()

    def _told_failure(self) -> Internal:
        error = Internal("the write-ahead log failed")
        error.__cause__ = self._failure
        return error


def _damaged(folder: str, error: Corrupt) -> Corrupt:
    """The error, with what an operator can do about it."""
    return Corrupt(
        f"{error.message.partition('; restore')[0]} in the write-ahead log {folder}; acknowledged "
        "appends are missing. Restore the folder from a copy. Without one, keep what is there: "
        f"`streamlog wal show {folder}` lists what can be read; a start with "
        "--set engine.wal.accept_data_loss=true gives up what is missing, and of each stream that "
        "it belonged to what came after it",
        **error.fields,
    )


def _nothing() -> None:
    """`on_full` until the owner sets it."""


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
