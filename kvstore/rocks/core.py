"""The durable state of the store: one META call carries out a group of queued operations.

    operations ── staged one after another ──> one synced write batch ──> applied to the lease table
                                                   │ failed
                                                   └─> reopen: the state record tells the outcome

1. `revision` and `leases` are those of the last write batch that is known to be durable.
2. A write is in doubt if reopening failed, too. Then nothing else is read or written. The next call
   reopens again, and publishes the batch if it took effect.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rocksdict import WriteBatch

from streamlog.errors import (
    DiskFull,
    Invalid,
    MetadataUnavailable,
    OutcomeUnknown,
    StreamlogError,
)
from streamlog.kvstore.interface import StoredKeyValue
from streamlog.kvstore.interface import WatchBatch as Changes
from streamlog.kvstore.lease import Lease, LeaseTable
from streamlog.kvstore.rocks import format as layout
from streamlog.kvstore.rocks.database import RangeCursor, RocksDatabase
from streamlog.kvstore.transaction import Staging

log = logging.getLogger(__name__)

Work = Callable[[Staging, float], Any]


@dataclass(frozen=True, slots=True)
class WriteGroup:
    """The effects of a group; `outcomes` has a result or an error for each operation.

    `failure` in place of outcomes: no operation took effect, or (OutcomeUnknown) this is unknown.
    """

    outcomes: Sequence[Any]
    failure: StreamlogError | None
    batches: Sequence[Changes]
    revision: int
    next_deadline: float


class RocksCore:
    """Blocking; called from one thread at a time."""

    def __init__(self, database: RocksDatabase) -> None:
        self.database = database
        self.leases = LeaseTable()
        self._state = layout.StoreState(1, 1, 0)
        self._in_doubt: tuple[Staging, layout.StoreState] | None = None

    @property
    def revision(self) -> int:
        return self._state.revision

    @property
    def is_new(self) -> bool:
        """Whether nothing was ever written."""
        return self._state.writes == 0

    def open(self, now: float) -> None:
        """Opens the database; every lease gets its full time again."""
        state = self.database.open()
        try:
            self._load_leases(state, now)
        except StreamlogError:
            self.database.close()
            raise
        self._state = state

    def _load_leases(self, state: layout.StoreState, now: float) -> None:
        self.leases = LeaseTable()
        leases: dict[int, Lease | None] = {
            lease_id: Lease(lease_id, ttl_ms, now + ttl_ms / 1000)
            for lease_id, ttl_ms in self.database.leases()
        }
        self.leases.apply(leases, state.next_lease_id, ())
        for lease_id, key in self.database.leased_keys():
            self.leases.attach(StoredKeyValue(key, b"", 0, 0, lease_id))

    def run(self, works: Sequence[Work], now: float) -> WriteGroup:
        """Carries out the operations in order; their writes are durable. Raises no typed errors."""
        published: Sequence[Changes] = ()
        try:
            if not self.database.is_open:
                published = self._recover(now)
            staging, outcomes = self._stage(works, now)
        except StreamlogError as error:
            return self._group((), error, published)
        if not staging.has_writes:
            self._apply(staging, self._state)
            return self._group(outcomes, None, published)
        state = layout.StoreState(staging.revision, staging.next_lease_id, self._state.writes + 1)
        try:
            self.database.write(_write_batch(staging, state))
        except StreamlogError as error:
            if not self._resolve_outcome(staging, state, error, now):
                return self._group((), self._failure(error), published)
        else:
            self._apply(staging, state)
        return self._group(outcomes, None, (*published, *staging.batches))

    def read(self, key: bytes) -> tuple[StoredKeyValue | None, int]:
        return self.database.get(key), self.revision

    def open_range(self, start: bytes, end: bytes) -> tuple[RangeCursor, int]:
        return self.database.cursor(start, end), self.revision

    def close(self) -> None:
        self.database.close()

    def _stage(self, works: Sequence[Work], now: float) -> tuple[Staging, Sequence[Any]]:
        staging = Staging(self.database, self.leases, self.revision)
        if now >= self.leases.next_deadline():
            staging.expire(now)
        outcomes: list[Any] = []
        for work in works:
            try:
                outcomes.append(work(staging, now))
            except Invalid as error:
                # Invalid comes before anything was staged. A failed read may come in the middle of
                # an operation, so it drops the whole group.
                outcomes.append(error)
        return staging, outcomes

    def _apply(self, staging: Staging, state: layout.StoreState) -> None:
        self.leases.apply(staging.lease_effects, staging.next_lease_id, staging.batches)
        self._state = state

    def _group(
        self, outcomes: Sequence[Any], failure: StreamlogError | None, batches: Sequence[Changes]
    ) -> WriteGroup:
        return WriteGroup(outcomes, failure, batches, self.revision, self.leases.next_deadline())

    # after a failed write

    def _resolve_outcome(
        self, staging: Staging, state: layout.StoreState, error: StreamlogError, now: float
    ) -> bool:
        """Whether the failed write took effect. If that is unknown, the write stays in doubt."""
        log.error("a metadata write failed; reopening RocksDB", extra={"error": str(error)})
        self._in_doubt = (staging, state)
        try:
            self.database.close()
            self._recover(now)
            return self._state == state
        except StreamlogError as reopening:
            log.error("reopening RocksDB failed", extra={"error": str(reopening)})
            return False

    def _recover(self, now: float) -> Sequence[Changes]:
        """Reopens the database; the changes of the write in doubt, if it took effect."""
        before = self._state
        self.open(now)
        if self._in_doubt is not None and self._state == self._in_doubt[1]:
            batches = self._in_doubt[0].batches
            self._in_doubt = None
            return batches
        if self._state != before:
            reopened, self._state = self._state, before
            self.database.close()
            raise MetadataUnavailable(
                f"RocksDB came back at revision {reopened.revision} after a failed write, neither "
                "before nor after it; stop the process and check the disk"
            )
        self._in_doubt = None
        return ()

    def _failure(self, error: StreamlogError) -> StreamlogError:
        if self._in_doubt is not None:
            return OutcomeUnknown(
                f"{error.message} (whether it took effect shows when the disk works again)"
            )
        if isinstance(error, DiskFull):
            return error
        return MetadataUnavailable(f"{error.message} (nothing happened)")


def _write_batch(staging: Staging, state: layout.StoreState) -> WriteBatch:
    batch = WriteBatch(raw_mode=True)
    for changes in staging.batches:
        for change in changes.changes:
            if change.previous is not None and change.previous.lease_id:
                batch.delete(layout.leased_key(change.previous.lease_id, change.key))
            if change.kv is not None and change.kv.lease_id:
                batch.put(layout.leased_key(change.kv.lease_id, change.key), layout.LEASED_MARK)
    for key, kv in staging.effects.items():
        if kv is None:
            batch.delete(layout.DATA_PREFIX + key)
        else:
            batch.put(layout.DATA_PREFIX + key, layout.encode_kv(kv))
    for lease_id, lease in staging.lease_effects.items():
        if lease is None:
            batch.delete(layout.lease_key(lease_id))
        else:
            batch.put(layout.lease_key(lease_id), layout.encode_lease(lease.ttl_ms))
    batch.put(layout.STATE_KEY, layout.encode_state(state))
    return batch
