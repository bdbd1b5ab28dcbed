"""The past is held within bounds, and who falls behind them is told so."""

from __future__ import annotations

import asyncio

import pytest

from streamlog.errors import RevisionCompacted
from streamlog.kvstore.memory.store import MemoryKVStore
from streamlog.kvstore.settings import KVSettings
from streamlog.testing.clocks import ManualClock
from streamlog.testing.kv_conformance import put, take


def test_a_slow_watcher_is_told_that_it_fell_behind() -> None:
    async def main() -> None:
        kv = MemoryKVStore(ManualClock(), KVSettings(history_revisions_max=50))
        first = await kv.revision() + 1
        slow = kv.watch(b"a", b"b", from_revision=first)
        await put(kv, b"a", b"")
        await take(slow, 1)
        for n in range(51):
            await put(kv, b"a", b"%d" % n)
        with pytest.raises(RevisionCompacted) as raised:
            await take(slow, 1)
        oldest = raised.value.oldest
        assert isinstance(oldest, int)
        assert oldest == await kv.revision() - 49
        assert len(await take(kv.watch(b"a", b"b", from_revision=oldest), 50)) == 50

    asyncio.run(main())


def test_a_watcher_of_quiet_keys_never_falls_behind() -> None:
    async def main() -> None:
        kv = MemoryKVStore(ManualClock(), KVSettings(history_revisions_max=20))
        idle = kv.watch(b"a", b"b", from_revision=await kv.revision() + 1)
        caught_up = kv.watch(b"a", b"b", from_revision=await kv.revision() + 1)
        await put(kv, b"a", b"1")
        await take(caught_up, 1)
        await take(idle, 1)
        for n in range(200):
            await put(kv, b"other", b"%d" % n)
        last = await put(kv, b"a", b"2")
        for watch in (idle, caught_up):
            assert [batch.revision for batch in await take(watch, 1)] == [last]

    asyncio.run(main())


def test_history_is_bounded_by_bytes() -> None:
    async def main() -> None:
        kv = MemoryKVStore(ManualClock(), KVSettings(history_bytes_max=1 << 20))
        first = await put(kv, b"a", b"")
        for _ in range(100):
            await put(kv, b"a", bytes(50_000))
        with pytest.raises(RevisionCompacted) as raised:
            await kv.get(b"a", revision=first)
        last, oldest = await kv.revision(), raised.value.oldest
        assert isinstance(oldest, int)
        # each change counts what it put and what it replaced
        assert 8 <= last - oldest <= 11
        assert await kv.get(b"a", revision=oldest) is not None

    asyncio.run(main())


def test_leases_end_without_an_operation() -> None:
    """The lease tick tells watchers; the clock has moved on when it first looks."""

    async def main() -> None:
        clock = ManualClock()
        kv = MemoryKVStore(clock)
        lease = await kv.grant_lease(20)
        revision = await put(kv, b"a", b"", lease)
        watch = kv.watch(b"a", b"b", from_revision=revision + 1)
        clock.advance(20)
        (batch,) = await take(watch, 1)
        assert batch.changes[0].kv is None
        await kv.close()

    asyncio.run(main())
