"""The effects of transactions and leases, computed without I/O.

A `Staging` computes over a base that does not change meanwhile. Operations run one after another,
and each sees the effects of those before it. Then the backend makes `effects`, `lease_effects` and
`revision` durable at once, or drops the staging as if no operation had been asked for.

1. An operation checks everything before it stages anything, so that an error leaves no trace.
2. Each operation that puts or removes a key moves the revision by one.
3. When a lease ends, its keys are removed in one revision.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

from streamlog.errors import Invalid, MessageTooLarge, NotFound
from streamlog.kvstore.interface import (
    OPERATIONS_MAX,
    TXN_BYTES_MAX,
    Change,
    Compare,
    Get,
    Operation,
    Put,
    RevisionIs,
    StoredKeyValue,
    TxnResult,
    ValueBelow,
    ValueIs,
    WatchBatch,
)
from streamlog.kvstore.lease import Lease, LeaseTable


class Base(Protocol):
    """The durable keys."""

    def get(self, key: bytes) -> StoredKeyValue | None: ...

    def scan(self, start: bytes, end: bytes) -> Iterable[StoredKeyValue]:
        """Keys in [start, end), by key."""
        ...


def txn_size(
    compares: Sequence[Compare], then: Sequence[Operation], otherwise: Sequence[Operation]
) -> int:
    """The bytes of all keys and values."""
    size = 0
    for compare in compares:
        size += len(compare.key)
        if not isinstance(compare, RevisionIs) and compare.value is not None:
            size += len(compare.value)
    for operation in (*then, *otherwise):
        size += len(operation.key)
        if isinstance(operation, Put):
            size += len(operation.value)
        elif operation.end is not None:
            size += len(operation.end)
    return size


def check_txn(
    compares: Sequence[Compare], then: Sequence[Operation], otherwise: Sequence[Operation]
) -> int:
    """The transaction's size in bytes; Invalid where a limit or rule is broken."""
    for name, entries in (("compares", compares), ("then", then), ("otherwise", otherwise)):
        if len(entries) > OPERATIONS_MAX:
            raise Invalid(
                f"a transaction has at most {OPERATIONS_MAX} {name}, not {len(entries)}; split it",
                count=len(entries),
                count_max=OPERATIONS_MAX,
            )
    size = txn_size(compares, then, otherwise)
    if size > TXN_BYTES_MAX:
        raise MessageTooLarge(
            f"a transaction has at most {TXN_BYTES_MAX} bytes of keys and values, not {size}; "
            "split it",
            size_bytes=size,
            max_bytes=TXN_BYTES_MAX,
        )
    if any(not compare.key for compare in compares):
        raise Invalid("a key has at least one byte; a compare has none")
    for branch in (then, otherwise):
        _check_branch(branch)
    return size


def _check_branch(branch: Sequence[Operation]) -> None:
    written: list[tuple[bytes, bytes]] = []
    for operation in branch:
        end = None if isinstance(operation, Put) else operation.end
        if not operation.key and end is None:
            raise Invalid("a key has at least one byte; an operation has none")
        if not isinstance(operation, Get):
            written.append((operation.key, operation.key + b"\0" if end is None else end))
    written = sorted(span for span in written if span[0] < span[1])
    for (_, end), (start, _) in pairwise(written):
        if start < end:
            raise Invalid(f"key {start!r} is written twice in one branch; write it once")


