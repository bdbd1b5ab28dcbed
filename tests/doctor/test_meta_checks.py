"""Metadata stores: those that keep the contract pass, broken ones are found by name."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from streamlog.doctor import meta_checks
from streamlog.doctor.findings import Check, CheckOutcome, CheckResult, run_all
from streamlog.doctor.meta_checks import CHECKS, MetaScratch
from streamlog.errors import MetadataUnavailable
from streamlog.kvstore.interface import (
    Compare,
    KVStore,
    Operation,
    RangeResult,
    StoredKeyValue,
    TxnResult,
)
from streamlog.kvstore.memory.store import MemoryKVStore
from streamlog.kvstore.rocks.store import RocksKVStore
from streamlog.runtime.clock import SystemClock
from streamlog.runtime.offload import ThreadOffload
from streamlog.runtime.rand import SeededRandom

CLOCK = SystemClock()
SLOW = {"meta.latency"}
"""Warns when it is slow, which depends on what else this machine does."""


@asynccontextmanager
async def opened(kind: str, folder: Path) -> AsyncIterator[KVStore]:
    offload = ThreadOffload()
    kv: KVStore = (
        MemoryKVStore(CLOCK)
        if kind == "memory"
        else await RocksKVStore.open(folder / "meta", CLOCK, offload)
    )
    try:
        yield kv
    finally:
        await kv.close()
        await offload.close()


async def examined(
    kv: KVStore, checks: Sequence[Check[MetaScratch]] = CHECKS
) -> dict[str, CheckResult]:
    meta = MetaScratch(kv, CLOCK, SeededRandom(1))
    found = {one.name: one async for one in run_all(checks, meta)}
    assert await meta.remove() == ""
    return found


@pytest.mark.parametrize("kind", ["memory", "rocksdb"])
def test_a_metadata_store_that_keeps_the_contract_passes(kind: str, tmp_path: Path) -> None:
    async def examine() -> None:
        async with opened(kind, tmp_path) as kv:
            found = await examined(kv)
            bad = {one.name: one.detail for one in found.values() if one.outcome != "pass"}
            assert set(bad) <= SLOW, bad
            assert list(found) == [check.name for check in CHECKS]
            assert found["meta.latency"].figures["txn_p99_ms"] > 0
            assert (await kv.range(b"", b"\xff")).kvs == ()

    asyncio.run(examine())


class NoLimits(MemoryKVStore):
    """Takes a transaction that is too long by cutting it."""

    async def txn(
        self,
        compares: Sequence[Compare],
        then: Sequence[Operation],
        otherwise: Sequence[Operation] = (),
    ) -> TxnResult:
        return await super().txn(compares, then[:128], otherwise)


class SmallLimits(MemoryKVStore):
    async def txn(
        self,
        compares: Sequence[Compare],
        then: Sequence[Operation],
        otherwise: Sequence[Operation] = (),
    ) -> TxnResult:
        if len(then) > 64:
            raise MetadataUnavailable("too many operations")
        return await super().txn(compares, then, otherwise)


class ComparesIgnored(MemoryKVStore):
    async def txn(
        self,
        compares: Sequence[Compare],
        then: Sequence[Operation],
        otherwise: Sequence[Operation] = (),
    ) -> TxnResult:
        return await super().txn((), then, otherwise)


class OldRevisionsIgnored(MemoryKVStore):
    async def get(self, key: bytes, *, revision: int | None = None) -> StoredKeyValue | None:
        return await super().get(key)


class LeasesIgnored(MemoryKVStore):
    async def revoke_lease(self, lease_id: int) -> None:
        return None


class WatchFromNow(MemoryKVStore):
    """Leaves out what changed before the watch began."""

    def watch(self, start: bytes, end: bytes, *, from_revision: int) -> Any:
        return super().watch(start, end, from_revision=from_revision + 1)


class Away(MemoryKVStore):
    async def range(
        self, start: bytes, end: bytes, *, limit: int = 0, revision: int | None = None
    ) -> RangeResult:
        raise MetadataUnavailable("away")


@pytest.mark.parametrize(
    ("broken", "name"),
    [
        (NoLimits, "meta.limits"),
        (SmallLimits, "meta.limits"),
        (Away, "meta.limits"),
        (ComparesIgnored, "meta.compare_and_set"),
        (OldRevisionsIgnored, "meta.revision"),
        (LeasesIgnored, "meta.lease"),
        (WatchFromNow, "meta.watch"),
    ],
)
def test_a_broken_metadata_store_is_found_by_name(
    broken: type[MemoryKVStore], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streamlog.doctor.findings.CHECK_TIMEOUT_S", 1.0)

    async def examine() -> dict[str, CheckResult]:
        kv = broken(CLOCK)
        try:
            return await examined(kv, [check for check in CHECKS if check.name == name])
        finally:
            await kv.close()

    found = asyncio.run(examine())
    assert found[name].outcome is CheckOutcome.FAIL
    assert found[name].advice


def test_keys_lie_under_a_prefix_of_their_own() -> None:
    meta = MetaScratch(MemoryKVStore(CLOCK), CLOCK, SeededRandom(1))
    assert meta.key("x").startswith(meta_checks.PREFIX)
    assert not meta_checks.PREFIX.startswith((b"/sl/", b"/streamlog/"))
