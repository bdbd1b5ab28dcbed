"""A KV store whose answers are observed (`runtime/concurrency/answers.py`)."""

from __future__ import annotations

from collections.abc import Sequence

from streamlog.kvstore.interface import (
    Compare,
    KVStore,
    Operation,
    RangeResult,
    StoredKeyValue,
    TxnResult,
    Watch,
)
from streamlog.runtime.concurrency.answers import Answers


class ObservedKVStore:
    """Observes all requests but watches and compactions, which need not be answered in time."""

    def __init__(self, store: KVStore, answers: Answers) -> None:
        self._store = store
        self._answers = answers

    async def txn(
        self,
        compares: Sequence[Compare],
        then: Sequence[Operation],
        otherwise: Sequence[Operation] = (),
    ) -> TxnResult:
        request = self._store.txn(compares, then, otherwise)
        return await self._answers.of("transaction", request, writes=True)

    async def get(self, key: bytes, *, revision: int | None = None) -> StoredKeyValue | None:
        return await self._answers.of("read", self._store.get(key, revision=revision))

    async def range(
        self, start: bytes, end: bytes, *, limit: int = 0, revision: int | None = None
    ) -> RangeResult:
        request = self._store.range(start, end, limit=limit, revision=revision)
        return await self._answers.of("read", request)

    def watch(self, start: bytes, end: bytes, *, from_revision: int) -> Watch:
        return self._store.watch(start, end, from_revision=from_revision)

    async def revision(self) -> int:
        return await self._answers.of("read", self._store.revision())

    async def grant_lease(self, ttl_ms: int) -> int:
        return await self._answers.of("lease", self._store.grant_lease(ttl_ms), writes=True)

    async def keep_alive(self, lease_id: int) -> None:
        await self._answers.of("lease", self._store.keep_alive(lease_id), writes=True)

    async def revoke_lease(self, lease_id: int) -> None:
        await self._answers.of("lease", self._store.revoke_lease(lease_id), writes=True)

    async def compact(self, revision: int) -> None:
        await self._store.compact(revision)

    async def raise_revision(self, at_least: int) -> None:
        await self._store.raise_revision(at_least)

    async def close(self) -> None:
        await self._store.close()
