"""A small world for metadata tests: one KV store, one object store, tenures opened in it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, Literal, TypeVar, TypeVarTuple

from prometheus_client import CollectorRegistry

from streamlog.kvstore.interface import KVStore
from streamlog.kvstore.memory.store import MemoryKVStore
from streamlog.metadata.config import MetadataConfig
from streamlog.metadata.interface import (
    CommitEntry,
    CreateEntry,
    NewObject,
    ObjectRow,
    RangeRow,
)
from streamlog.metadata.open import open_metadata
from streamlog.metadata.session import MetadataSession
from streamlog.objectstore.interface import ObjectStore
from streamlog.objectstore.memory import MemoryObjectStore
from streamlog.runtime.clock import Clock, SystemClock
from streamlog.runtime.offload import Lane
from streamlog.runtime.rand import SeededRandom
from tests.support.object_ids import take_id

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
CONFIG = MetadataConfig(retry_backoff_ms=1, retry_backoff_max_ms=5)


class InlineOffload:
    """Runs the work at the call."""

    async def run(self, lane: Lane, fn: Callable[[*Ts], T], *args: *Ts) -> T:
        return fn(*args)

    async def close(self) -> None:
        pass


class World:
    def __init__(self, *, kv: KVStore | None = None, config: MetadataConfig = CONFIG) -> None:
        self.clock: Clock = SystemClock()
        self.kv: KVStore = kv or MemoryKVStore(self.clock)
        self.store: ObjectStore = MemoryObjectStore(self.clock)
        self.config = config
        self.random = SeededRandom(7)
        self.registry = CollectorRegistry()

    async def open(
        self,
        node_id: int = 1,
        *,
        wal_mode: Literal["object", "disk"] = "object",
        kv: KVStore | None = None,
        store: ObjectStore | None = None,
        offload: Any = None,
        **settings: Any,
    ) -> MetadataSession:
        self.registry = CollectorRegistry()
        return await open_metadata(
            kv or self.kv,
            store or self.store,
            cluster_id="test",
            node_id=node_id,
            wal_mode=wal_mode,
            clock=self.clock,
            random=self.random,
            offload=offload or InlineOffload(),
            registry=self.registry,
            config=replace(self.config, **settings),
        )

    @asynccontextmanager
    async def tenure(self, node_id: int = 1, **settings: Any) -> AsyncIterator[MetadataSession]:
        """A tenure that has taken over what the node held before; closed at the end."""
        metadata = await self.open(node_id, **settings)
        try:
            await metadata.take_over_previous(frozenset())
            yield metadata
        finally:
            await metadata.close(drained=True)


async def create(metadata: MetadataSession, count: int = 1, **tags: str) -> list[int]:
    """New streams under epoch 1."""
    ids = await metadata.allocate_stream_ids(count)
    await metadata.commit(CommitEntry(creates=[CreateEntry(s, 1, tags) for s in ids]))
    return ids


async def new_object(
    metadata: MetadataSession, rows: Sequence[tuple[int, int, int, int]]
) -> NewObject:
    object_id = await take_id(metadata)
    return NewObject(
        ObjectRow(object_id, 1000 + object_id % 1000, 900, 100, object_id & 0xFFFF),
        [RangeRow(*row) for row in rows],
    )


async def append(metadata: MetadataSession, stream_id: int, count: int) -> int:
    """Commits an object with `count` offsets at the stream's end; its id."""
    row = metadata.stream(stream_id)
    assert row is not None
    new = await new_object(metadata, [(stream_id, row.epoch, row.end, row.end + count)])
    await metadata.commit(CommitEntry(objects=[new]))
    return new.row.object_id


async def ranges_of(metadata: MetadataSession, stream_id: int) -> list[tuple[int, int, int]]:
    """Every live range of the stream: start, end, object id."""
    row = metadata.stream(stream_id)
    assert row is not None
    ranges, at = [], row.start
    while at < row.end:
        part = await metadata.locate(stream_id, at, row.end, limit=7)
        assert part, f"no range at {at} of stream {stream_id}"
        for one in part:
            assert one.start == at
            ranges.append((one.start, one.end, one.object.object_id))
            at = one.end
    return ranges
