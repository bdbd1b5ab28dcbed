"""Requests about many partitions: their cost in waits, calls and opens."""

from __future__ import annotations

import asyncio

import streamlog
from streamlog.client.aio import Producer
from streamlog.compaction.plan.config import CompactionConfig
from streamlog.engine.config import StreamEngineConfig
from streamlog.kvstore.memory.store import MemoryKVStore
from streamlog.log.api.abstract_log import Isolation
from streamlog.model.partition import TopicPartition
from streamlog.objectstore.memory import MemoryObjectStore
from streamlog.runtime.rand import SeededRandom
from streamlog.server.context import RequestContext, allow_all
from streamlog.server.services.log import LogService, PartitionQuestion
from streamlog.settings.limits import LimitsConfig
from streamlog.wiring import Components
from tests.engine.remote import InlineOffload, LoopClock, latency, virtually
from tests.support.running_node import running_node
from tests.support.slow_store import SlowStore

PARTITIONS = 96
LATENCY_S = 0.1


def test_the_partitions_of_a_request_are_opened_concurrently() -> None:
    """In virtual time, in which only waits for the store take time."""
    clock = LoopClock()
    store = SlowStore(MemoryObjectStore(clock), latency(LATENCY_S * 1000), random=SeededRandom(1))
    kv = MemoryKVStore(clock)
    config = StreamEngineConfig(compaction=CompactionConfig(compaction_process="off"))

    def components() -> Components:
        return Components(
            clock=clock, random=SeededRandom(1), offload=InlineOffload(), store=store, kv=kv
        )

    async def scenario() -> None:
        async with streamlog.open(
            "memory://", meta="memory://", config=config, components=components()
        ) as engine:
            # An object for each, so that nothing is read ahead for others.
            for index in range(PARTITIONS):
                await engine.logs.create_topic(f"t{index}", 1)
        async with streamlog.open(
            "memory://", meta="memory://", config=config, components=components()
        ) as engine:
            service = LogService(
                engine.logs, clock=clock, authorize=allow_all, limits=LimitsConfig()
            )
            questions = [PartitionQuestion(f"t{index}", 0, -2) for index in range(PARTITIONS)]
            began = clock.monotonic()
            answers = await service.list_offsets(
                RequestContext(), questions, Isolation.READ_UNCOMMITTED
            )
            took_s = clock.monotonic() - began
            assert [getattr(answer, "offset", answer) for answer in answers] == [0] * PARTITIONS
            # One after another each would wait twice at least.
            assert took_s < PARTITIONS * LATENCY_S / 2
            assert engine.logs.open_log(TopicPartition("t0", 0)) is not None

    virtually(scenario)


def test_first_records_open_only_their_own_partitions() -> None:
    """A producer learns what it needs of a topic without its partitions being opened."""

    async def main() -> None:
        async with running_node() as running:
            engine = running.node.engine
            assert engine is not None
            await engine.logs.create_topic("wide", 50)
            for number in range(30):
                await engine.logs.create_topic(f"t{number}", 1)
            async with Producer(running.banner.grpc) as producer:
                for number in range(30):
                    await producer.send(f"t{number}", b"first")
                await producer.send("wide", b"first", partition=7)
                await producer.flush()
            calls = "streamlog_requests_total"
            asked = [
                running.metric(calls, method=f"AdminService/{name}", status="OK")
                for name in ("DescribeTopics", "DescribeConfigs", "ListTopics")
            ]
            assert sum(asked) < 30
            opened = [
                index
                for index in range(50)
                if engine.logs.open_log(TopicPartition("wide", index)) is not None
            ]
            assert opened == [7]

    asyncio.run(asyncio.wait_for(main(), 60))
