"""A whole engine over stores that outlive it, and helpers to fill, break and check it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import streamlog
from streamlog.engine.config import StreamEngineConfig
from streamlog.kvstore.interface import KVStore
from streamlog.kvstore.memory.store import MemoryKVStore
from streamlog.log.api.abstract_log import AbstractLog
from streamlog.log.api.config import LogConfig
from streamlog.model.batch import RecordBatch
from streamlog.model.partition import TopicPartition
from streamlog.model.stream import Stream
from streamlog.objectstore.interface import ObjectStore
from streamlog.objectstore.memory import MemoryObjectStore
from streamlog.repair.backup.backup import backup
from streamlog.repair.backup.file import Backup, decode
from streamlog.repair.backup.restore import restore
from streamlog.repair.findings import RepairReport
from streamlog.repair.fsck.fsck import FsckOptions, fsck
from streamlog.repair.recover.recover import RecoverOptions, recover
from streamlog.runtime.clock import SystemClock
from streamlog.runtime.offload import ThreadOffload
from streamlog.runtime.rand import SeededRandom
from streamlog.wiring import Components, OpenEngine
from tests.support.server_harness import batch

TIMEOUT_S = 90.0


@dataclass
class Cluster:
    """`node()` opens an engine in it; the stores stay."""

    clock: SystemClock = field(default_factory=SystemClock)
    random: SeededRandom = field(default_factory=lambda: SeededRandom(5))
    config: StreamEngineConfig = field(default_factory=StreamEngineConfig)
    logs: LogConfig = field(default_factory=LogConfig)

    def __post_init__(self) -> None:
        self.store: ObjectStore = MemoryObjectStore(self.clock)
        self.kv: KVStore = MemoryKVStore(self.clock)
        self.offload = ThreadOffload()

    @asynccontextmanager
    async def node(
        self, node_id: int = 1, *, crash: bool = False, wal: Literal["object"] = "object"
    ) -> AsyncIterator[OpenEngine]:
        parts = Components(store=self.store, kv=self.kv, random=self.random)
        async with streamlog.open(
            "memory://",
            meta="memory://",
            wal=wal,
            node_id=node_id,
            config=self.config,
            logs=self.logs,
            components=parts,
        ) as engine:
            yield engine
            if crash:
                await engine.kill()

    def lose_metadata(self) -> None:
        self.kv = MemoryKVStore(self.clock)

    async def fsck(
        self,
        *,
        deep: bool = True,
        repair: bool = False,
        force: bool = False,
        cluster_id: str | None = None,
    ) -> RepairReport:
        return await fsck(
            self.kv,
            self.store,
            clock=self.clock,
            random=self.random,
            offload=self.offload,
            options=FsckOptions(deep, repair, force, cluster_id),
        )

    async def is_clean(self) -> None:
        report = await self.fsck()
        assert report.is_clean, [str(one) for one in report.findings]


def run(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(scenario(), TIMEOUT_S))


async def produce(log: AbstractLog, *values: bytes) -> int:
    """One batch, acknowledged; its base offset."""
    return (await (await log.append(batch(*values)))).base_offset


async def consume(log: AbstractLog) -> bytes:
    """The bytes of all batches."""
    parts, at = [], log.log_start_offset
    while at < log.high_watermark:
        fetched = await log.fetch(at, 1 << 20)
        parts += [bytes(part) for part in fetched.parts]
        at = fetched.next_offset
    return b"".join(parts)


async def partition(engine: OpenEngine, topic: str, number: int = 0) -> AbstractLog:
    return await engine.logs.log(TopicPartition(topic, number))


async def append(stream: Stream, *payloads: bytes) -> None:
    for payload in payloads:
        await stream.append(RecordBatch(1, 1000, (payload,)))


async def read(stream: Stream) -> dict[int, bytes]:
    """Payload by offset."""
    payloads: dict[int, bytes] = {}
    at = stream.start_offset
    while at < stream.confirm_offset:
        for one in (await stream.fetch(at, stream.confirm_offset, 1 << 20)).batches:
            payloads[one.base_offset] = b"".join(one.parts)
            at = one.end_offset
    return payloads


async def recovered(cluster: Cluster, **options: Any) -> RepairReport:
    return await recover(
        cluster.kv,
        cluster.store,
        clock=cluster.clock,
        random=cluster.random,
        offload=cluster.offload,
        options=RecoverOptions(**options),
    )


async def backed_up(cluster: Cluster) -> Backup:
    pieces = [
        piece async for piece in backup(cluster.kv, clock=cluster.clock, offload=cluster.offload)
    ]
    return decode(b"".join(pieces), "test")


async def restored(cluster: Cluster, content: Backup, **options: Any) -> RepairReport:
    return await restore(
        cluster.kv,
        cluster.store,
        content,
        clock=cluster.clock,
        random=cluster.random,
        offload=cluster.offload,
        options=RecoverOptions(**options),
    )