class Staging:
    """Computes operations over `base` and `leases`, and changes neither."""

    def __init__(self, base: Base, leases: LeaseTable, revision: int) -> None:
        self._base = base
        self._leases = leases
        self._base_revision = revision
        self.revision = revision
        self.next_lease_id = leases.next_id
        self.effects: dict[bytes, StoredKeyValue | None] = {}
        """Key → its new value; None: removed."""
        self.lease_effects: dict[int, Lease | None] = {}
        self.batches: list[WatchBatch] = []

    @property
    def has_writes(self) -> bool:
        """Whether something must become durable; a renewed lease need not."""
        return self.revision != self._base_revision or any(
            lease is None or self._leases.get(lease_id) is None
            for lease_id, lease in self.lease_effects.items()
        )

    # transactions

    def txn(
        self,
        compares: Sequence[Compare],
        then: Sequence[Operation],
        otherwise: Sequence[Operation] = (),
    ) -> TxnResult:
        """Errors: NotFound for a put on a lease that has ended (nothing is staged)."""
        succeeded = all(self._holds(compare) for compare in compares)
        branch = then if succeeded else otherwise
        for operation in branch:
            if isinstance(operation, Put) and operation.lease_id:
                self._lease(operation.lease_id)
        revision = self.revision + 1
        changes: list[Change] = []
        responses: list[tuple[StoredKeyValue, ...]] = []
        for operation in branch:
            if isinstance(operation, Get):
                responses.append(tuple(self._read(operation.key, operation.end)))
            elif isinstance(operation, Put):
                responses.append(self._put(operation, revision, changes))
            else:
                removed = tuple(self._read(operation.key, operation.end))
                self._remove(removed, revision, changes)
                responses.append(removed)
        self._seal(revision, changes)
        return TxnResult(succeeded, self.revision, tuple(responses))

    def _holds(self, compare: Compare) -> bool:
        kv = self._get(compare.key)
        if isinstance(compare, ValueIs):
            return (None if kv is None else kv.value) == compare.value
        if isinstance(compare, ValueBelow):
            return kv is not None and kv.value < compare.value
        return (0 if kv is None else kv.mod_revision) == compare.mod_revision

    def _put(self, put: Put, revision: int, changes: list[Change]) -> tuple[StoredKeyValue, ...]:
        previous = self._get(put.key)
        created = revision if previous is None else previous.create_revision
        kv = StoredKeyValue(put.key, put.value, created, revision, put.lease_id)
        self.effects[put.key] = kv
        changes.append(Change(put.key, kv, previous, revision))
        return () if previous is None else (previous,)

    def _remove(self, kvs: Iterable[StoredKeyValue], revision: int, changes: list[Change]) -> None:
        for kv in kvs:
            self.effects[kv.key] = None
            changes.append(Change(kv.key, None, kv, revision))

    def _seal(self, revision: int, changes: list[Change]) -> None:
        if changes:
            self.revision = revision
            self.batches.append(WatchBatch(revision, tuple(changes)))

    # reads that see the staged effects

    def _get(self, key: bytes) -> StoredKeyValue | None:
        if key in self.effects:
            return self.effects[key]
        return self._base.get(key)

    def _read(self, key: bytes, end: bytes | None) -> Iterator[StoredKeyValue]:
        if end is None:
            kv = self._get(key)
            return iter(() if kv is None else (kv,))
        staged = {k: kv for k, kv in self.effects.items() if key <= k < end}
        return merge_over(self._base.scan(key, end), staged)

    # leases

    def _lease(self, lease_id: int) -> Lease:
        if lease_id in self.lease_effects:
            lease = self.lease_effects[lease_id]
        else:
            lease = self._leases.get(lease_id)
        if lease is None:
            raise NotFound(f"lease {lease_id} has ended; grant a new one", lease_id=lease_id)
        return lease

    def grant(self, ttl_ms: int, now: float) -> int:
        lease_id = self.next_lease_id
        self.next_lease_id += 1
        self.lease_effects[lease_id] = Lease(lease_id, ttl_ms, now + ttl_ms / 1000)
        return lease_id

    def keep_alive(self, lease_id: int, now: float) -> None:
        lease = self._lease(lease_id)
        self.lease_effects[lease_id] = Lease(lease_id, lease.ttl_ms, now + lease.ttl_ms / 1000)

    def revoke(self, lease_id: int) -> None:
        self._lease(lease_id)
        keys = {key for key in self._leases.keys_of(lease_id) if key not in self.effects}
        keys |= {k for k, kv in self.effects.items() if kv is not None and kv.lease_id == lease_id}
        changes: list[Change] = []
        revision = self.revision + 1
        kvs = (self._get(key) for key in sorted(keys))
        self._remove((kv for kv in kvs if kv is not None), revision, changes)
        self._seal(revision, changes)
        self.lease_effects[lease_id] = None

    def expire(self, now: float) -> None:
        """Ends the leases that are due, oldest deadline first."""
        for lease in self._leases.due(now):
            self.revoke(lease.lease_id)

    def raise_revision(self, at_least: int) -> None:
        self.revision = max(self.revision, at_least)


@dataclass(slots=True)
class _Pending:
    kvs: list[tuple[bytes, StoredKeyValue | None]]
    at: int = 0


def merge_over(
    base: Iterable[StoredKeyValue], changed: dict[bytes, StoredKeyValue | None]
) -> Iterator[StoredKeyValue]:
    """`base` by key, with the keys of `changed` replaced by their new values."""
    pending = _Pending(sorted(changed.items(), key=lambda item: item[0]))
    for kv in base:
        yield from _before(pending, kv.key)
        if kv.key not in changed:
            yield kv
    yield from _before(pending, None)


def _before(pending: _Pending, key: bytes | None) -> Iterator[StoredKeyValue]:
    while pending.at < len(pending.kvs) and (key is None or pending.kvs[pending.at][0] < key):
        kv = pending.kvs[pending.at][1]
        pending.at += 1
        if kv is not None:
            yield kv
