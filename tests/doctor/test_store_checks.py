"""Stores that keep the contract pass; each way of breaking it is found by name."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from streamlog.doctor import store_checks, store_speed
from streamlog.doctor.findings import Check, CheckOutcome, CheckResult, run_all
from streamlog.errors import DiskFull, StoreUnavailable, StoreUntrusted
from streamlog.objectstore.interface import ObjectInfo, ObjectStore
from streamlog.objectstore.local.store import LocalObjectStore
from streamlog.objectstore.memory import MemoryObjectStore
from streamlog.objectstore.trust.quick import check_quickly
from streamlog.objectstore.trust.scratch import PREFIX, Scratch
from streamlog.runtime.buffers import Buffer
from streamlog.runtime.clock import SystemClock
from streamlog.runtime.offload import ThreadOffload
from streamlog.runtime.rand import SeededRandom
from tests.doctor.broken import (
    BROKEN,
    IfAbsentIgnored,
    LostDelete,
    RangeOffByOne,
    SlowClock,
)

CLOCK = SystemClock()
SLOW = {"store.latency"}
"""Warns when it is slow, which depends on what else this machine does."""
ALL = (*store_checks.CHECKS, *store_speed.CHECKS)


@asynccontextmanager
async def opened(kind: str, folder: Path) -> AsyncIterator[ObjectStore]:
    if kind == "memory":
        yield MemoryObjectStore(CLOCK)
        return
    offload = ThreadOffload()
    store = await LocalObjectStore.open(folder / "objects", offload, CLOCK)
    try:
        yield store
    finally:
        await store.close()
        await offload.close()


async def examined(
    store: ObjectStore, checks: tuple[Check[Scratch], ...] = ALL
) -> dict[str, CheckResult]:
    scratch = Scratch(store, CLOCK, SeededRandom(1))
    found = {one.name: one async for one in run_all(checks, scratch)}
    await scratch.remove()
    return found


@pytest.mark.parametrize("kind", ["memory", "local"])
def test_a_store_that_keeps_the_contract_passes(kind: str, tmp_path: Path) -> None:
    async def examine() -> None:
        async with opened(kind, tmp_path) as store:
            found = await examined(store)
            bad = {one.name: one.detail for one in found.values() if one.outcome != "pass"}
            assert set(bad) <= SLOW, bad
            assert list(found) == [check.name for check in ALL]
            assert found["store.latency"].figures["put_p99_ms"] > 0
            assert found["store.throughput"].figures["get_mib_per_s"] > 0
            assert (await store.list("")).objects == ()

    asyncio.run(examine())


@pytest.mark.parametrize("broken", BROKEN, ids=lambda cls: cls.__name__)
def test_a_broken_store_is_found_by_name(broken: type[MemoryObjectStore]) -> None:
    checks = (*store_checks.CHECKS, store_speed.CHECKS[0])
    found = asyncio.run(examined(broken(CLOCK), checks))
    failures = {one.name for one in found.values() if one.outcome is CheckOutcome.FAIL}
    assert BROKEN[broken] in failures
    assert found[BROKEN[broken]].advice
    # The fault is told apart from others: what has nothing to do with it passes.
    assert len(failures) <= 5, failures


def test_a_clock_that_is_half_a_minute_off_is_a_warning() -> None:
    found = asyncio.run(examined(SlowClock(CLOCK), store_speed.CHECKS[:1]))
    assert found["store.clock"].outcome is CheckOutcome.WARN
    assert -60 < found["store.clock"].figures["skew_s"] < -5
    assert "behind" in found["store.clock"].detail


class Away(MemoryObjectStore):
    async def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        raise StoreUnavailable("503", operation="get")


def test_an_error_of_the_store_is_a_finding() -> None:
    found = asyncio.run(examined(Away(CLOCK), store_checks.CHECKS))
    assert found["store.read_after_write"].outcome is CheckOutcome.FAIL
    assert found["store.read_after_write"].detail == "StoreUnavailable: 503"
    assert found["store.read_after_write"].advice == "do what the error says, and run it again"
    found = asyncio.run(examined(Away(CLOCK), store_speed.CHECKS[1:]))
    assert [one.detail for one in found.values()] == ["StoreUnavailable: 503"] * 2


class Full(MemoryObjectStore):
    """It has room for one object."""

    has_room = True

    async def put(
        self, key: str, parts: Sequence[Buffer], *, if_absent: bool = False
    ) -> ObjectInfo:
        if not self.has_room or not key.endswith("/absent"):
            raise DiskFull(f"storing {key} failed", path=key)
        self.has_room = False
        return await super().put(key, parts, if_absent=if_absent)


def test_a_full_disk_is_no_fault_of_what_is_checked() -> None:
    found = asyncio.run(examined(Full(CLOCK))).values()
    assert {one.outcome for one in found} == {CheckOutcome.FAIL}
    assert {one.detail.partition(":")[0] for one in found} == {"DiskFull"}
    assert {one.advice for one in found} == {"free some space, and run it again"}


def test_remains_that_cannot_be_removed_are_reported() -> None:
    async def leave() -> str:
        scratch = Scratch(LostDelete(CLOCK), CLOCK, SeededRandom(1))
        await scratch.put("one", b"1")
        return await scratch.remove()

    assert asyncio.run(leave()) == "1 objects are still listed"


class Slow(MemoryObjectStore):
    """Puts wait for leave."""

    def __init__(self) -> None:
        super().__init__(CLOCK)
        self.begun = asyncio.Event()
        self.leave = asyncio.Event()

    async def put(
        self, key: str, parts: Sequence[Buffer], *, if_absent: bool = False
    ) -> ObjectInfo:
        self.begun.set()
        await self.leave.wait()
        return await super().put(key, parts, if_absent=if_absent)


def test_a_write_that_lands_after_the_interruption_is_removed() -> None:
    async def interrupt() -> None:
        store = Slow()
        scratch = Scratch(store, CLOCK, SeededRandom(1))
        check = asyncio.ensure_future(store_checks.CHECKS[0].run(scratch))
        await store.begun.wait()
        check.cancel()
        with pytest.raises(asyncio.CancelledError):
            await check
        removal = asyncio.ensure_future(scratch.remove())
        await asyncio.sleep(0)
        assert not removal.done()
        store.leave.set()
        assert await removal == ""
        assert (await store.list("")).objects == ()

    asyncio.run(interrupt())


# the quick part


@pytest.mark.parametrize("kind", ["memory", "local"])
def test_the_quick_part_leaves_nothing(kind: str, tmp_path: Path) -> None:
    async def check() -> None:
        async with opened(kind, tmp_path) as store:
            await check_quickly(store, CLOCK, SeededRandom(1))
            assert (await store.list("")).objects == ()

    asyncio.run(check())
    # On a local store there is one folder for all, ever.
    assert [one for one in tmp_path.glob(f"objects/{PREFIX}*") if one.is_dir()] == []


@pytest.mark.parametrize(
    ("broken", "name"),
    [
        (IfAbsentIgnored, "store.if_absent"),
        (RangeOffByOne, "store.range"),
        (LostDelete, "store.delete"),
        (type("Empty", (MemoryObjectStore,), {"get": Away.get}), "StoreUnavailable"),
    ],
)
def test_the_quick_part_refuses(broken: type[MemoryObjectStore], name: str) -> None:
    if name == "StoreUnavailable":
        with pytest.raises(StoreUnavailable):
            asyncio.run(check_quickly(broken(CLOCK), CLOCK, SeededRandom(1)))
        return
    with pytest.raises(StoreUntrusted, match=rf"{name}.*streamlog doctor") as caught:
        asyncio.run(check_quickly(broken(CLOCK), CLOCK, SeededRandom(1)))
    assert caught.value.fields == {"check": name}
