"""A machine for wal=disk: a disk, a store and metadata that outlive the engines opened on them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from prometheus_client import CollectorRegistry

import streamlog
from streamlog.engine.config import StreamEngineConfig
from streamlog.kvstore.memory.store import MemoryKVStore
from streamlog.objectstore.memory import MemoryObjectStore
from streamlog.runtime.clock import SystemClock
from streamlog.runtime.rand import SeededRandom
from streamlog.testing.torn_disk import TornDisk
from streamlog.testing.torn_media import DiskFault
from streamlog.wiring import Components, OpenEngine
from tests.wal.wal_helpers import InlineOffload


class DiskMachine:
    """`engine()` opens an engine on it; `kill` and `cut_power` are ways to end one."""

    def __init__(
        self,
        config: StreamEngineConfig,
        *,
        seed: int = 1,
        disk: TornDisk | None = None,
        store: MemoryObjectStore | None = None,
    ) -> None:
        self.config = config
        self.random = SeededRandom(seed)
        self.disk = disk or TornDisk(SeededRandom(seed))
        self.store = store or MemoryObjectStore(SystemClock())
        self.kv = MemoryKVStore(SystemClock())

    @asynccontextmanager
    async def engine(
        self, end: Callable[[], None] | None = None, *, config: StreamEngineConfig | None = None
    ) -> AsyncIterator[OpenEngine]:
        """An engine on node 1, closed in the end; with `end`, killed, and then `end` is called.

        `end` does to the disk what the end of the process does: `kill` or `cut_power`.
        """
        async with streamlog.open(
            "memory://",
            meta="memory://",
            wal="disk",
            node_id=1,
            config=config or self.config,
            components=Components(
                registry=CollectorRegistry(),
                random=self.random,
                offload=InlineOffload(),
                store=self.store,
                kv=self.kv,
                disk=self.disk,
            ),
        ) as engine:
            yield engine
            if end is not None:
                await engine.kill()
                end()

    def fail_writes(self) -> None:
        """Every write fails from now on, until the machine is killed or loses its power."""

        def plan(operation: str, name: str) -> DiskFault | None:
            return DiskFault.IO_ERROR if operation == "write" else None

        self.disk.plan_faults = plan

    def kill(self) -> None:
        """As kill -9: the machine stays up."""
        self.disk.plan_faults = None
        self.disk.restart()

    def cut_power(self) -> None:
        """What was not synchronised may be lost."""
        self.disk.plan_faults = None
        self.disk.crash()
