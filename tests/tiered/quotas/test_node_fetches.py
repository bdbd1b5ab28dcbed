"""The quota of reads as a node's Fetch keeps it: in virtual time, through Kafka's handler."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from streamlog.kafka.messages.fetch_response import PartitionData
from streamlog.model.partition import TopicPartition
from streamlog.server.context import RequestContext
from streamlog.server.services.records.requests import (
    FetchCall,
    FetchPartition,
    FetchTopic,
)
from streamlog.testing.logs.log_conformance import append, encoded
from streamlog.testing.simulation.world.loop import run
from streamlog.tiered.config import RemoteLogConfig
from streamlog.tiered.reading.chunks import ChunkConfig
from tests.server.kafka.fetch_world import FetchWorld, answered, offsets, wanted, world_over
from tests.support.server_fakes import FakeLogs, FakeTopic
from tests.tiered.quotas.quota_node import RATE, QuotaNode, most_above, quota_node, rates_over

BUCKETS = 11
BATCH_BYTES = 200
READ_BYTES = 400
REMOTE, LOCAL, IDLE = range(3)
"""Partitions: one of remote records, one of local ones, and one without any."""
FETCH_WAIT_S = RemoteLogConfig().fetch_wait_ms / 1000


class ThrottledFetches:
    def __init__(self, node: QuotaNode) -> None:
        logs = FakeLogs()
        logs.topics["t"] = FakeTopic("t", str(node.topic_id), len(node.logs))
        opened = {TopicPartition("t", number): log for number, log in enumerate(node.logs)}
        logs.open = cast(Any, opened)
        self.node = node
        self.world: FetchWorld = world_over(logs, clock=node.clock)
        self.end = node.log.local_log_start_offset

    async def fetch(
        self, *partitions: int, offset: int = 0, wait_ms: int = 500
    ) -> dict[int, PartitionData]:
        """Of the remote partition from `offset` on."""
        parts = [
            wanted(number, offset if number == REMOTE else 0, max_bytes=READ_BYTES)
            for number in partitions
        ]
        response = await self.world.fetch(parts=parts, wait_ms=wait_ms, max_bytes=1 << 20)
        assert not any(part.error_code for part in answered(response).values())
        return answered(response)

    def owe(self, seconds: float) -> None:
        """Reads have used up what the quota pays in so many seconds."""
        self.node.tier_quotas.fetch.record(int(RATE * seconds))


def on_node(
    test: Callable[[ThrottledFetches], Awaitable[None]], *, readers: int = 10, segments: int = 40
) -> None:
    async def body() -> None:
        config = RemoteLogConfig(
            fetch_bytes_per_second=RATE,
            fetch_windows=BUCKETS,
            reader_tasks=readers,
            chunks=ChunkConfig(chunk_bytes=8 * BATCH_BYTES),
        )
        async with quota_node(config, partitions=3, segment_bytes=20 * BATCH_BYTES) as node:
            await node.fill(node.log, segments, BATCH_BYTES)
            await append(node.logs[LOCAL], encoded([b"local"], at_ms=node.clock.now_ms()))
            await node.configure_all(local_retention_bytes="0")
            await node.copy()
            await node.retain()
            fetches = ThrottledFetches(node)
            assert fetches.end == 20 * segments
            await test(fetches)

    run(body, limit_s=1e6)


def now() -> float:
    return asyncio.get_running_loop().time()


@pytest.mark.parametrize("order", [(REMOTE, LOCAL, IDLE), (IDLE, LOCAL, REMOTE)])
def test_the_throttled_partition_is_empty_and_its_neighbour_is_served_at_once(
    order: tuple[int, ...],
) -> None:
    async def body(t: ThrottledFetches) -> None:
        t.owe(1000)
        began = now()
        for _ in range(100):
            parts = await t.fetch(*order, wait_ms=30_000)
            assert offsets(parts[LOCAL]) == [0]
            assert offsets(parts[REMOTE]) == []
            assert parts[REMOTE].high_watermark == t.node.log.high_watermark
        assert now() == began
        assert t.node.slow.gets == 0

    on_node(body)


@pytest.mark.parametrize(
    ("wait_ms", "waited_s"), [(0, FETCH_WAIT_S), (500, 0.5), (30_000, FETCH_WAIT_S)]
)
def test_a_throttled_client_waits_as_an_idle_one_and_costs_no_reads(
    wait_ms: int, waited_s: float
) -> None:
    async def body(t: ThrottledFetches) -> None:
        t.owe(1000)
        began, fetches = now(), 50
        for _ in range(fetches):
            parts = await t.fetch(REMOTE, IDLE, wait_ms=wait_ms)
            assert not any(offsets(part) for part in parts.values())
        assert now() - began == pytest.approx(fetches * waited_s, rel=0.01)
        # Each looked once, and none of them asked the store.
        assert t.node.quota_metric("fetch_throttles_total") == fetches
        assert t.node.slow.gets == 0

    on_node(body)


def test_a_read_that_waits_goes_through_when_the_window_has_room() -> None:
    async def body(t: ThrottledFetches) -> None:
        t.owe(20.2)
        began, fetches = now(), 0
        while True:
            fetches += 1
            parts = await t.fetch(REMOTE)
            if offsets(parts[REMOTE]):
                break
        assert offsets(parts[REMOTE]) == [0, 1]
        assert now() - began == pytest.approx(20.2, abs=0.002)
        assert fetches == 41
        t.owe(1000)
        waiting = asyncio.ensure_future(t.fetch(REMOTE, offset=2))
        await asyncio.sleep(0.1)
        t.node.manager.set_quotas(RATE, RATE * 1000)
        assert offsets((await waiting)[REMOTE]) == [2, 3]
        assert now() - began == pytest.approx(20.3, abs=0.002)

    on_node(body)


def test_the_services_own_fetch_waits_too() -> None:
    """gRPC's. What was read does not wait for room for more."""

    async def body(t: ThrottledFetches) -> None:
        t.owe(20.2)
        topic = FetchTopic("t", [FetchPartition(REMOTE, 0), FetchPartition(IDLE, 0)])
        call = FetchCall([topic], max_wait_ms=500)
        began, fetches = now(), 0
        while True:
            fetches += 1
            (result,) = await t.world.service.fetch(RequestContext("test"), call)
            if result.partitions[0].size_bytes:
                break
        assert now() - began == pytest.approx(20.2, abs=0.002)
        assert fetches == 41

    on_node(body)


