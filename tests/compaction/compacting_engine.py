"""An engine that compacts small objects soon, and what tests ask of it."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from random import Random
from typing import Any

from prometheus_client import CollectorRegistry

import streamlog
from streamlog.compaction.collect.collector import CollectorConfig
from streamlog.compaction.plan.config import KIB, MIB, CompactionConfig
from streamlog.engine.config import ReadConfig, StreamEngineConfig, UploadConfig
from streamlog.format.rows import ObjectRow
from streamlog.metadata.config import MetadataConfig
from streamlog.model.batch import CreateStreamOptions, OpenStreamOptions, RecordBatch
from streamlog.model.stream import Stream
from streamlog.wiring import Components, OpenEngine

COMPACTION = CompactionConfig(
    compaction_process="inline",
    compaction_interval_ms=10,
    small_objects_min=4,
    large_objects_min=3,
    small_object_bytes=32 * KIB,
    compacted_part_bytes=2 * KIB,
    stream_object_bytes_min=24 * KIB,
    object_bytes_max=128 * KIB,
    spec_bytes_max=96 * KIB,
    compaction_memory_bytes=4 * MIB,
    block_target_bytes=4 * KIB,
)
CONFIG = StreamEngineConfig(
    upload=UploadConfig(upload_interval_ms=5, upload_bytes_target=8 * KIB),
    read=ReadConfig(tail_cache_bytes=0, block_cache_bytes=64 * KIB, index_cache_bytes=16 * KIB),
    collector=CollectorConfig(deletion_delay_ms=50, collect_interval_ms=300),
    compaction=COMPACTION,
    metadata=MetadataConfig(checkpoint_interval_ms=100),
)


def with_compaction(**changes: Any) -> StreamEngineConfig:
    return dataclasses.replace(CONFIG, compaction=dataclasses.replace(COMPACTION, **changes))


BY_HAND = with_compaction(compaction_interval_ms=10**6)


class History:
    """Remembers the appends to each stream, and reads them back."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.payloads: dict[int, list[tuple[int, bytes, bytes]]] = {}
        self.starts: dict[int, int] = {}

    async def append(
        self,
        streams: Sequence[Stream],
        count: int,
        sizes: Sequence[int] = (20, 200, 1500, 5000),
    ) -> None:
        """`count` batches to random streams, each an upload of its own as far as possible."""
        for _ in range(count):
            stream = self.random.choice(streams)
            payload = self.random.randbytes(self.random.choice(sizes))
            attributes = self.random.randbytes(self.random.choice([0, 8]))
            base = stream.next_offset
            await stream.append(RecordBatch(self.random.randint(1, 3), 5, (payload,), attributes))
            self.payloads.setdefault(stream.stream_id, []).append((base, payload, attributes))

    async def check(self, streams: Sequence[Stream]) -> None:
        for stream in streams:
            start = stream.start_offset
            stored = []
            at = start
            while at < stream.confirm_offset:
                result = await stream.fetch(at, stream.confirm_offset, 64 * KIB)
                stored += [(b.base_offset, b"".join(b.parts), b.attributes) for b in result.batches]
                at = result.batches[-1].end_offset
            own = self.payloads.get(stream.stream_id, [])
            ends = [*(base for base, _, _ in own[1:]), stream.next_offset]
            wanted = [one for one, end in zip(own, ends, strict=False) if end > start]
            assert stored == wanted
            attributes = await stream.attributes(start, stream.confirm_offset)
            assert [one.attributes for one in attributes] == [one[2] for one in wanted]


async def compacted(opened: OpenEngine) -> None:
    """All is in the store, and nothing is due."""
    await opened.drain()
    assert opened.compactor is not None
    await opened.compactor.compact_all()


async def live(opened: OpenEngine) -> list[ObjectRow]:
    """Since the last checkpoint nothing has died."""
    await opened.metadata.checkpoint()
    return [one.row for one in await opened.metadata.live_objects()]


def stored(path: Path) -> set[str]:
    """Keys of the data objects in a local store."""
    return {f"data/{one.name}" for one in (path / "data").rglob("*") if one.is_file()}


def sample(opened: OpenEngine, name: str, **labels: str) -> float:
    value = opened.registry.get_sample_value(f"streamlog_compaction_{name}", labels)
    return 0.0 if value is None else value


def run(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(scenario(), 120))


def engine(path: Path, config: StreamEngineConfig = CONFIG) -> Any:
    return streamlog.open(
        f"local://{path}", config=config, components=Components(registry=CollectorRegistry())
    )


async def make(opened: OpenEngine, count: int) -> list[Stream]:
    return await opened.streams.create_and_open_streams([CreateStreamOptions()] * count)


async def again(opened: OpenEngine, streams: Sequence[Stream]) -> list[Stream]:
    return [
        await opened.streams.open_stream(stream.stream_id, OpenStreamOptions())
        for stream in streams
    ]
