"""wal=disk: while one group of appends syncs, the next one fills.

1. The oldest group is written and synced; then all of its appends are answered at once.
2. A small group waits a moment for those who have just been answered (`_gather`).
3. Where a sync takes long, the next groups are written beside it, spread over its time (RFC 18).
   They are answered in their order.
4. A failed write is repeated with the same group until it works, because the group's offsets are
   already handed out. Those that were written behind it follow it again. Meanwhile new appends are
   refused with a retryable error.
5. A confirmed group goes to the uploader with its sequence in the WAL.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from streamlog.engine.append.group import Group, confirm, trace_ids
from streamlog.engine.config import AppendConfig
from streamlog.engine.metrics import EngineMetrics
from streamlog.engine.stream_core import ErrorFactory, StreamAppend
from streamlog.errors import (
    Closed,
    Internal,
    OutcomeUnknown,
    StoreUnavailable,
    StreamlogError,
    Unavailable,
)
from streamlog.format.entry import StreamEntry
from streamlog.format.wal.frame import TABLES_BYTES_MAX
from streamlog.runtime.clock import Clock
from streamlog.runtime.concurrency.backoff import Backoff
from streamlog.runtime.progress import Due
from streamlog.runtime.rand import Random
from streamlog.wal.log import WriteAheadLog
from streamlog.wal.writer import WRITES_MAX

log = logging.getLogger(__name__)

GATHER_S = 0.0005
STILL_TURNS_MAX = 16
"""How long a small group waits for more appends at most: for so long in all, and for so many turns
of the loop in which none comes. An answered client's next request is there after 5 to 10."""
GATHER_BYTES_MAX = 1 << 20
"""A group of this size is worth a write of its own, beside which the next one fills."""
SLOW_SYNC_S = 0.001
"""Where a sync takes less, groups beside each other would be half as large for nothing."""
DISK_BYTES_PER_S = 1e9
"""What a disk writes; the rest of the time that a group takes is its sync."""
SYNC_S_MAX = 0.25
"""What takes longer is no sync, but a wait for room or for a disk that hangs."""
SYNC_SHARE = 8
"""Of a sync that took longer than the least of late, the part by which that grows."""


class _Begun(NamedTuple):
    """A group whose write began beside others, and when."""

    group: Group
    task: asyncio.Task[int]
    at: float


