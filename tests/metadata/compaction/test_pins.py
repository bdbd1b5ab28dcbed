"""Pins over a metadata store in memory."""

from __future__ import annotations

import asyncio

from streamlog.kvstore.memory.store import MemoryKVStore
from streamlog.metadata.compaction.pins import Pins
from streamlog.testing.clocks import ManualClock


def test_pins_that_are_held_are_counted() -> None:
    async def main() -> None:
        clock = ManualClock()
        kv = MemoryKVStore(clock)
        pins, others = Pins(kv, b"a/"), Pins(kv, b"b/")
        assert await pins.count(5) == 0
        first = await pins.put("reader", 5000)
        await pins.put("reader", 60_000)
        await others.put("reader", 60_000)
        assert [await pins.count(most) for most in (1, 2, 5)] == [1, 2, 2]
        await pins.remove(first)
        assert await pins.count(5) == 1
        await kv.close()

    asyncio.run(main())
