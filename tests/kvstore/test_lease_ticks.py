"""The tick that ends leases, over a store that refuses writes for a time."""

from __future__ import annotations

import asyncio
import logging

import pytest

from streamlog.errors import MetadataUnavailable
from streamlog.kvstore.interface import Put
from streamlog.kvstore.memory.store import MemoryKVStore
from streamlog.testing.simulation.world.loop import run

AWAY_S = 600


class LoopClock:
    """The running loop's time."""

    def now_ms(self) -> int:
        return int(self.monotonic() * 1000)

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()


class RefusingStore(MemoryKVStore):
    """Ends no lease while `is_away`, and counts how often it was asked to."""

    is_away = False
    refused = 0

    async def expire(self) -> None:
        if self.is_away:
            self.refused += 1
            raise MetadataUnavailable("the disk is away")
        await super().expire()


def test_a_store_that_refuses_writes_is_asked_once_a_second_and_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        kv = RefusingStore(LoopClock())
        lease = await kv.grant_lease(1_000)
        await kv.txn((), (Put(b"a", b"1", lease),))
        kv.is_away = True
        await asyncio.sleep(AWAY_S)
        assert AWAY_S - 5 < kv.refused < AWAY_S + 10
        kv.is_away = False
        await asyncio.sleep(2)
        assert await kv.get(b"a") is None
        await kv.close()

    with caplog.at_level(logging.INFO, "streamlog.kvstore.store"):
        run(main)
    assert [record.message for record in caplog.records] == [
        "leases could not be ended",
        "leases are ended again",
    ]


def test_each_outage_is_logged_where_an_operation_ends_the_leases_after_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        kv = RefusingStore(LoopClock())
        for key in (b"a", b"b"):
            lease = await kv.grant_lease(1_000)
            await kv.txn((), (Put(key, b"1", lease),))
            kv.is_away = True
            await asyncio.sleep(AWAY_S)
            kv.is_away = False
            await kv.txn((), (Put(b"c", b"1"),))
            assert await kv.get(key) is None
            await asyncio.sleep(2)
        await kv.close()

    with caplog.at_level(logging.INFO, "streamlog.kvstore.store"):
        run(main)
    assert [record.message for record in caplog.records] == 2 * [
        "leases could not be ended",
        "leases are ended again",
    ]
