"""What a node does to stop does not grow with its open partitions, one by one."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import streamlog
from streamlog.codec.records import encode_values
from streamlog.kvstore.memory.store import MemoryKVStore
from streamlog.model.partition import TopicPartition
from streamlog.objectstore.interface import ObjectInfo
from streamlog.objectstore.memory import MemoryObjectStore
from streamlog.runtime.buffers import Buffer
from streamlog.runtime.clock import SystemClock
from streamlog.wiring import Components, OpenEngine

PARTITIONS = 300


async def _written(engine: OpenEngine) -> None:
    """One record in each partition, all of them open."""
    partitions = [TopicPartition("t", index) for index in range(PARTITIONS)]
    logs = [await engine.logs.log(partition) for partition in partitions]
    await asyncio.gather(
        *[await log.append(encode_values([b"value"], timestamp_ms=1).data) for log in logs]
    )


def test_a_clean_stop_commits_few_records_and_the_next_start_moves_no_stream() -> None:
    async def main() -> None:
        clock = SystemClock()
        store, kv = MemoryObjectStore(clock), MemoryKVStore(clock)
        components = Components(store=store, kv=kv)
        async with streamlog.open("memory://", meta="memory://", components=components) as engine:
            await engine.logs.create_topic("t", PARTITIONS)
            await _written(engine)
            before = await kv.revision()
        # The last uploads, a checkpoint, the seal: but no commit for each partition.
        assert await kv.revision() - before < PARTITIONS / 10

        async with streamlog.open("memory://", meta="memory://", components=components) as engine:
            before = await kv.revision()
            logs = [
                await engine.logs.log(TopicPartition("t", index)) for index in range(PARTITIONS)
            ]
            assert {log.high_watermark for log in logs} == {1}
            # A new leader epoch for each, without a transaction for each stream.
            assert {log.leader_epoch for log in logs} == {2}
            assert await kv.revision() - before < PARTITIONS / 10

    asyncio.run(asyncio.wait_for(main(), 60))


class HeldStore(MemoryObjectStore):
    """PUTs of data wait until `gate` is set."""

    def __init__(self) -> None:
        super().__init__(SystemClock())
        self.gate = asyncio.Event()
        self.gate.set()
        self.has_waiters = asyncio.Event()

    async def put(
        self, key: str, parts: Sequence[Buffer], *, if_absent: bool = False
    ) -> ObjectInfo:
        if key.startswith("data/") and not self.gate.is_set():
            self.has_waiters.set()
            await self.gate.wait()
        return await super().put(key, parts, if_absent=if_absent)


def test_appends_under_way_when_a_node_stops_are_answered_and_checkpointed() -> None:
    async def main() -> None:
        store, kv = HeldStore(), MemoryKVStore(SystemClock())
        components = Components(store=store, kv=kv)
        async with streamlog.open("memory://", meta="memory://", components=components) as engine:
            await engine.logs.create_topic("t", 1)
            log = await engine.logs.log(TopicPartition("t", 0))
            store.gate.clear()
            data = encode_values([b"value"], timestamp_ms=1).data
            acknowledged = asyncio.ensure_future(await log.append(data))
            await store.has_waiters.wait()
            closing = asyncio.ensure_future(engine.close())
            for _ in range(100):
                await asyncio.sleep(0)
            assert not acknowledged.done()
            assert not closing.done()
            store.gate.set()
            assert (await acknowledged).base_offset == 0
            await closing
        async with streamlog.open("memory://", meta="memory://", components=components) as engine:
            log = await engine.logs.log(TopicPartition("t", 0))
            assert log.high_watermark == 1

    asyncio.run(asyncio.wait_for(main(), 60))
