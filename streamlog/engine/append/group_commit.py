"""wal=disk: while one group of appends syncs, the next one fills.

1. The oldest group is written and synced; then all of its appends are answered at once.
2. A small group waits a moment for those who have just been answered (`_gather`).
3. A failed write is repeated with the same group until it works, because the group's offsets are
   already handed out. Meanwhile new appends are refused with a retryable error.
4. A confirmed group goes to the uploader with its sequence in the WAL.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from streamlog.engine.append.group import Group, confirm, trace_ids
from streamlog.engine.config import AppendConfig
from streamlog.engine.metrics import EngineMetrics
from streamlog.engine.stream_core import ErrorFactory, StreamAppend
from streamlog.errors import (
    Closed,
    OutcomeUnknown,
    StoreUnavailable,
    StreamlogError,
    Unavailable,
)
from streamlog.format.wal.frame import TABLES_BYTES_MAX
from streamlog.runtime.clock import Clock
from streamlog.runtime.concurrency.backoff import Backoff
from streamlog.runtime.progress import Due
from streamlog.runtime.rand import Random
from streamlog.wal.log import WriteAheadLog

log = logging.getLogger(__name__)

GATHER_S = 0.0005
STILL_TURNS_MAX = 16
"""How long a small group waits for more appends at most: for so long in all, and for so many turns
of the loop in which none comes. An answered client's next request is there after 5 to 10."""
GATHER_BYTES_MAX = 1 << 20
"""A group of this size is worth a write of its own, beside which the next one fills."""


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

    def _begin(self, group: Group) -> None:
        group.opened_at = self._clock.monotonic()
        self._wake.set()

    def unconfirmed(self) -> Iterable[Group]:
        syncing = () if self._syncing is None else (self._syncing,)
        return list(itertools.chain(syncing, self._full, (self._open,)))

    def progress(self) -> Due | None:
        """What the group under way waits for."""
        if self._syncing is None:
            return None
        reason = "" if self.refusal is None else f": {self.refusal.message}"
        appends = len(self._syncing.items)
        return Due(self._written, f"a WAL write of {appends} appends{reason}")

    async def run(self) -> None:
        """Writes group after group; runs until cancelled."""
        while True:
            if not self._full and self._open.items:
                await self._gather()
            if self._full:
                group = self._full.popleft()
            elif self._open.items:
                group, self._open = self._open, Group()
            else:
                self._wake.clear()
                await self._wake.wait()
                continue
            self._syncing = group
            await self._write(group)
            self._syncing = None
            self._written += 1
            self._answer(group)
            self._answered_items = len(group.items)

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

    async def _write(self, group: Group) -> None:
        backoff: Backoff | None = None
        while True:
            # Appends to lost streams have failed already and are not written.
            entries = [item.entry for item in group.items if item.core.stop is None]
            if not entries:
                # An earlier try may have reached the WAL although it failed, and `open_stream`
                # waits until everything in the WAL is released.
                group.wal_sequence = self._wal.last_sequence
                break
            try:
                group.wal_sequence = await self._wal.append(entries)
            except Closed:
                raise
            except (Unavailable, OutcomeUnknown) as error:
                if backoff is None:
                    backoff = self._config.backoff(self._random)
                    log.warning(
                        "the WAL cannot be written; appends wait",
                        extra={"reason": str(error), "appends": len(entries)},
                    )
                self._metrics.failures.labels("wal").inc()
                self.refusal = error
                self._set_admission_error(_admission_error(error))
                await backoff.sleep()
            else:
                break
        if backoff is not None:
            # Also when all streams of the group were lost: only a later append shows whether the
            # WAL works again.
            log.info("appends are let in again", extra={"tries": backoff.tries})
            self.refusal = None
            self._set_admission_error(None)

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


def _admission_error(reason: StreamlogError) -> ErrorFactory:
    kind = type(reason) if isinstance(reason, Unavailable) else StoreUnavailable
    return lambda: kind(
        f"the write-ahead log cannot be written; nothing was stored, retry. {reason.message}",
        **reason.fields,
    )
