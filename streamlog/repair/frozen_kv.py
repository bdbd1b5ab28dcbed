"""FrozenKV: keys of one revision as a read-only KV store."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence

from streamlog.errors import Invalid
from streamlog.kvstore.interface import (
    Compare,
    Operation,
    RangeResult,
    StoredKeyValue,
    TxnResult,
    Watch,
)


class FrozenKV:
    """A KVStore at one revision; every call that would change it raises Invalid."""

    def __init__(self, kvs: Iterable[StoredKeyValue], revision: int) -> None:
        self._kvs = sorted(kvs, key=lambda kv: kv.key)
        self._keys = [kv.key for kv in self._kvs]
        self._revision = revision

    async def get(self, key: bytes, *, revision: int | None = None) -> StoredKeyValue | None:
        index = bisect_left(self._keys, key)
        if index == len(self._keys) or self._keys[index] != key:
            return None
        return self._kvs[index]

    async def range(
        self, start: bytes, end: bytes, *, limit: int = 0, revision: int | None = None
    ) -> RangeResult:
        low, high = bisect_left(self._keys, start), bisect_left(self._keys, end)
        last = min(high, low + limit) if limit else high
        return RangeResult(tuple(self._kvs[low:last]), self._revision, last < high)

    async def revision(self) -> int:
        return self._revision

    async def txn(
        self,
        compares: Sequence[Compare],
        then: Sequence[Operation],
        otherwise: Sequence[Operation] = (),
    ) -> TxnResult:
        raise _refused()

    def watch(self, start: bytes, end: bytes, *, from_revision: int) -> Watch:
        raise _refused()

    async def grant_lease(self, ttl_ms: int) -> int:
        raise _refused()

    async def keep_alive(self, lease_id: int) -> None:
        raise _refused()

    async def revoke_lease(self, lease_id: int) -> None:
        raise _refused()

    async def compact(self, revision: int) -> None:
        raise _refused()

    async def raise_revision(self, at_least: int) -> None:
        raise _refused()

    async def close(self) -> None:
        """Has nothing to free."""


def _refused() -> Invalid:
    return Invalid("a copy of the metadata is read-only")
