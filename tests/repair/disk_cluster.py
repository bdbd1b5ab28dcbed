"""Nodes with wal=disk over stores that outlive them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import streamlog
from streamlog.engine.config import StreamEngineConfig, UploadConfig
from streamlog.kvstore.memory.store import MemoryKVStore
from streamlog.repair.recover.recover import recover
from streamlog.wal.config import WalConfig
from streamlog.wiring import Components, OpenEngine
from tests.repair.cluster import Cluster, read

WAL = WalConfig(wal_bytes_max=4 << 20, file_bytes=512 << 10)
CONFIG = StreamEngineConfig(upload=UploadConfig(upload_interval_ms=10**9), wal=WAL)
"""Nothing is uploaded unless it is asked for."""


class DiskCluster(Cluster):
    """Nodes with a WAL folder each, which outlives them and the metadata."""

    def __init__(self, folder: Path) -> None:
        super().__init__(config=CONFIG)
        self.folder = folder

    @asynccontextmanager
    async def disk_node(
        self, node_id: int = 1, *, crash: bool = True, accept_data_loss: bool = False
    ) -> AsyncIterator[OpenEngine]:
        async with streamlog.open(
            "memory://",
            meta="memory://",
            wal="disk",
            wal_dir=self.folder / f"wal{node_id}",
            node_id=node_id,
            config=replace(self.config, wal=replace(WAL, accept_data_loss=accept_data_loss)),
            components=Components(store=self.store, kv=self.kv, random=self.random),
        ) as engine:
            yield engine
            if crash:
                await engine.kill()

    async def rebuild_metadata(self) -> None:
        self.kv = MemoryKVStore(self.clock)
        await recover(
            self.kv, self.store, clock=self.clock, random=self.random, offload=self.offload
        )


async def payloads(engine: OpenEngine, stream_id: int) -> list[bytes]:
    by_offset = await read(await engine.streams.open_stream(stream_id))
    return [by_offset[offset] for offset in sorted(by_offset)]
