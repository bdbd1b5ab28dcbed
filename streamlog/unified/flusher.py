"""Carries appends to the disk: one group at a time, which all that came meanwhile shares.

1. Steps are taken in the order of `add`; one task of the log carries out all that wait, up to
   GROUP_BYTES, in one call off the loop, and then confirms their appends. A thread in C makes
   appends where it can (RFC 17), the lane's threads all else.
2. With `flush.messages` and `flush.ms` at Kafka's defaults a group ends with a sync: an append is
   durable before it is acknowledged. A topic that sets one of them gets what Kafka does: an append
   is acknowledged out of the page cache, and synced by these limits.
3. The first error ends the log: its appends fail, and nothing is written any more.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from streamlog.errors import Internal, StoreUnavailable, StreamlogError
from streamlog.log.api.topic_config import INT64_MAX, TopicConfig
from streamlog.log.partition.lifecycle import LogLifecycle
from streamlog.runtime.clock import Clock
from streamlog.runtime.concurrency.background import Background
from streamlog.runtime.concurrency.run_ack import RunAck
from streamlog.runtime.disk.folders import typed_os_error
from streamlog.runtime.offload import Lane, Offload, writers_of
from streamlog.unified.disk.folder_writes import FolderWrites
from streamlog.unified.disk.log_files import GROUP_BYTES, LogFiles, Step


class _Waiting(NamedTuple):
    step: Step
    size_bytes: int
    records: int
    ack: RunAck | None
    done: Callable[[], None] | None


class Flusher:
    """`files` belongs to it until the background is closed."""

    def __init__(
        self,
        name: str,
        files: LogFiles,
        offload: Offload,
        clock: Clock,
        background: Background,
        lifecycle: LogLifecycle,
        config: TopicConfig,
        writes: FolderWrites,
    ) -> None:
        """`writes`: of the folder, which hears of each."""
        self.config = config
        self._writes = writes
        self._name = name
        self._files = files
        self._offload = offload
        self._threads = writers_of(offload, Lane.FILES)
        self._clock = clock
        self._background = background
        self._lifecycle = lifecycle
        self._queue: deque[_Waiting] = deque()
        self._is_following = False
        self._idle = asyncio.Event()
        self._idle.set()
        self.pending_bytes = 0
        """Bytes that are not carried out yet."""
        self._room: deque[asyncio.Future[None]] = deque()
        self._added = self._carried_out = 0
        """Steps so far."""
        self._behind: deque[tuple[int, asyncio.Future[None]]] = deque()
        """Those who wait until so many steps are carried out."""
        self._unsynced_records = 0
        self._synced_at = clock.monotonic()
        self._later: asyncio.Task[None] | None = None
        self._is_sync_wanted = False

    def add(
        self,
        step: Step,
        *,
        size_bytes: int = 0,
        records: int = 0,
        ack: RunAck | None = None,
        done: Callable[[], None] | None = None,
    ) -> None:
        """`ack` is confirmed, for one batch, and `done` called when the step is carried out."""
        self._queue.append(_Waiting(step, size_bytes, records, ack, done))
        self._added += 1
        self.pending_bytes += size_bytes
        self._start()

    def _start(self) -> None:
        """One task carries out all that waits: two would bring groups out of order."""
        if not self._is_following:
            self._is_following = True
            self._idle.clear()
            self._background.spawn(self._follow(), name="flush")

    async def drained(self) -> None:
        """Returns when nothing waits, or the log has failed: while appends come without a pause it
        does not."""
        await self._idle.wait()

    async def carried_out(self) -> None:
        """Returns when what was added by now is carried out, or the log has ended."""
        if self._is_following:
            waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._behind.append((self._added, waiting))
            await waiting

    async def room(self) -> None:
        """Returns when a group has been carried out, or the log has ended."""
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._room.append(waiting)
        await waiting

    def give_up(self) -> None:
        """The log has ended: nobody waits any more, for room or for what is to be carried out."""
        self._idle.set()
        self._release()
        self._tell_carried_out(self._added)

    def _tell_carried_out(self, steps: int) -> None:
        while self._behind and self._behind[0][0] <= steps:
            _, waiting = self._behind.popleft()
            if not waiting.done():
                waiting.set_result(None)

    def _release(self) -> None:
        """Wakes those who wait for room."""
        while self._room:
            waiting = self._room.popleft()
            if not waiting.done():
                waiting.set_result(None)

    @property
    def is_lazy(self) -> bool:
        """Whether appends are acknowledged before they are durable."""
        return self.config.flush_messages != INT64_MAX or self.config.flush_ms != INT64_MAX

    async def _follow(self) -> None:
        try:
            while (self._queue or self._is_sync_wanted) and self._lifecycle.failure is None:
                await self._carry_out(self._take())
        finally:
            self._is_following = False
            self.give_up()

    def _take(self) -> list[_Waiting]:
        """Nothing, where only a sync is wanted."""
        group: list[_Waiting] = []
        size = 0
        while self._queue and (not group or size + self._queue[0].size_bytes <= GROUP_BYTES):
            group.append(self._queue.popleft())
            size += group[-1].size_bytes
        return group

    async def _carry_out(self, group: list[_Waiting]) -> None:
        sync = self._is_sync_due(sum(one.records for one in group))
        try:
            await self._run([one.step for one in group], sync=sync)
        except StreamlogError as error:
            self._fail(error, group)
            return
        except Exception as error:
            told = Internal(f"{self._name}: its writes have ended by a bug: {error!r}")
            told.has_no_side_effects = False
            told.__cause__ = error
            self._fail(told, group)
            raise
        self.pending_bytes -= sum(one.size_bytes for one in group)
        for one in group:
            if one.done is not None:
                one.done()
            if one.ack is not None:
                one.ack.confirm(1)
        self._release()
        self._carried_out += len(group)
        self._tell_carried_out(self._carried_out)

    def _fail(self, error: StreamlogError, group: list[_Waiting]) -> None:
        for one in (*group, *self._queue):
            if one.ack is not None:
                one.ack.fail(lambda: error)
        self._lifecycle.fail(error)

    async def _run(self, steps: list[Step], *, sync: bool) -> None:
        with self._writes.of(f"a write of {len(steps)} steps to {self._name}", self._name):
            try:
                if not await self._is_appended(steps, sync=sync):
                    await self._offload.run(
                        Lane.FILES, partial(self._files.carry_out, steps, sync=sync)
                    )
            except OSError as error:
                raise self._typed(error) from error

    async def _is_appended(self, steps: list[Step], *, sync: bool) -> bool:
        """By a thread in C; False: the lane's have to do it. Errors: OSError."""
        if self._threads is None:
            return False
        ended: asyncio.Future[OSError | None] = asyncio.get_running_loop().create_future()

        def done(error: OSError | None) -> None:
            if not ended.done():
                ended.set_result(error)

        if not self._files.start(steps, self._threads, done, sync=sync):
            return False
        error = await ended
        if error is not None:
            await self._offload.run(Lane.FILES, self._files.rescue)
            raise error
        return True

    def _typed(self, error: OSError) -> StreamlogError:
        typed = typed_os_error(error, self._name, "writing the log", StoreUnavailable)
        typed.has_no_side_effects = False
        return typed

    # Lazy syncs

    def _is_sync_due(self, records: int) -> bool:
        if not self.is_lazy:
            self._unsynced_records, self._is_sync_wanted = 0, False
            return True
        self._unsynced_records += records
        now, limit_s = self._clock.monotonic(), self.config.flush_ms / 1000
        is_due = self._is_sync_wanted or now - self._synced_at >= limit_s
        self._is_sync_wanted = False
        if is_due or self._unsynced_records >= self.config.flush_messages:
            self._unsynced_records, self._synced_at = 0, now
            return True
        if self.config.flush_ms != INT64_MAX and (self._later is None or self._later.done()):
            self._later = self._background.spawn(self._sync_later(limit_s), name="sync")
        return False

    async def _sync_later(self, limit_s: float) -> None:
        await asyncio.sleep(limit_s)
        if self._lifecycle.is_open and self._unsynced_records:
            self._is_sync_wanted = True
            self._start()
