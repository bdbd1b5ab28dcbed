"""The common part of stores in one process; a backend adds reads and durable writes.

1. Writes go through `_submit`, one after another: staged, made durable, published, answered.
2. A published change is in the history, the watchers have it, and `_revision` has moved. It is
   published before its answer is sent, so that a read after the answer sees it.
3. A due lease ends before the next operation is served, at the latest a tick later.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TypeVar

from streamlog.errors import Closed, Internal, Invalid, OutcomeUnknown, Unavailable
from streamlog.kvstore.history import History
from streamlog.kvstore.interface import (
    Compare,
    Operation,
    RangeResult,
    StoredKeyValue,
    TxnResult,
    WatchBatch,
)
from streamlog.kvstore.settings import KVSettings
from streamlog.kvstore.transaction import Staging, check_txn, merge_over
from streamlog.kvstore.watch import Watcher, Watchers
from streamlog.runtime.clock import Clock
from streamlog.runtime.concurrency.background import Background

log = logging.getLogger(__name__)

T = TypeVar("T")

LEASE_TICK_S_MAX = 1.0
LEASE_TICK_S_MIN = 0.02
LEASE_TTL_MS_MAX = 10 * 365 * 24 * 3600 * 1000


class LocalStore(ABC):
    """The KVStore contract except persistence. One event loop only."""

    def __init__(self, clock: Clock, revision: int, settings: KVSettings, *, is_new: bool) -> None:
        self._clock = clock
        self._settings = settings
        self._history = History(
            revision,
            settings.history_bytes_max,
            settings.history_revisions_max,
            is_new=is_new,
        )
        self._watchers = Watchers(self._history)
        self._revision = revision
        self._next_deadline = float("inf")
        self._lease_tick: asyncio.Task[None] | None = None
        self._background: Background | None = None
        self._is_closed = False

    # a backend implements these

    @abstractmethod
    async def _submit(self, work: Callable[[Staging, float], T], size_bytes: int) -> T:
        """Ends due leases, then runs `work(staging, now)` and makes it durable; its result."""

    @abstractmethod
    async def _read_key(self, key: bytes) -> StoredKeyValue | None:
        """The key as of a published revision, which is no older than the call."""

    @abstractmethod
    async def _read_range(
        self, start: bytes, end: bytes, limit: int
    ) -> tuple[Sequence[StoredKeyValue], int]:
        """The first `limit` keys (0: all), and the published revision at which they were read."""

    @abstractmethod
    async def _close_backend(self) -> None: ...

    # the contract

    async def txn(
        self,
        compares: Sequence[Compare],
        then: Sequence[Operation],
        otherwise: Sequence[Operation] = (),
    ) -> TxnResult:
        size = check_txn(compares, then, otherwise)
        self._check_open()
        return await self._submit(lambda staging, now: staging.txn(compares, then, otherwise), size)

    async def get(self, key: bytes, *, revision: int | None = None) -> StoredKeyValue | None:
        if not key:
            raise Invalid("a key has at least one byte")
        await self._before_read()
        if revision is None:
            return await self._read_key(key)
        self._history.check_read(revision)
        now = await self._read_key(key)
        self._history.check_read(revision)
        return self._history.undo(revision, key, key + b"\0").get(key, now)

    async def range(
        self, start: bytes, end: bytes, *, limit: int = 0, revision: int | None = None
    ) -> RangeResult:
        if limit < 0:
            raise Invalid(f"limit {limit} is negative; 0 is none")
        await self._before_read()
        if revision is None:
            kvs, found_at = await self._read_range(start, end, limit + 1 if limit else 0)
            return _cut(kvs, found_at, limit)
        self._history.check_read(revision)
        # Undoing newer changes may remove keys, so as many more are read as keys have changed. Keys
        # may also change during the read; they are counted again after it.
        while True:
            spare = len(self._history.undo(revision, start, end))
            kvs, _ = await self._read_range(start, end, limit + 1 + spare if limit else 0)
            self._history.check_read(revision)
            changed = self._history.undo(revision, start, end)
            if not limit or len(changed) <= spare:
                return _cut(tuple(merge_over(kvs, changed)), revision, limit)

    def watch(self, start: bytes, end: bytes, *, from_revision: int) -> Watcher:
        self._check_open()
        return self._watchers.add(start, end, from_revision)

    async def revision(self) -> int:
        await self._before_read()
        return self._revision

    async def grant_lease(self, ttl_ms: int) -> int:
        if not 0 < ttl_ms <= LEASE_TTL_MS_MAX:
            raise Invalid(f"a lease lasts from 1 to {LEASE_TTL_MS_MAX} ms, not {ttl_ms}")
        self._check_open()
        return await self._submit(lambda staging, now: staging.grant(ttl_ms, now), 64)

    async def keep_alive(self, lease_id: int) -> None:
        self._check_open()
        await self._submit(lambda staging, now: staging.keep_alive(lease_id, now), 64)

    async def revoke_lease(self, lease_id: int) -> None:
        """Errors: NotFound once the lease has ended."""
        self._check_open()
        await self._submit(lambda staging, now: staging.revoke(lease_id), 64)

    async def expire(self) -> None:
        """Ends the leases that are due. Operations and a tick call it, callers need not."""
        self._check_open()
        await self._submit(lambda staging, now: None, 64)

    async def compact(self, revision: int) -> None:
        self._check_open()
        if revision > self._revision:
            raise Invalid(
                f"revision {revision} has not been reached; the store is at {self._revision}",
                revision=self._revision,
            )
        self._history.compact(revision)

    async def raise_revision(self, at_least: int) -> None:
        self._check_open()
        await self._submit(lambda staging, now: staging.raise_revision(at_least), 64)

    async def close(self) -> None:
        """Ends watches with Closed and waits for writes under way; a second call does nothing."""
        if self._is_closed:
            return
        self._is_closed = True
        self._watchers.fail(Closed("the key-value store was closed"))
        await self._close_backend()
        if self._background is not None:
            await self._background.close()

    # for backends

    def _check_open(self) -> None:
        if self._is_closed:
            raise Closed("the key-value store was closed")

    async def _before_read(self) -> None:
        self._check_open()
        if self._clock.monotonic() >= self._next_deadline:
            await self.expire()

    def _publish(self, batches: Sequence[WatchBatch], revision: int, next_deadline: float) -> None:
        for batch in batches:
            self._history.append(batch)
            self._watchers.publish(batch)
        self._history.revision = self._revision = revision
        self._next_deadline = next_deadline
        if next_deadline != float("inf"):
            self._start_lease_tick()

    def _tasks(self) -> Background:
        if self._background is None:
            self._background = Background("kvstore", self._on_failure)
        return self._background

    def _on_failure(self, error: BaseException) -> None:
        self._watchers.fail(Internal(f"the key-value store broke: {error!r}"))

    def _start_lease_tick(self) -> None:
        if (self._lease_tick is None or self._lease_tick.done()) and not self._is_closed:
            self._lease_tick = self._tasks().spawn(self._tick_leases(), name="leases")

    async def _tick_leases(self) -> None:
        """Ends due leases without an operation, so that watchers learn of it. Runs while there are
        leases.

        While the store refuses writes, each try waits twice as long as the last one. The first
        failure and the end of the failures are logged.
        """
        pause_s = LEASE_TICK_S_MIN
        while self._next_deadline != float("inf") and not self._is_closed:
            wait_s = self._next_deadline - self._clock.monotonic()
            await asyncio.sleep(min(max(wait_s, pause_s), LEASE_TICK_S_MAX))
            if self._is_closed:
                return
            if self._clock.monotonic() >= self._next_deadline:
                try:
                    await self.expire()
                except (Unavailable, OutcomeUnknown) as error:
                    if pause_s == LEASE_TICK_S_MIN:
                        log.warning("leases could not be ended", extra={"error": str(error)})
                    pause_s = min(2 * pause_s, LEASE_TICK_S_MAX)
                    continue
            # Those that were due have ended, whether here or by an operation.
            if pause_s > LEASE_TICK_S_MIN:
                log.info("leases are ended again")
                pause_s = LEASE_TICK_S_MIN


def _cut(kvs: Sequence[StoredKeyValue], revision: int, limit: int) -> RangeResult:
    more = bool(limit) and len(kvs) > limit
    return RangeResult(tuple(kvs[:limit] if more else kvs), revision, more)
