"""One shared KV store behind unreliable networks, and the history of every change to it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

from streamlog.errors import MetadataUnavailable, OutcomeUnknown, StreamlogError
from streamlog.kvstore.interface import (
    Compare,
    Get,
    Operation,
    RangeResult,
    StoredKeyValue,
    TxnResult,
    WatchBatch,
)
from streamlog.kvstore.memory.store import MemoryKVStore


@dataclass
class Shared:
    """`history`: every applied transaction's revision and writes, in order."""

    kv: MemoryKVStore
    rng: random.Random
    history: list[tuple[int, Sequence[Operation]]] = field(default_factory=list)
    faults: float = 0.15
    """Chance that a call goes wrong."""
    mutate: Callable[[Sequence[Compare], Sequence[Operation]], Sequence[Compare]] | None = None
    late: set[asyncio.Task[None]] = field(default_factory=set)

    async def apply(
        self, compares: Sequence[Compare], then: Sequence[Operation], otherwise: Sequence[Operation]
    ) -> TxnResult:
        if self.mutate is not None:
            compares = self.mutate(compares, then)
        result = await self.kv.txn(compares, then, otherwise)
        if result.succeeded and not all(isinstance(one, Get) for one in then):
            self.history.append((result.revision, then))
        return result

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Work that outlives its sender."""
        task = asyncio.get_running_loop().create_task(work)
        self.late.add(task)
        task.add_done_callback(self.late.discard)


class FaultyKV:
    """The KV store as one tenure reaches it: calls are late, fail, lose answers, arrive twice."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._kv = shared.kv

    async def txn(
        self,
        compares: Sequence[Compare],
        then: Sequence[Operation],
        otherwise: Sequence[Operation] = (),
    ) -> TxnResult:
        shared, rng = self._shared, self._shared.rng
        await self._travel()
        if rng.random() >= shared.faults:
            result = await shared.apply(compares, then, otherwise)
            if then and rng.random() < shared.faults / 2:
                shared.spawn(self._later(compares, then, otherwise))
            await self._travel()
            return result
        kind = rng.randrange(3)
        if kind == 0:
            raise MetadataUnavailable("the network refused the call")
        if kind == 1:
            await shared.apply(compares, then, otherwise)
        else:
            shared.spawn(self._later(compares, then, otherwise))
        raise OutcomeUnknown("the answer was lost")

    async def _later(
        self, compares: Sequence[Compare], then: Sequence[Operation], otherwise: Sequence[Operation]
    ) -> None:
        await asyncio.sleep(self._shared.rng.random() ** 3 * 2)
        try:
            await self._shared.apply(compares, then, otherwise)
        except StreamlogError:
            return  # the lease in it has ended

    async def get(self, key: bytes, *, revision: int | None = None) -> StoredKeyValue | None:
        await self._read()
        return await self._kv.get(key, revision=revision)

    async def range(
        self, start: bytes, end: bytes, *, limit: int = 0, revision: int | None = None
    ) -> RangeResult:
        await self._read()
        return await self._kv.range(start, end, limit=limit, revision=revision)

    def watch(self, start: bytes, end: bytes, *, from_revision: int) -> _FaultyWatch:
        return _FaultyWatch(self._shared, start, end, from_revision)

    async def revision(self) -> int:
        await self._read()
        return await self._kv.revision()

    async def grant_lease(self, ttl_ms: int) -> int:
        return await self._kv.grant_lease(ttl_ms)

    async def keep_alive(self, lease_id: int) -> None:
        await self._read()
        await self._kv.keep_alive(lease_id)

    async def revoke_lease(self, lease_id: int) -> None:
        await self._kv.revoke_lease(lease_id)

    async def compact(self, revision: int) -> None:
        await self._kv.compact(revision)

    async def raise_revision(self, at_least: int) -> None:
        await self._kv.raise_revision(at_least)

    async def close(self) -> None:
        pass

    async def _travel(self) -> None:
        if self._shared.rng.random() < 0.6:
            await asyncio.sleep(self._shared.rng.random() * 0.015)

    async def _read(self) -> None:
        await self._travel()
        if self._shared.rng.random() < self._shared.faults / 2:
            raise MetadataUnavailable("the network refused the call")


class _FaultyWatch:
    """A watch that is sometimes late, and that breaks."""

    def __init__(self, shared: Shared, start: bytes, end: bytes, from_revision: int) -> None:
        self._shared = shared
        self._watch = shared.kv.watch(start, end, from_revision=from_revision)

    def __aiter__(self) -> AsyncIterator[WatchBatch]:
        return self

    async def __anext__(self) -> WatchBatch:
        batch = await self._watch.__anext__()
        draw, faults = self._shared.rng.random(), self._shared.faults
        if draw < faults / 10:
            raise MetadataUnavailable("the watch broke")
        if draw < faults * 2:
            await asyncio.sleep(self._shared.rng.random() * 0.1)
        return batch

    async def aclose(self) -> None:
        await self._watch.aclose()
