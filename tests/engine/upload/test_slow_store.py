"""Writing to a store that is slow or hangs; in virtual time."""

from __future__ import annotations

import asyncio
import dataclasses
import math
from collections import deque
from collections.abc import Iterator

import pytest

from streamlog.engine.config import (
    MIB,
    AppendConfig,
    FlushConfig,
    ReadConfig,
    StreamEngineConfig,
    UploadConfig,
)
from streamlog.model.batch import AppendResult
from streamlog.objectstore.memory import MemoryObjectStore
from streamlog.runtime.rand import SeededRandom
from streamlog.wal.config import WalMode
from tests.engine.harness import batch, payloads, read_all, sent, until
from tests.engine.remote import RemoteWorld, latency, virtually
from tests.support.metrics import value_of
from tests.support.slow_store import Latency, SlowStore, Traffic

MODES: list[WalMode] = ["disk", "object"]
PAYLOAD = bytes(256 * 1024)


def p(share: float, values: list[float]) -> float:
    return sorted(values)[min(len(values) - 1, math.ceil(share * len(values)) - 1)]


@pytest.mark.parametrize(("latency_ms", "link"), [(20, 120e6), (100, 120e6), (300, 60e6)])
def test_latency_costs_no_throughput_until_the_byte_bound(latency_ms: float, link: float) -> None:
    """The link stays full."""
    total = 192 * MIB
    seconds = 0.0
    world = RemoteWorld("object", dataclasses.replace(latency(latency_ms), link_bytes_per_s=link))

    async def scenario() -> None:
        nonlocal seconds
        loop = asyncio.get_running_loop()
        async with world.engine() as (streams, engine):
            stream = await streams.create_and_open_stream()
            # What is usual for this size is known from then on.
            await asyncio.gather(*[stream.append(batch(PAYLOAD)) for _ in range(512)])
            world.store.traffic = Traffic()
            began = loop.time()
            appends = [stream.append(batch(PAYLOAD)) for _ in range(total // len(PAYLOAD))]
            await asyncio.gather(*appends)
            seconds = loop.time() - began
            assert engine.budget.used_bytes == 0

    virtually(scenario)
    assert total / (seconds - 2 * latency_ms / 1000) > 0.9 * link
    assert world.store.traffic.put_bytes <= 1.05 * total
    assert world.store.traffic.puts <= 1.1 * total / (8 * MIB)


def test_at_the_byte_bound_order_costs_no_throughput() -> None:
    """Against raw PUTs with as many bytes in flight, of which each begins when any other ends.
    Everything is an eighth of its default."""
    total, payload = 192 * MIB, bytes(32 * 1024)
    config = StreamEngineConfig(
        append=AppendConfig(append_bytes_max=6 * MIB, batch_overhead_bytes=128),
        flush=FlushConfig(flush_bytes_target=MIB),
        read=ReadConfig(tail_cache_bytes=7 * MIB),
    )
    world = RemoteWorld("object", latency(300), config)
    raw = SlowStore(MemoryObjectStore(world.clock), latency(300), random=SeededRandom(3))
    seconds: list[float] = []

    async def worker(numbers: Iterator[int]) -> None:
        for number in numbers:
            await raw.put(f"put/{number}", [b""])

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        numbers = iter(range(total // MIB))
        await asyncio.gather(*[worker(numbers) for _ in range(6)])
        seconds.append(loop.time() - began)
        async with world.engine() as (streams, engine):
            stream = await streams.create_and_open_stream()
            began = loop.time()
            appends = [stream.append(batch(payload)) for _ in range(total // len(payload))]
            held = 0
            for append in appends:
                await append
                held = max(held, engine.tails.held_bytes)
            seconds.append(loop.time() - began)
            assert held <= 7 * MIB
            assert engine.budget.used_bytes == engine.upload_credit.used_bytes == 0

    virtually(scenario)
    assert seconds[0] / seconds[1] > 0.9


def test_one_put_in_a_thousand_that_hangs_delays_few_acks() -> None:
    moods = dataclasses.replace(latency(60), hanging_put_share=0.001)
    world = RemoteWorld("object", moods)
    waits: list[float] = []

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        async with world.engine() as (streams, engine):
            stream = await streams.create_and_open_stream()
            under_way: deque[asyncio.Future[None]] = deque()

            async def append() -> None:
                began = loop.time()
                await stream.append(batch(b"x" * 1000))
                waits.append(loop.time() - began)

            for _ in range(30_000):
                under_way.append(asyncio.ensure_future(append()))
                await asyncio.sleep(0.01)
                while under_way and under_way[0].done():
                    under_way.popleft().result()
            await asyncio.gather(*under_way)
            assert value_of(engine.metrics.hedged) >= 2

    virtually(scenario)
    usual = [seconds for seconds in world.store.traffic.put_seconds if seconds < 30]
    assert len(world.store.traffic.put_seconds) > 2500
    assert p(0.999, waits) <= 0.1 + 5 * p(0.99, usual)
    assert world.store.traffic.puts < 1.02 * len(world.metadata.commits) + 20


def test_a_put_that_hangs_after_a_pause_is_hedged_as_soon_as_before_it() -> None:
    """A pause of the machine makes every PUT that is under way slow, and says nothing of others."""
    usual, paused = latency(10), latency(2000)
    config = StreamEngineConfig(flush=FlushConfig(put_rate_max_per_s=1000))
    world = RemoteWorld("object", usual, config)
    waits: list[float] = []

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        async with world.engine() as (streams, engine):
            stream = await streams.create_and_open_stream()

            async def append() -> float:
                began = loop.time()
                await stream.append(batch(b"x" * 1000))
                return loop.time() - began

            for _ in range(300):
                await append()
            world.store.moods = paused
            under_way: list[asyncio.Future[float]] = []
            for _ in range(5):
                under_way.append(asyncio.ensure_future(append()))
                await until(lambda: len(engine.put.under_way) == len(under_way))
            await asyncio.gather(*under_way)
            for _ in range(20):
                world.store.moods = dataclasses.replace(usual, hanging_put_share=1.0)
                hanging = asyncio.ensure_future(append())
                await until(lambda: bool(engine.put.under_way))
                await asyncio.sleep(0.001)
                world.store.moods = usual
                waits.append(await hanging)
            assert value_of(engine.metrics.hedged) >= 20

    virtually(scenario)
    assert max(waits) < 0.15


def test_a_single_append_to_an_idle_node_waits_for_one_put() -> None:
    world = RemoteWorld("object", latency(50))
    waits: list[float] = []

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        async with world.engine() as (streams, _):
            stream = await streams.create_and_open_stream()
            for _ in range(100):
                await asyncio.sleep(1)
                began = loop.time()
                await stream.append(batch(b"x"))
                waits.append(loop.time() - began)

    virtually(scenario)
    assert p(0.5, waits) <= 1.01 * p(0.5, world.store.traffic.put_seconds)


@pytest.mark.parametrize("mode", MODES)
def test_a_catching_up_reader_has_several_gets_under_way(mode: WalMode) -> None:
    """Everything is an eighth of its default, so that the test is quick."""
    payload = bytes(32 * 1024)
    config = StreamEngineConfig(
        flush=FlushConfig(flush_bytes_target=MIB),
        upload=UploadConfig(upload_bytes_target=MIB),
        read=ReadConfig(
            tail_cache_bytes=0,
            block_cache_bytes=16 * MIB,
            read_ahead_bytes_min=64 * 1024,
            read_ahead_bytes_first=12 * MIB // 8,
            read_ahead_bytes_max=4 * MIB,
            small_object_bytes=0,
        ),
    )
    world = RemoteWorld(mode, latency(0), config)

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        async with world.engine() as (streams, engine):
            stream = await streams.create_and_open_stream()
            await asyncio.gather(*[stream.append(batch(payload)) for _ in range(2048)])
            await engine.drain()
            world.store.moods = dataclasses.replace(
                latency(100), link_bytes_per_s=50e6, request_bytes_per_s=12.5e6
            )
            position, began = 0, loop.time()
            while position < 2048:
                batches = (await stream.fetch(position, 2048, 128 * 1024)).batches
                position = batches[-1].end_offset
            # GETs of 1 MiB take 184 ms: one at a time would come to 5.7 MB/s.
            assert 2048 * len(payload) / (loop.time() - began) > 2.5 * 5.7e6
            assert 2 <= world.store.traffic.gets_in_flight_max <= 4 + 8
            blocks = engine.blocks.blocks
            assert blocks.size_bytes + blocks.reserved_bytes <= blocks.bound_bytes
            assert payloads((await stream.fetch(5, 6, 1)).batches) == [payload]

    virtually(scenario)


def test_concurrent_uploads_with_faults_keep_order_and_budget() -> None:
    """Hedged, repeated, with several batches under way at once; some callers leave."""
    moods = dataclasses.replace(
        latency(60),
        put=Latency(60, 1.0),
        hanging_put_share=0.2,
        hanging_s=30.0,
        refused_share=0.1,
        lost_answer_share=0.1,
        link_bytes_per_s=5e6,
    )
    config = StreamEngineConfig(
        append=AppendConfig(append_bytes_max=6 * MIB),
        flush=FlushConfig(flush_bytes_target=MIB, flush_bytes_overlap_remote=64 * 1024),
        read=ReadConfig(tail_cache_bytes=8 * MIB),
    )
    world = RemoteWorld("object", moods, config)

    async def scenario() -> None:
        loop, random = asyncio.get_running_loop(), SeededRandom(5)
        async with world.engine() as (streams, engine):
            opened = [await streams.create_and_open_stream() for _ in range(3)]
            appends: list[tuple[int, bytes, asyncio.Future[AppendResult]]] = []
            for number in range(300):
                payload = b"%d:" % number + bytes(int(100_000 * random.random()))
                append = sent(opened[number % 3].append(batch(payload)))
                appends.append((number % 3, payload, append))
                if number % 10 == 7:
                    loop.call_later(0.1, append.cancel)
                await asyncio.sleep(0.02 * random.random())
            await asyncio.gather(*[append for _, _, append in appends], return_exceptions=True)
            await engine.drain()
            assert world.store.traffic.puts_in_flight_max > 2
            assert value_of(engine.metrics.hedged) > 0
            assert engine.budget.used_bytes == engine.upload_credit.used_bytes == 0
            assert engine.put.under_way == {}
            world.store.moods = latency(1)
            by_stream = [await read_all(stream) for stream in opened]
            for which, payload, append in appends:
                assert by_stream[which].count(payload) == 1 or append.cancelled()
                if not append.cancelled():
                    assert by_stream[which][append.result().base_offset] == payload
            for stored in by_stream:
                numbers = [int(payload.split(b":", 1)[0]) for payload in stored]
                assert numbers == sorted(set(numbers))

    virtually(scenario)
