"""The KVStore contract over both backends of this machine."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

from streamlog.kvstore.interface import KVStore
from streamlog.kvstore.memory.store import MemoryKVStore
from streamlog.kvstore.rocks.store import RocksKVStore
from streamlog.runtime.offload import ThreadOffload
from streamlog.testing.clocks import ManualClock
from streamlog.testing.kv_conformance import KVStoreConformance


class TestMemoryKVStore(KVStoreConformance):
    def store(self, clock: ManualClock) -> AbstractAsyncContextManager[KVStore]:
        @asynccontextmanager
        async def make() -> AsyncIterator[KVStore]:
            kv = MemoryKVStore(clock)
            yield kv
            await kv.close()

        return make()


class TestRocksKVStore(KVStoreConformance):
    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.path = tmp_path / "meta"

    def store(self, clock: ManualClock) -> AbstractAsyncContextManager[KVStore]:
        @asynccontextmanager
        async def make() -> AsyncIterator[KVStore]:
            offload = ThreadOffload()
            kv = await RocksKVStore.open(self.path, clock, offload)
            yield kv
            await kv.close()
            await offload.close()

        return make()
