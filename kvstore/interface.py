"""The KVStore contract: etcd's, on every backend.

1. One global revision; a transaction that writes moves it by one, and its writes share it.
2. A transaction compares, then does one of two lists of operations, atomically and durably.
3. Reads are linearizable, or at an older revision that is still held.
4. A watch delivers every change from a revision on, in order, none twice.
5. Leases run on the injected clock. A lease's keys are deleted when it ends.
6. A failed call raises MetadataUnavailable if nothing happened, else OutcomeUnknown.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Sequence
from dataclasses import dataclass
from typing import Protocol

OPERATIONS_MAX = 128
"""Entries in each of a transaction's three lists, as in etcd."""
TXN_BYTES_MAX = 3 << 19
"""1.5 MiB: keys and values of one transaction."""


@dataclass(frozen=True, slots=True)
class StoredKeyValue:
    key: bytes
    value: bytes
    create_revision: int
    mod_revision: int
    lease_id: int = 0


@dataclass(frozen=True, slots=True)
class ValueIs:
    """Holds when the key's value is `value`; None: when the key is absent."""

    key: bytes
    value: bytes | None


@dataclass(frozen=True, slots=True)
class ValueBelow:
    """Holds when the key is there and its value comes before `value`, bytewise."""

    key: bytes
    value: bytes


@dataclass(frozen=True, slots=True)
class RevisionIs:
    """Holds when the key's mod_revision is `mod_revision`; 0: when the key is absent."""

    key: bytes
    mod_revision: int


Compare = ValueIs | ValueBelow | RevisionIs


@dataclass(frozen=True, slots=True)
class Put:
    key: bytes
    value: bytes
    lease_id: int = 0


@dataclass(frozen=True, slots=True)
class Delete:
    """Removes `key`, or with `end` every key in [key, end)."""

    key: bytes
    end: bytes | None = None


@dataclass(frozen=True, slots=True)
class Get:
    """Reads `key`, or with `end` every key in [key, end), as the transaction sees it."""

    key: bytes
    end: bytes | None = None


Operation = Put | Delete | Get


@dataclass(frozen=True, slots=True)
class TxnResult:
    """`revision` is the store's after the transaction.

    `responses` has one entry per operation of the branch taken: the keys that a Get found, a Delete
    removed or a Put replaced, in key order, possibly none.
    """

    succeeded: bool
    revision: int
    responses: tuple[tuple[StoredKeyValue, ...], ...]


@dataclass(frozen=True, slots=True)
class RangeResult:
    """The keys as of `revision`. `more`: the limit cut the range."""

    kvs: tuple[StoredKeyValue, ...]
    revision: int
    more: bool


@dataclass(frozen=True, slots=True)
class Change:
    """`kv` None: the key was deleted. `previous`: the key before the change."""

    key: bytes
    kv: StoredKeyValue | None
    previous: StoredKeyValue | None
    revision: int


@dataclass(frozen=True, slots=True)
class WatchBatch:
    """All changes of one revision; never split."""

    revision: int
    changes: tuple[Change, ...]


class Watch(Protocol):
    """An endless iterator over changes; one task at a time asks for the next."""

    def __aiter__(self) -> AsyncIterator[WatchBatch]: ...

    def __anext__(self) -> Awaitable[WatchBatch]: ...

    async def aclose(self) -> None:
        """Ends the watch, also for a task that waits for the next item (StopAsyncIteration)."""
        ...


class KVStore(Protocol):
    """After `close` every call, and every watch, fails with Closed."""

    async def txn(
        self,
        compares: Sequence[Compare],
        then: Sequence[Operation],
        otherwise: Sequence[Operation] = (),
    ) -> TxnResult:
        """Durable on return. A key may be written once in a branch.

        Errors: Invalid over the limits, NotFound for a put on a lease that has ended,
        MetadataUnavailable, DiskFull, Overloaded (with each of these nothing happened);
        OutcomeUnknown. Cancellation leaves the outcome unknown.
        """
        ...

    async def get(self, key: bytes, *, revision: int | None = None) -> StoredKeyValue | None:
        """Errors: RevisionCompacted, MetadataUnavailable."""
        ...

    async def range(
        self, start: bytes, end: bytes, *, limit: int = 0, revision: int | None = None
    ) -> RangeResult:
        """Keys in [start, end) by key; limit 0 is none. Errors as for get."""
        ...

    def watch(self, start: bytes, end: bytes, *, from_revision: int) -> Watch:
        """Changes to keys in [start, end) from from_revision (inclusive) on, without end.

        The watch is registered on return. Call `aclose` when no more items are needed.
        Errors: RevisionCompacted(oldest), MetadataUnavailable.
        """
        ...

    async def revision(self) -> int:
        """The current revision, linearizable."""
        ...

    async def grant_lease(self, ttl_ms: int) -> int: ...

    async def keep_alive(self, lease_id: int) -> None:
        """Errors: NotFound once the lease has ended."""
        ...

    async def revoke_lease(self, lease_id: int) -> None:
        """Errors: NotFound once the lease has ended."""
        ...

    async def compact(self, revision: int) -> None:
        """Lets the store forget older revisions; reads and changes at `revision` still work.

        Errors: Invalid for a revision to come.
        """
        ...

    async def raise_revision(self, at_least: int) -> None:
        """Makes the next revision greater than `at_least`, in a store that was lost and rebuilt."""
        ...

    async def close(self) -> None: ...


def prefix_end(prefix: bytes) -> bytes:
    """The end (exclusive) of the range of all keys that start with `prefix`."""
    trimmed = prefix.rstrip(b"\xff")
    if not trimmed:
        raise ValueError("no key sorts after every key with this prefix")
    return trimmed[:-1] + bytes([trimmed[-1] + 1])