@pytest.mark.parametrize("readers", [1, 10])
@pytest.mark.parametrize("store_s", [0, 0.2])
def test_fetches_get_the_quota_over_windows_and_are_above_it_by_those_under_way(
    readers: int, store_s: float
) -> None:
    clients = 20

    async def body(t: ThrottledFetches) -> None:
        uses: list[tuple[float, int]] = []

        async def latency(call: str) -> None:
            if call == "fetch":
                await asyncio.sleep(store_s)

        t.node.slow.strike = latency
        until = now() + 6 * BUCKETS

        async def read(number: int) -> None:
            offset = t.end * number // clients
            while now() < until:
                (part,) = (await t.fetch(REMOTE, offset=offset)).values()
                if found := offsets(part):
                    uses.append((now(), len(cast(bytes, part.records))))
                    offset = found[-1] + 1 if found[-1] + 1 < t.end else 0

        await asyncio.gather(*map(read, range(clients)))
        # An empty window lets in one bucket and those of all readers at once: a debt for a while.
        rates = rates_over([use for use in uses if use[0] >= BUCKETS], 3 * BUCKETS)
        assert rates
        assert min(rates) >= 0.95
        assert max(rates) <= 1.05
        above = most_above(uses, BUCKETS + 1)
        assert above <= 2 * RATE + readers * READ_BYTES
        if readers > 1 and store_s:
            assert above > 3 * READ_BYTES

    on_node(body, readers=readers)


def test_throttled_fetches_are_in_the_nodes_metrics() -> None:
    async def body(t: ThrottledFetches) -> None:
        assert t.node.quota_metric("fetch_throttle_time_max_ms") == 0
        t.owe(10.1)
        for _ in range(21):
            await t.fetch(REMOTE)
        # The last one waited for 0.1 s and was let in.
        mean_ms = (20 * FETCH_WAIT_S + 0.1) / 21 * 1000
        assert t.node.quota_metric("fetch_throttle_time_avg_ms") == pytest.approx(mean_ms, rel=0.01)
        assert t.node.quota_metric("fetch_throttle_time_max_ms") == pytest.approx(500)
        assert t.node.quota_metric("fetch_throttles_total") == 21
        assert t.node.quota_metric("fetch_quota_bytes_per_second") == RATE
        await asyncio.sleep(61)
        assert t.node.quota_metric("fetch_throttle_time_max_ms") == 0

    on_node(body)
