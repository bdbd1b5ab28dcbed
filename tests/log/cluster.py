"""Log managers on one medium in memory, as the nodes of a cluster."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from prometheus_client import CollectorRegistry

from streamlog.log.api.config import LogConfig
from streamlog.log.manager import LogManager
from streamlog.log.opening import open_logs
from streamlog.runtime.rand import SeededRandom
from streamlog.testing.basic_streams import BasicStreamClient
from streamlog.testing.clocks import ManualClock
from streamlog.testing.memory_streams import MemoryMedium


class Cluster:
    """A medium and the managers on it, each with a client of its own."""

    def __init__(self) -> None:
        self.medium: Any = MemoryMedium()
        self.clock = ManualClock()
        self.random = SeededRandom(7)
        self.running: list[tuple[LogManager, BasicStreamClient]] = []

    async def node(self, config: LogConfig | None = None, node_id: int = 1) -> LogManager:
        client = self.medium.client(self.clock)
        self.registry = CollectorRegistry()
        manager = await open_logs(
            client,
            self.medium.kv,
            clock=self.clock,
            random=self.random,
            registry=self.registry,
            config=config,
            node_id=node_id,
        )
        self.running.append((manager, client))
        return manager

    def hold_few_changes(self, count: int) -> None:
        """A watch that falls more than `count` changes behind has to read all again."""
        self.medium.kv._changes_held_max = count

    async def crash(self) -> None:
        for manager, client in self.running:
            await client.kill()
            await manager.kill()
        self.running.clear()

    async def stop(self) -> None:
        for manager, client in self.running:
            await manager.close()
            await client.stop()
        self.running.clear()


@asynccontextmanager
async def cluster() -> AsyncIterator[Cluster]:
    made = Cluster()
    try:
        yield made
    finally:
        await made.crash()


def run(test: Callable[[Cluster, LogManager], Awaitable[None]], **config: Any) -> None:
    """Runs `test` with a cluster and its first manager."""

    async def body() -> None:
        async with cluster() as made:
            await test(made, await made.node(LogConfig(**config)))

    asyncio.run(body())
