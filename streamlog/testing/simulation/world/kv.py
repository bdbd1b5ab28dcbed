"""The metadata store as one incarnation reaches it: answers get lost, requests land late."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from streamlog.errors import MetadataUnavailable, OutcomeUnknown
from streamlog.kvstore.interface import (
    Compare,
    KVStore,
    Operation,
    Put,
    RangeResult,
    StoredKeyValue,
    TxnResult,
    Watch,
    WatchBatch,
)
from streamlog.testing.simulation.world.calls import remote_call
from streamlog.testing.simulation.world.faults import FaultSource
from streamlog.testing.simulation.world.incarnation import Incarnation

T = TypeVar("T")

WATCH_LAG_S_MAX = 4.0


class SimulationKV:
    """A KVStore over one that all incarnations share."""

    def __init__(
        self, shared: KVStore, node: Incarnation, faults: FaultSource, typical_s: float = 0.002
    ) -> None:
        self._shared = shared
        self._node = node
        self._faults = faults
        self._typical_s = typical_s

    async def _call(
        self,
        operation: str,
        apply: Callable[[], Awaitable[T]],
        *,
        writes: bool,
        is_compaction: bool = False,
    ) -> T:
        faults = self._faults
        fault = faults.remote(self._node.loop.time(), faults.kv_away_until)
        if fault is None and is_compaction and faults.happens(faults.rates.compaction_stuck):
            fault = "stuck"
        if fault is not None:
            self._node.trace.add(f"kv-{fault}", self._node.name, operation)
        return await remote_call(
            self._node,
            self._typical_s,
            apply,
            fault=fault,
            unavailable=lambda: MetadataUnavailable(f"{operation}: no answer"),
            unknown=lambda: (
                OutcomeUnknown(f"{operation}: the answer was lost")
                if writes
                else MetadataUnavailable(f"{operation}: the answer was lost")
            ),
        )

    async def txn(
        self,
        compares: Sequence[Compare],
        then: Sequence[Operation],
        otherwise: Sequence[Operation] = (),
    ) -> TxnResult:
        return await self._call(
            "txn",
            lambda: self._shared.txn(compares, then, otherwise),
            writes=True,
            is_compaction=any(isinstance(one, Put) and one.key.endswith(b"/x") for one in then),
        )

    async def get(self, key: bytes, *, revision: int | None = None) -> StoredKeyValue | None:
        return await self._call(
            "get", lambda: self._shared.get(key, revision=revision), writes=False
        )

    async def range(
        self, start: bytes, end: bytes, *, limit: int = 0, revision: int | None = None
    ) -> RangeResult:
        return await self._call(
            "range",
            lambda: self._shared.range(start, end, limit=limit, revision=revision),
            writes=False,
        )

    def watch(self, start: bytes, end: bytes, *, from_revision: int) -> Watch:
        shared = self._shared.watch(start, end, from_revision=from_revision)
        return _FaultyWatch(shared, self._node, self._faults)

    async def revision(self) -> int:
        return await self._call("revision", self._shared.revision, writes=False)

    async def grant_lease(self, ttl_ms: int) -> int:
        return await self._call(
            "grant lease", lambda: self._shared.grant_lease(ttl_ms), writes=True
        )

    async def keep_alive(self, lease_id: int) -> None:
        await self._call("keep alive", lambda: self._shared.keep_alive(lease_id), writes=True)

    async def revoke_lease(self, lease_id: int) -> None:
        await self._call("revoke lease", lambda: self._shared.revoke_lease(lease_id), writes=True)

    async def compact(self, revision: int) -> None:
        await self._call("compact", lambda: self._shared.compact(revision), writes=True)

    async def raise_revision(self, at_least: int) -> None:
        await self._shared.raise_revision(at_least)

    async def close(self) -> None:
        """The shared store goes on."""


class _FaultyWatch:
    """Changes reach a node while it is alive: in order, at times late, until the watch breaks."""

    def __init__(self, shared: Watch, node: Incarnation, faults: FaultSource) -> None:
        self._shared = shared
        self._node = node
        self._faults = faults

    def __aiter__(self) -> Watch:
        return self

    async def __anext__(self) -> WatchBatch:
        batch = await self._shared.__anext__()
        node, faults = self._node, self._faults
        if faults.happens(faults.rates.watch_lag):
            node.trace.add("watch-lag", node.name, batch.revision)
            await asyncio.sleep(WATCH_LAG_S_MAX * node.random.random() ** 2)
        await node.wait_while_crashed()
        if faults.happens(faults.rates.watch_broken):
            node.trace.add("watch-broken", node.name, batch.revision)
            raise MetadataUnavailable("the watch broke")
        return batch

    async def aclose(self) -> None:
        await self._shared.aclose()
