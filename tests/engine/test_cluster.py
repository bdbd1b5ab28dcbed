"""The cluster id when nodes start at the same moment."""

from __future__ import annotations

import asyncio

import pytest

from streamlog.engine.cluster import CLUSTER_KEY, encode_cluster_id, ensure_cluster_id
from streamlog.errors import Corrupt, ForeignCluster, StreamlogError, UnsupportedVersion
from streamlog.kvstore.interface import Put
from streamlog.kvstore.memory.store import MemoryKVStore
from streamlog.metadata.keys.space import prefix_of
from streamlog.objectstore.cluster.guard import claim, read_cluster
from streamlog.objectstore.memory import MemoryObjectStore
from streamlog.runtime.buffers import Buffer
from streamlog.runtime.clock import SystemClock
from streamlog.runtime.rand import SeededRandom


class OtherStartsFirst(MemoryObjectStore):
    """Another node starts, and finishes, when this one reads the store for the first time."""

    def __init__(self, kv: MemoryKVStore) -> None:
        super().__init__(SystemClock())
        self._kv = kv
        self.other: str | None = None

    async def get(self, key: str, start: int = 0, length: int | None = None) -> Buffer:
        if self.other is None:
            self.other = ""
            self.other = await ensure_cluster_id(self._kv, self, SeededRandom(1))
        return await super().get(key, start, length)


def test_nodes_that_start_together_agree() -> None:
    async def main() -> None:
        kv = MemoryKVStore(SystemClock())
        store = OtherStartsFirst(kv)
        mine = await ensure_cluster_id(kv, store, SeededRandom(2))
        assert mine == store.other
        await kv.close()

    asyncio.run(main())


def test_a_store_with_data_beside_empty_metadata_is_refused() -> None:
    async def main() -> None:
        store = MemoryObjectStore(SystemClock())
        first, second = MemoryKVStore(SystemClock()), MemoryKVStore(SystemClock())
        await ensure_cluster_id(first, store, SeededRandom(1))
        with pytest.raises(
            ForeignCluster, match=r"look whether --meta is right.*streamlog recover"
        ):
            await ensure_cluster_id(second, store, SeededRandom(2))

    asyncio.run(main())


def test_a_start_after_one_that_died_between_metadata_and_store_claims_the_store() -> None:
    async def main() -> None:
        kv, store = MemoryKVStore(SystemClock()), MemoryObjectStore(SystemClock())
        await kv.txn([], [Put(CLUSTER_KEY, encode_cluster_id("abc"))])
        assert await ensure_cluster_id(kv, store, SeededRandom(1)) == "abc"
        claimed = await read_cluster(store)
        assert claimed is not None
        assert claimed.cluster_id == "abc"
        await kv.close()

    asyncio.run(main())


class OtherUsesItFirst(MemoryObjectStore):
    """Another node claims the store, and writes its first key, when this one has seen no owner."""

    def __init__(self, kv: MemoryKVStore) -> None:
        super().__init__(SystemClock())
        self._kv = kv
        self._gets = 0

    async def get(self, key: str, start: int = 0, length: int | None = None) -> Buffer:
        self._gets += 1
        try:
            return await super().get(key, start, length)
        finally:
            if self._gets == 1:
                await claim(self, "abc")
                await self._kv.txn([], [Put(prefix_of("abc") + b"f/", b"1")])


def test_a_store_that_another_node_claims_and_uses_meanwhile_is_right() -> None:
    async def main() -> None:
        kv = MemoryKVStore(SystemClock())
        await kv.txn([], [Put(CLUSTER_KEY, encode_cluster_id("abc"))])
        store = OtherUsesItFirst(kv)
        assert await ensure_cluster_id(kv, store, SeededRandom(1)) == "abc"
        await kv.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("value", "error"),
    [
        (b"\x02" + encode_cluster_id("abc")[1:], UnsupportedVersion),
        (b"\x00abc", Corrupt),
        (b"", Corrupt),
    ],
)
def test_an_id_that_cannot_be_read_claims_no_store(
    value: bytes, error: type[StreamlogError]
) -> None:
    async def main() -> None:
        kv, store = MemoryKVStore(SystemClock()), MemoryObjectStore(SystemClock())
        await kv.txn([], [Put(CLUSTER_KEY, value)])
        with pytest.raises(error):
            await ensure_cluster_id(kv, store, SeededRandom(1))
        assert not (await store.list("")).objects
        await kv.close()

    asyncio.run(main())
