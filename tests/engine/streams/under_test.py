"""An engine as a conformance class wants it: restarted, crashed, and held back."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TypeVar, TypeVarTuple

from prometheus_client import CollectorRegistry

import streamlog
from streamlog.engine.config import AppendConfig, StreamEngineConfig, UploadConfig
from streamlog.kvstore.interface import KVStore
from streamlog.kvstore.memory.store import MemoryKVStore
from streamlog.model.kv import KVClient
from streamlog.model.stream import StreamClient
from streamlog.objectstore.interface import ObjectInfo, ObjectStore
from streamlog.objectstore.memory import MemoryObjectStore
from streamlog.runtime.buffers import Buffer
from streamlog.runtime.clock import SystemClock
from streamlog.runtime.offload import Lane, ThreadOffload
from streamlog.runtime.rand import SystemRandom
from streamlog.wal.config import WalConfig, WalMode
from streamlog.wiring import Components, OpenEngine, open_metadata_store, open_object_store
from tests.support.slow_store import SlowStore

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
ROOM = 1000
CONFIG = StreamEngineConfig(
    append=AppendConfig(append_bytes_max=ROOM, batch_overhead_bytes=0),
    upload=UploadConfig(upload_interval_ms=5),
    wal=WalConfig(wal_bytes_max=1 << 20, file_bytes=1 << 18),
)


class GatedOffload(ThreadOffload):
    """Holds back WAL writes, which make an append durable with wal=disk."""

    def __init__(self, gate: asyncio.Event) -> None:
        super().__init__()
        self._gate = gate
        self.is_dead = False
        """The process has ended: a write that has not begun is made by nobody."""

    async def run(self, lane: Lane, fn: Callable[[*Ts], T], *args: *Ts) -> T:
        if lane is Lane.WAL:
            await self._gate.wait()
            if self.is_dead and fn.__name__ == "write_sync":
                raise asyncio.CancelledError
        return await super().run(lane, fn, *args)


class GatedStore(SlowStore):
    """Holds back PUTs, which make an append durable with wal=object."""

    def __init__(self, store: ObjectStore, gate: asyncio.Event) -> None:
        super().__init__(store)
        self._gate = gate

    async def put(
        self, key: str, parts: Sequence[Buffer], *, if_absent: bool = False
    ) -> ObjectInfo:
        await self._gate.wait()
        return await super().put(key, parts, if_absent=if_absent)


class EngineUnderTest:
    """Store and metadata outlive the processes on them."""

    room_bytes = ROOM
    client: StreamClient

    def __init__(
        self,
        mode: WalMode,
        folder: Path,
        exit_stack: AsyncExitStack,
        config: StreamEngineConfig = CONFIG,
        store_url: str = "",
    ) -> None:
        """`store_url` empty: store and metadata in memory; else that store, and RocksDB."""
        self._mode: WalMode = mode
        self._config = config
        self._folder = folder
        self._exit = exit_stack
        self._clock = SystemClock()
        self._store_url = store_url
        self._store: ObjectStore | None = None
        self._parts = Components(clock=self._clock)
        self._process = AsyncExitStack()
        self._engine: OpenEngine
        self._gate: asyncio.Event
        self._offload: ThreadOffload

    async def start(self) -> None:
        if self._store is None:
            self._store, kv = await self._open_stores()
            self._parts = dataclasses.replace(self._parts, kv=kv)
        self._process = await self._exit.enter_async_context(AsyncExitStack())
        self._engine, self._gate, self._offload = await self._open(self._process, 1)
        self.client = self._engine.streams

    async def _open_stores(self) -> tuple[ObjectStore, KVStore]:
        if not self._store_url:
            return MemoryObjectStore(self._clock), MemoryKVStore(self._clock)
        offload = ThreadOffload()
        self._exit.push_async_callback(offload.close)
        store = await open_object_store(
            self._store_url,
            self._config,
            self._clock,
            SystemRandom(),
            offload,
            CollectorRegistry(),
        )
        self._exit.push_async_callback(store.close)
        meta = f"rocksdb://{self._folder}/meta"
        kv = await open_metadata_store(meta, self._store_url, self._clock, offload)
        self._exit.push_async_callback(kv.close)
        return store, kv

    @property
    def kv(self) -> KVClient:
        return self._engine.kv

    async def restarted(self) -> None:
        await self._process.aclose()
        await self.start()

    async def crashed(self) -> None:
        await self._engine.kill()
        if isinstance(self._offload, GatedOffload):
            self._offload.is_dead = True
        # A thread that is in a write ends it, whatever became of the process's tasks.
        self._gate.set()
        await self._process.aclose()
        await self.start()

    async def other(self) -> StreamClient:
        engine, _, _ = await self._open(self._exit, 2)
        return engine.streams

    def hold(self) -> None:
        self._gate.clear()

    def release(self) -> None:
        self._gate.set()

    def deadline(self, seconds: float) -> float:
        return self._clock.monotonic() + seconds

    async def _open(
        self, stack: AsyncExitStack, node_id: int
    ) -> tuple[OpenEngine, asyncio.Event, ThreadOffload]:
        gate = asyncio.Event()
        gate.set()
        offload = GatedOffload(gate) if self._mode == "disk" else ThreadOffload()
        assert self._store is not None
        store = GatedStore(self._store, gate) if self._mode == "object" else self._store
        stack.push_async_callback(offload.close)
        engine = await stack.enter_async_context(
            streamlog.open(
                "memory://",
                wal=self._mode,
                wal_dir=self._folder / f"wal{node_id}",
                node_id=node_id,
                config=self._config,
                components=dataclasses.replace(self._parts, offload=offload, store=store),
            )
        )
        return engine, gate, offload
