"""The cluster id when nodes start at the same moment."""

from __future__ import annotations

import asyncio

import pytest

from streamlog.engine.cluster import CLUSTER_KEY, encode_cluster_id, ensure_cluster_id
from streamlog.errors import Corrupt, ForeignCluster, StreamlogError, UnsupportedVersion
from streamlog.kvstore.interface import Put
from streamlog.kvstore.memory.store import MemoryKVStore
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
        with pytest.raises(ForeignCluster):
            await ensure_cluster_id(second, store, SeededRandom(2))

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
