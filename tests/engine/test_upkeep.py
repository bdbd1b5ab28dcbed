"""An engine without upkeep keeps all that its settings would delete; virtual time."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Any

import pytest

import streamlog
from streamlog.codec.records import encode_values
from streamlog.compaction.collect.collector import CollectorConfig
from streamlog.coordinator.api import TransactionFilter
from streamlog.coordinator.config import TransactionConfig
from streamlog.engine.config import StagingConfig, StreamEngineConfig
from streamlog.kvstore.memory.store import MemoryKVStore
from streamlog.log.api.config import LogConfig
from streamlog.log.api.topic_config import DEFAULTS
from streamlog.metadata.config import MetadataConfig
from streamlog.model.partition import TopicPartition
from streamlog.objectstore.memory import MemoryObjectStore
from streamlog.runtime.rand import SeededRandom
from streamlog.wiring import Components, OpenEngine
from tests.engine.harness import batch, until
from tests.engine.remote import InlineOffload, LoopClock, virtually

OLD, COMPACTED = TopicPartition("old", 0), TopicPartition("compacted", 0)
COUNT = 10
LONG_MS = 3_600_000
SHORT = {
    "config": StreamEngineConfig(
        staging=StagingConfig(sweep_interval_ms=1000, writer_memory_ms=1000),
        collector=CollectorConfig(collect_interval_ms=1000, deletion_delay_ms=0),
        metadata=MetadataConfig(checkpoint_interval_ms=1000),
    ),
    "logs": LogConfig(
        topic_defaults=replace(DEFAULTS, retention_ms=1000, segment_ms=1000),
        retention_check_interval_ms=1000,
    ),
    "transactions": TransactionConfig(id_expiration_ms=1000, expiration_interval_ms=1000),
}
"""What is deleted by these is gone within seconds."""
LONG = {
    "config": StreamEngineConfig(collector=CollectorConfig(deletion_delay_ms=LONG_MS)),
    "logs": LogConfig(cleaner_enable=False),
}
"""What the node itself is opened with."""


class World:
    """What outlives an engine."""

    def __init__(self) -> None:
        self.clock = LoopClock()
        self.store = MemoryObjectStore(self.clock)
        self.kv = MemoryKVStore(self.clock)

    def opened(
        self, settings: dict[str, Any], **how: Any
    ) -> AbstractAsyncContextManager[OpenEngine]:
        components = Components(
            clock=self.clock,
            random=SeededRandom(1),
            offload=InlineOffload(),
            store=self.store,
            kv=self.kv,
        )
        return streamlog.open(
            "memory://", meta="memory://", wal="object", components=components, **settings, **how
        )

    async def fill(self) -> None:
        async with self.opened(LONG) as engine:
            stream = await engine.streams.create_and_open_stream()
            staged = await engine.staging.stage("w", "1", {stream.stream_id: [batch(b"staged")]})
            await engine.staging.attach("w", 0, [staged.object_id])
            await stream.destroy()
            await engine.transactions.ensure_topic()
            await until(lambda: engine.transactions.hosted.progress() is None)
            await engine.transactions.init_producer_id("t", 1000)
            await engine.logs.create_topic(OLD.topic, 1)
            await engine.logs.create_topic(
                COMPACTED.topic, 1, {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}
            )
            for partition in (OLD, COMPACTED):
                log = await engine.logs.log(partition)
                values = [b"%d" % number for number in range(COUNT)]
                data = encode_values(
                    values, timestamp_ms=self.clock.now_ms(), keys=[b"key"] * COUNT
                ).data
                await (await log.append(data))
                await log.roll()

    async def kept(self) -> dict[str, Any]:
        async with self.opened(LONG) as engine:
            old, compacted = [await engine.logs.log(one) for one in (OLD, COMPACTED)]
            await until(lambda: engine.transactions.hosted.progress() is None)
            return {
                "writer": engine.staging.writer("w").last_epoch,
                "ids": len(await engine.transactions.transactions(TransactionFilter())),
                "from": old.log_start_offset,
                "bytes": compacted.size_bytes,
                "objects": {one.key for one in (await self.store.list("data/")).objects},
            }


@pytest.mark.parametrize("upkeep", [True, False])
def test_settings_delete_only_with_upkeep(upkeep: bool) -> None:
    async def scenario() -> None:
        world = World()
        await world.fill()
        before = await world.kept()
        async with world.opened(SHORT, upkeep=upkeep):
            await asyncio.sleep(60)
        after = await world.kept()
        assert after.keys() == before.keys()
        if upkeep:
            assert [name for name in after if after[name] == before[name]] == []
        else:
            objects = before.pop("objects")
            assert objects <= after.pop("objects")
            assert after == before

    virtually(scenario)
