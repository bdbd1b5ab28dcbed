"""The ObjectStore contract over both stores of this machine."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

from streamlog.objectstore.interface import ObjectStore
from streamlog.objectstore.local.store import LocalObjectStore
from streamlog.objectstore.memory import MemoryObjectStore
from streamlog.runtime.offload import ThreadOffload
from streamlog.testing.clocks import ManualClock
from streamlog.testing.store_conformance import ObjectStoreConformance


class TestMemoryObjectStore(ObjectStoreConformance):
    has_pieces = False

    def store(self, clock: ManualClock) -> AbstractAsyncContextManager[ObjectStore]:
        @asynccontextmanager
        async def make() -> AsyncIterator[ObjectStore]:
            store = MemoryObjectStore(clock)
            yield store
            await store.close()

        return make()


class TestLocalObjectStore(ObjectStoreConformance):
    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.root = tmp_path / "objects"

    def store(self, clock: ManualClock) -> AbstractAsyncContextManager[ObjectStore]:
        @asynccontextmanager
        async def make() -> AsyncIterator[ObjectStore]:
            offload = ThreadOffload()
            store = await LocalObjectStore.open(self.root, offload, clock)
            yield store
            await store.close()
            await offload.close()
            assert list((self.root / ".tmp").iterdir()) == []

        return make()
