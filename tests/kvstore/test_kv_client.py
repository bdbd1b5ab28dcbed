"""EngineKVClient: the users' keys, over memory and RocksDB."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from streamlog.engine.kv_client import EngineKVClient
from streamlog.errors import (
    Invalid,
    InvalidName,
    MessageTooLarge,
    RevisionCompacted,
    UnsupportedVersion,
    ValueConflict,
)
from streamlog.kvstore.interface import KVStore, Put
from streamlog.kvstore.memory.store import MemoryKVStore
from streamlog.kvstore.rocks.store import RocksKVStore
from streamlog.model.kv import Key, KVChange, KVClient, Value
from streamlog.runtime.offload import ThreadOffload
from streamlog.testing.clocks import ManualClock

PREFIX = b"/sl/c1/"
Body = Callable[[EngineKVClient, KVStore], Awaitable[None]]


@pytest.fixture(params=["memory", "rocksdb"])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Body], None]:
    @asynccontextmanager
    async def store() -> AsyncIterator[KVStore]:
        offload = ThreadOffload()
        kv: KVStore
        if request.param == "memory":
            kv = MemoryKVStore(ManualClock())
        else:
            kv = await RocksKVStore.open(tmp_path / "meta", ManualClock(), offload)
        yield kv
        await kv.close()
        await offload.close()

    def runner(body: Body) -> None:
        async def main() -> None:
            async with store() as kv, asyncio.timeout(90):
                await body(EngineKVClient(kv, PREFIX), kv)

        asyncio.run(main())

    return runner


def test_put_get_delete(run: Callable[[Body], None]) -> None:
    async def body(client: EngineKVClient, kv: KVStore) -> None:
        as_protocol: KVClient = client
        key = Key(b"any\x00byte/\xff")
        assert await as_protocol.get_kv(key) is None
        stored = await client.put_kv(key, b"1")
        assert stored.data == b"1"
        assert await client.get_kv(key) == stored
        again = await client.put_kv(key, b"")
        assert again.revision > stored.revision
        assert await client.get_kv(key) == Value(b"", again.revision)
        assert await client.del_kv(key) == Value(b"", again.revision)
        assert await client.del_kv(key) is None
        assert await client.get_kv(key) is None

    run(body)


def test_put_if_absent_returns_what_is_stored(run: Callable[[Body], None]) -> None:
    async def body(client: EngineKVClient, kv: KVStore) -> None:
        key = Key(b"k")
        values = await asyncio.gather(*(client.put_kv_if_absent(key, b"%d" % n) for n in range(10)))
        assert len(set(values)) == 1
        assert await client.get_kv(key) == values[0]

    run(body)


def test_compare_and_set(run: Callable[[Body], None]) -> None:
    async def body(client: EngineKVClient, kv: KVStore) -> None:
        key = Key(b"k")
        first = await client.compare_and_set_kv(key, b"1", 0)
        second = await client.compare_and_set_kv(key, b"2", first.revision)
        for stale in (0, first.revision):
            with pytest.raises(ValueConflict) as raised:
                await client.compare_and_set_kv(key, b"3", stale)
            assert raised.value.actual_revision == second.revision
        with pytest.raises(ValueConflict) as raised:
            await client.compare_and_set_kv(Key(b"absent"), b"3", 5)
        assert raised.value.actual_revision == 0
        with pytest.raises(Invalid):
            await client.compare_and_set_kv(key, b"3", -1)
        assert await client.get_kv(key) == second
        for stale in (0, first.revision):
            with pytest.raises(ValueConflict) as raised:
                await client.del_kv(key, stale)
            assert raised.value.actual_revision == second.revision
        assert await client.del_kv(key, second.revision) == second
        with pytest.raises(ValueConflict):
            await client.del_kv(key, second.revision)
        with pytest.raises(Invalid):
            await client.del_kv(key, -1)

    run(body)


def test_lists_stay_in_their_namespace(run: Callable[[Body], None]) -> None:
    async def body(client: EngineKVClient, kv: KVStore) -> None:
        names = [b"a", b"b/1", b"b/2", b"b0", b"\xff", b"\xff\xff"]
        for name in names:
            await client.put_kv(Key(name, "ns"), name)
        for other in ("n", "ns1", "ns-", "ns.x", "_partition"):
            await client.put_kv(Key(b"a", other), b"other")
        await kv.txn((), (Put(b"/sl/c1/t/a", b"\x01x"), Put(b"/sl/c10/u/ns/zzz", b"\x01x")))
        items = await client.list_kv("ns")
        assert [(item.key, item.value.data) for item in items] == [
            (Key(name, "ns"), name) for name in names
        ]
        assert [i.key.name for i in await client.list_kv("ns", b"b/")] == [b"b/1", b"b/2"]
        assert [i.key.name for i in await client.list_kv("ns", b"\xff")] == [b"\xff", b"\xff\xff"]
        after = await client.list_kv("ns", after=b"b/1", limit=2)
        assert [i.key.name for i in after] == [b"b/2", b"b0"]
        assert [i.key.name for i in await client.list_kv("ns", b"b", after=b"a", limit=1)] == [
            b"b/1"
        ]
        assert await client.list_kv("empty") == []
        for limit in (0, -1, 100_000):
            with pytest.raises(Invalid):
                await client.list_kv("ns", limit=limit)

    run(body)


def test_watch(run: Callable[[Body], None]) -> None:
    async def body(client: EngineKVClient, kv: KVStore) -> None:
        before = await client.put_kv(Key(b"w/0", "ns"), b"0")
        past = client.watch_kv("ns", b"w/", from_revision=before.revision)
        assert await anext(past) == KVChange(Key(b"w/0", "ns"), before, before.revision)
        now = client.watch_kv("ns", b"w/")
        waiting = asyncio.ensure_future(anext(now))
        await asyncio.sleep(0)  # in place once the first item was asked for
        value = await client.put_kv(Key(b"w/1", "ns"), b"1")
        await client.put_kv(Key(b"x", "ns"), b"")
        await client.put_kv(Key(b"w/1", "other"), b"")
        await client.del_kv(Key(b"w/1", "ns"))
        expected = KVChange(Key(b"w/1", "ns"), value, value.revision)
        assert await waiting == expected
        assert await anext(past) == expected
        gone = await anext(past)
        assert (gone.key, gone.value) == (Key(b"w/1", "ns"), None)
        for watch in (past, now):
            await watch.aclose()
        await kv.compact(await kv.revision())
        with pytest.raises(RevisionCompacted):
            await anext(client.watch_kv("ns", from_revision=before.revision))

    run(body)


def test_names_and_sizes(run: Callable[[Body], None]) -> None:
    async def body(client: EngineKVClient, kv: KVStore) -> None:
        for namespace in ("", "a/b", "..\x00", "ü", "n" * 65, "a\n", "x" * 10_000):
            for use in (
                client.put_kv(Key(b"k", namespace), b""),
                client.get_kv(Key(b"k", namespace)),
                client.del_kv(Key(b"k", namespace)),
                client.list_kv(namespace),
                anext(client.watch_kv(namespace)),
            ):
                with pytest.raises(InvalidName) as raised:
                    await use
                assert len(str(raised.value)) < 400
        for name in (b"", b"x" * 1025):
            with pytest.raises(InvalidName):
                await client.put_kv(Key(name), b"")
        longest = Key(b"x" * 1024, "n" * 64)
        largest = bytes(1 << 20)
        await client.put_kv(longest, largest)
        value = await client.get_kv(longest)
        assert value is not None
        assert value.data == largest
        with pytest.raises(MessageTooLarge) as too_large:
            await client.put_kv(Key(b"k"), bytes((1 << 20) + 1))
        assert too_large.value.max_bytes == 1 << 20

    run(body)


def test_a_value_of_a_newer_release_is_refused(run: Callable[[Body], None]) -> None:
    async def body(client: EngineKVClient, kv: KVStore) -> None:
        await kv.txn((), (Put(b"/sl/c1/u/ns/k", b"\x02data"),))
        with pytest.raises(UnsupportedVersion):
            await client.get_kv(Key(b"k", "ns"))

    run(body)