class GroupCommit:
    """The sink of sequenced appends with wal=disk."""

    def __init__(
        self,
        config: AppendConfig,
        wal: WriteAheadLog,
        items_max: int,
        confirmed: Callable[[Group], None],
        set_admission_error: Callable[[ErrorFactory | None], None],
        clock: Clock,
        random: Random,
        metrics: EngineMetrics,
    ) -> None:
        self._config = config
        self._wal = wal
        # A group may exceed its bound by one batch, and still has to fit into the WAL.
        self._group_bytes_max = min(config.group_bytes_max, wal.group_bytes_max // 4)
        # Its tables take at most an eighth, even if all appends are without payload.
        self._items_max = max(1, min(items_max, wal.group_bytes_max // 8 // TABLES_BYTES_MAX))
        self._confirmed = confirmed
        self._set_admission_error = set_admission_error
        self._clock = clock
        self._random = random
        self._metrics = metrics
        self._syncing: Group | None = None
        self._behind: deque[_Begun] = deque()
        """What is written beside `_syncing`, in their order."""
        self._timer: asyncio.TimerHandle | None = None
        self._has_ended = False
        self._known_failures = 0
        """Of the WAL, when a group was told of one last."""
        self._began_at = 0.0
        """When the newest group under way was handed over."""
        self._sync_s = 0.0
        """What a sync takes at least, of late."""
        self._full: deque[Group] = deque()
        self._open = Group()
        self._wake = asyncio.Event()
        self._written = 0
        self._answered_items = 0
        """Appends of the last group that became durable."""
        self.refusal: StreamlogError | None = None
        """The last write's error; None if it succeeded."""

    def add(self, append: StreamAppend) -> None:
        group = self._open
        if not group.items:
            self._begin(group)
        group.items.append(append)
        if len(group.items) == 1:
            self._look_later()
        group.size_bytes += append.size_bytes
        if group.size_bytes >= self._group_bytes_max or len(group.items) >= self._items_max:
            self._full.append(group)
            self._open = Group()

    def add_run(self, appends: Sequence[StreamAppend], size_bytes: int) -> None:
        group = self._open
        filled = group.size_bytes + size_bytes
        count = len(group.items) + len(appends)
        if filled >= self._group_bytes_max or count >= self._items_max:
            for append in appends:
                self.add(append)
            return
        if not group.items:
            self._begin(group)
        group.items += appends
        group.size_bytes = filled
        if len(group.items) == len(appends):
            self._look_later()

    def _begin(self, group: Group) -> None:
        group.opened_at = self._clock.monotonic()
        self._wake.set()

    def unconfirmed(self) -> Iterable[Group]:
        syncing = () if self._syncing is None else (self._syncing,)
        behind = (begun.group for begun in self._behind)
        return list(itertools.chain(syncing, behind, self._full, (self._open,)))

    def progress(self) -> Due | None:
        """What the group under way waits for."""
        if self._syncing is None:
            return None
        reason = "" if self.refusal is None else f": {self.refusal.message}"
        appends = len(self._syncing.items)
        return Due(self._written, f"a WAL write of {appends} appends{reason}")

    async def run(self) -> None:
        """Writes group after group; runs until cancelled."""
        try:
            while True:
                if self._behind:
                    begun = self._behind.popleft()
                    await self._end(begun.group, begun)
                    continue
                if not self._full and self._open.items:
                    await self._gather()
                if self._full or self._open.items:
                    await self._end(self._next(), None)
                else:
                    self._wake.clear()
                    await self._wake.wait()
        finally:
            self._has_ended = True
            if self._timer is not None:
                self._timer.cancel()
            for begun in self._behind:
                begun.task.cancel()
                begun.task.add_done_callback(_heard)

    def _next(self) -> Group:
        if self._full:
            return self._full.popleft()
        group, self._open = self._open, Group()
        return group

    async def _end(self, group: Group, begun: _Begun | None) -> None:
        """Has the oldest group written, or waits for its write that has begun, and answers it."""
        self._syncing = group
        if begun is None:
            began_at = self._began_at = self._clock.monotonic()
        else:
            began_at = begun.at
        self._look_later()
        await self._write(group, None if begun is None else begun.task)
        self._syncing = None
        self._written += 1
        took = self._clock.monotonic() - began_at - group.size_bytes / DISK_BYTES_PER_S
        took = min(took, SYNC_S_MAX)
        self._sync_s = min(took, self._sync_s + (took - self._sync_s) / SYNC_SHARE)
        self._answer(group)
        self._answered_items = len(group.items)

    def _look_later(self) -> None:
        """Has the next group written beside those under way, when it is time."""
        if self._timer is None and self._may_write_beside():
            wait_s = self._began_at + self._sync_s / WRITES_MAX - self._clock.monotonic()
            self._timer = asyncio.get_running_loop().call_later(max(0.0, wait_s), self._look)

    def _look(self) -> None:
        self._timer = None
        if not self._may_write_beside():
            return
        now = self._clock.monotonic()
        if now >= self._began_at + self._sync_s / WRITES_MAX:
            self._began_at = now
            group = self._full[0] if self._full else self._open
            # Without any, all of its streams are lost so far, and more may come into it.
            if entries := _entries(group):
                # What the WAL has told by now: a failure that nobody has heard of yet is this
                # group's, too.
                write = self._wal.append(entries, self._known_failures)
                self._behind.append(_Begun(group, asyncio.ensure_future(write), now))
                self._next()
        self._look_later()

    def _may_write_beside(self) -> bool:
        """Whether a group waits that may be written although others are under way."""
        return (
            self._syncing is not None
            and not self._has_ended
            and self._sync_s >= SLOW_SYNC_S
            and self.refusal is None
            and len(self._behind) + 1 < WRITES_MAX
            and bool(self._full or self._open.items)
        )

    async def _gather(self) -> None:
        """Lets the open group grow to the size of the one that was answered last.

        Clients with several requests unanswered send again when they have their answers. Were it
        written at once, the open group would hold what came during the last write, the next one
        what the answers brought, and so on: each request would wait for two writes, of half the
        size. A group that is as large as the last one, and so a lone caller's, does not wait.
        """
        until, still = self._clock.monotonic() + GATHER_S, 0
        while (
            not self._full
            and len(self._open.items) < self._answered_items
            and self._open.size_bytes < GATHER_BYTES_MAX
            and still < STILL_TURNS_MAX
            and self._clock.monotonic() < until
        ):
            count = len(self._open.items)
            await asyncio.sleep(0)
            still = still + 1 if len(self._open.items) == count else 0

    async def _write(self, group: Group, begun: asyncio.Task[int] | None) -> None:
        backoff: Backoff | None = None
        while True:
            try:
                if begun is not None:
                    group.wal_sequence = await begun
                elif entries := _entries(group):
                    group.wal_sequence = await self._wal.append(entries, self._known_failures)
                else:
                    # An earlier try may have reached the WAL although it failed, and `open_stream`
                    # waits until everything in the WAL is released.
                    group.wal_sequence = self._wal.last_sequence
            except Closed:
                raise
            except (Unavailable, OutcomeUnknown) as error:
                begun = None
                self._known_failures = self._wal.failure_count
                if backoff is None:
                    backoff = self._config.backoff(self._random)
                    log.warning(
                        "the WAL cannot be written; appends wait",
                        extra={"reason": str(error), "appends": len(group.items)},
                    )
                self._metrics.failures.labels("wal").inc()
                self.refusal = error
                self._set_admission_error(_admission_error(error))
                await self._take_back()
                await backoff.sleep()
            else:
                break
        if backoff is not None:
            # Also when all streams of the group were lost: only a later append shows whether the
            # WAL works again.
            log.info("appends are let in again", extra={"tries": backoff.tries})
            self.refusal = None
            self._set_admission_error(None)

    async def _take_back(self) -> None:
        """Groups that were written behind one that failed have failed with it, and wait again.

        Errors: Closed, Internal.
        """
        if self._behind:
            await asyncio.wait([begun.task for begun in self._behind])
        while self._behind:
            group, task, _ = self._behind[-1]
            error = task.exception()
            if error is None:
                raise Internal("a group was written behind one that could not be written")
            if isinstance(error, Closed) or not isinstance(error, (Unavailable, OutcomeUnknown)):
                raise error
            self._behind.pop()
            self._full.appendleft(group)

    def _answer(self, group: Group) -> None:
        confirm(group)
        metrics = self._metrics
        metrics.appends.inc(len(group.items))
        metrics.append_bytes.inc(group.size_bytes)
        metrics.group_bytes.observe(group.size_bytes)
        metrics.ack_seconds.observe(self._clock.monotonic() - group.opened_at)
        if log.isEnabledFor(logging.DEBUG):
            log.debug(
                "appends are durable in the WAL",
                extra={
                    "sequence": group.wal_sequence,
                    "appends": len(group.items),
                    "size_bytes": group.size_bytes,
                    "trace_ids": trace_ids(group.items),
                },
            )
        self._confirmed(group)


def _entries(group: Group) -> list[StreamEntry]:
    """Appends to lost streams have failed already and are not written."""
    return [item.entry for item in group.items if item.core.stop is None]


def _heard(task: asyncio.Task[int]) -> None:
    """Whoever ended `run` was told why; these fail for the same reason."""
    if not task.cancelled():
        task.exception()


def _admission_error(reason: StreamlogError) -> ErrorFactory:
    kind = type(reason) if isinstance(reason, Unavailable) else StoreUnavailable
    return lambda: kind(
        f"the write-ahead log cannot be written; nothing was stored, retry. {reason.message}",
        **reason.fields,
    )
