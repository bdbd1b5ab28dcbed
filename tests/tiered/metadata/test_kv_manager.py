"""The manager over the KV store keeps the contract."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from streamlog.model.kv import Key, Value
from streamlog.testing.basic_kv import BasicKV
from streamlog.testing.tiers.metadata_conformance import (
    FIRST,
    OpenManager,
    RemoteLogMetadataManagerConformance,
    segment,
)
from streamlog.tiered.api import RemoteLogMetadataManager
from streamlog.tiered.metadata.kv_manager import KVRemoteLogMetadataManager


class TestKVManager(RemoteLogMetadataManagerConformance):
    @asynccontextmanager
    async def make(self) -> AsyncIterator[OpenManager]:
        kv = BasicKV()

        async def opened() -> RemoteLogMetadataManager:
            return KVRemoteLogMetadataManager(kv)

        yield opened


class HeldPuts(BasicKV):
    """Puts wait for the gate before they take effect."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        self.waits = asyncio.Event()

    async def put_kv_if_absent(self, key: Key, data: bytes) -> Value:
        self.waits.set()
        await self.gate.wait()
        return await super().put_kv_if_absent(key, data)


def test_a_cache_that_is_replaced_during_a_write_has_it() -> None:
    async def body() -> None:
        kv = HeldPuts()
        manager = KVRemoteLogMetadataManager(kv)
        one = segment(1, (0, 9))
        write = asyncio.ensure_future(manager.add_remote_log_segment_metadata(one))
        await kv.waits.wait()
        calls = [
            asyncio.ensure_future(manager.on_stop_partitions([FIRST])),
            asyncio.ensure_future(manager.on_partition_leadership_changes([], [FIRST])),
            asyncio.ensure_future(manager.list_remote_log_segments(FIRST)),
        ]

        async def open_gate() -> None:
            kv.gate.set()

        # Tasks begin in the order in which they were made: the gate opens when all calls wait.
        await asyncio.gather(write, *calls, open_gate())
        assert await manager.list_remote_log_segments(FIRST) == [one]

    asyncio.run(body())
