"""Streams in memory: the smallest medium that a shared log runs on, with crashes on demand.

A `MemoryMedium` is what survives; each client is one process on it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from streamlog.model.batch import StoredBatch
from streamlog.runtime.clock import Clock
from streamlog.testing.basic_kv import BasicKV
from streamlog.testing.basic_streams import BasicStreamClient, StoredStream


class MemoryMedium:
    """A Backing in memory; durability takes one turn of the event loop."""

    def __init__(self) -> None:
        self.rows: dict[int, StoredStream] = {}
        self.lock = asyncio.Lock()
        self.live_holders: set[str] = set()
        self.kv = BasicKV()
        self._clients = 0
        self._stream_ids = 0

    def client(self, clock: Clock, *, budget_bytes: int = 64 << 20) -> BasicStreamClient:
        """A new process."""
        self._clients += 1
        return BasicStreamClient(self, f"node-{self._clients}", clock, budget_bytes=budget_bytes)

    def next_stream_id(self) -> int:
        self._stream_ids += 1
        return self._stream_ids

    async def create(self, rows: Sequence[StoredStream]) -> None:
        await asyncio.sleep(0)

    async def append(self, batches: Sequence[tuple[StoredStream, StoredBatch]]) -> None:
        await asyncio.sleep(0)

    async def update(self, row: StoredStream) -> None:
        await asyncio.sleep(0)

    async def remove(self, stream_id: int) -> None:
        await asyncio.sleep(0)
