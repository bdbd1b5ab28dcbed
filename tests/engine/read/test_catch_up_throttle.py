"""Catch-up reads beside appends and tail reads, in virtual time."""

from __future__ import annotations

import asyncio
import dataclasses
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from streamlog.engine.config import MIB, ReadConfig, StreamEngineConfig
from streamlog.engine.engine import Engine
from streamlog.errors import Corrupt, OffsetOutOfRange
from streamlog.model.batch import (
    AppendContext,
    FetchContext,
    FetchResult,
    Priority,
    ReadMode,
)
from streamlog.model.stream import Stream
from streamlog.objectstore.keys import data_key
from streamlog.runtime.buffers import parts_size
from tests.engine.harness import batch, error_of
from tests.engine.remote import RemoteWorld, virtually
from tests.support.busy_clock import BusyClock
from tests.support.slow_store import Moods

READ = ReadConfig(tail_cache_bytes=0, catch_up_bytes_per_s_min=16 * MIB, catch_up_piece_bytes=MIB)
CONFIG = StreamEngineConfig(read=READ)
WAIT = FetchContext(read_mode=ReadMode.WAIT)
SKIP = FetchContext(read_mode=ReadMode.SKIP)
OLD_BATCHES = 64
BATCH_BYTES = 256 * 1024


class OldStream:
    """A stream that lies in objects, and another one that takes appends."""

    def __init__(self, world: RemoteWorld, engine: Engine, old: Stream, new: Stream) -> None:
        self.world, self.engine, self.old, self.new = world, engine, old, new

    @property
    def metric(self) -> dict[str, float]:
        metrics = self.engine.metrics.catch_up
        return {
            sample.name.removeprefix("streamlog_engine_"): sample.value
            for metric in (metrics.waiting, metrics.rate, metrics.bytes)
            for family in metric.collect()
            for sample in family.samples
        }

    async def fetch(self, start: int = 0, context: FetchContext = WAIT) -> FetchResult:
        return await self.old.fetch(start, self.old.confirm_offset, 8 * MIB, context)

    async def read(self, size_bytes: int, context: FetchContext = WAIT) -> float:
        """Seconds to read so much, from the start again and again."""
        began = asyncio.get_running_loop().time()
        position = read = 0
        while read < size_bytes:
            result = await self.fetch(position, context)
            read += size_of(result)
            position = result.batches[-1].end_offset % self.old.confirm_offset
        return asyncio.get_running_loop().time() - began

    @asynccontextmanager
    async def appends(self, every_s: float = 0.01) -> AsyncIterator[None]:
        """Appends run during the block."""

        async def append() -> None:
            while True:
                ack = self.new.append(batch(b"x"))
                await asyncio.sleep(every_s)
                await ack

        async with asyncio.TaskGroup() as group:
            task = group.create_task(append())
            await asyncio.sleep(every_s / 2)
            try:
                yield
            finally:
                task.cancel()


async def append_one(stream: Stream) -> None:
    await stream.append(batch(b"x"))


def size_of(result: FetchResult) -> int:
    return sum(parts_size(stored.parts) for stored in result.batches)


@asynccontextmanager
async def old_stream(config: StreamEngineConfig = CONFIG) -> AsyncIterator[OldStream]:
    world = RemoteWorld("object", Moods(), config)
    world.clock = BusyClock()
    async with world.engine() as (streams, engine):
        old, new = [await streams.create_and_open_stream() for _ in range(2)]
        await asyncio.gather(*[old.append(batch(bytes(BATCH_BYTES))) for _ in range(OLD_BATCHES)])
        await engine.drain()
        await asyncio.sleep(1.0)
        yield OldStream(world, engine, old, new)


def test_without_foreground_io_a_reader_is_not_throttled() -> None:
    async def scenario() -> None:
        async with old_stream() as data:
            assert size_of(await data.fetch()) == 8 * MIB
            assert not (await data.fetch()).is_paced
            assert await data.read(1 << 30) == 0
            assert data.metric["catch_up_bytes_per_second"] == math.inf
            assert data.metric["catch_up_bytes_total"] == 0

    virtually(scenario)


def test_beside_appends_a_reader_gets_pieces_at_a_growing_rate() -> None:
    async def scenario() -> None:
        async with old_stream() as data, data.appends():
            result = await data.fetch()
            assert result.is_paced
            assert size_of(result) == MIB
            seconds = await data.read(64 * MIB)
            # At the least rate all the time it would be 4.
            assert 1.0 < seconds < 2.5
            assert data.metric["catch_up_bytes_per_second"] > 32 * MIB
            faster = await data.read(64 * MIB)
            assert faster < seconds
            assert data.metric["catch_up_bytes_total"] == 129 * MIB

    virtually(scenario)


def test_a_late_loop_reduces_the_rate_to_the_minimum_and_not_below() -> None:
    async def scenario() -> None:
        async with old_stream() as data, data.appends():
            await data.read(64 * MIB)
            rate = data.metric["catch_up_bytes_per_second"]
            assert isinstance(data.world.clock, BusyClock)
            data.world.clock.slowness = 2.0
            await data.read(16 * MIB)
            assert data.metric["catch_up_bytes_per_second"] == 16 * MIB < rate / 2
            began = data.world.clock.monotonic()
            await data.read(64 * MIB)
            assert 3.9 < data.world.clock.monotonic() - began < 4.2
            data.world.clock.slowness = 1.0
            assert await data.read(64 * MIB) < 2.5

    virtually(scenario)


def test_when_foreground_io_ends_all_waiting_reads_are_admitted() -> None:
    async def scenario() -> None:
        async with old_stream() as data:
            async with data.appends():
                readers = [asyncio.ensure_future(data.fetch()) for _ in range(100)]
                await asyncio.sleep(0.05)
                assert data.metric["catch_up_waiting"] > 80
            began = asyncio.get_running_loop().time()
            results = await asyncio.gather(*readers)
            assert asyncio.get_running_loop().time() - began < 0.3
            assert sum(not result.is_paced for result in results) > 80
            assert data.metric["catch_up_waiting"] == 0

    virtually(scenario)


def test_many_catch_up_reads_are_admitted_in_order_within_the_longest_wait() -> None:
    async def scenario() -> None:
        read = dataclasses.replace(
            READ, catch_up_bytes_per_s_min=MIB, catch_up_wait_ms_max=2000, catch_up_loop_lag_ms=0.5
        )
        async with old_stream(StreamEngineConfig(read=read)) as data, data.appends():
            assert isinstance(data.world.clock, BusyClock)
            data.world.clock.slowness = 1.1
            ended: list[tuple[float, int]] = []
            began = data.world.clock.monotonic()

            async def one(number: int) -> None:
                assert size_of(await data.fetch()) == MIB
                ended.append((data.world.clock.monotonic() - began, number))

            await asyncio.gather(*[one(number) for number in range(40)])
            assert [number for _, number in ended] == list(range(40))
            # At one MiB/s the last one would have waited 40 s.
            assert 1.9 < ended[-1][0] < 2.2
            assert sum(seconds < 1.9 for seconds, _ in ended) <= 3

    virtually(scenario)


def test_reads_from_memory_and_immediate_reads_are_not_throttled() -> None:
    async def scenario() -> None:
        read = dataclasses.replace(READ, tail_cache_bytes=MIB)
        async with old_stream(StreamEngineConfig(read=read)) as data, data.appends():
            readers = [asyncio.ensure_future(data.fetch()) for _ in range(100)]
            await asyncio.sleep(0.05)
            began = asyncio.get_running_loop().time()
            end = data.new.confirm_offset
            tail = await data.new.fetch(end - 1, end, MIB, WAIT)
            assert tail.from_cache
            assert not tail.is_paced
            inside = await data.fetch(context=FetchContext())
            assert size_of(inside) == 8 * MIB
            assert not inside.is_paced
            assert asyncio.get_running_loop().time() == began
            await asyncio.gather(*readers)

    virtually(scenario)


def test_reads_that_reach_the_end_count_as_foreground_io() -> None:
    """One on its way through the tail does not: its reader was behind the tail a moment ago."""

    async def scenario() -> None:
        read = dataclasses.replace(READ, tail_cache_bytes=MIB)
        async with old_stream(StreamEngineConfig(read=read)) as data:
            for _ in range(3):
                await data.new.append(batch(b"x"))
            await asyncio.sleep(1.0)
            passing = await asyncio.create_task(data.new.fetch(0, 3, 1))
            assert passing.batches[-1].end_offset == 1
            assert not (await data.fetch()).is_paced
            last = await asyncio.create_task(data.new.fetch(1, 3, MIB))
            assert last.batches[-1].end_offset == 3
            assert (await data.fetch()).is_paced


def test_a_task_does_not_give_way_to_itself() -> None:
    """A consumer has caught up in one partition, and reads on in another."""

    async def scenario() -> None:
        read = dataclasses.replace(READ, tail_cache_bytes=MIB)
        async with old_stream(StreamEngineConfig(read=read)) as data:
            await asyncio.create_task(append_one(data.new))
            await asyncio.sleep(1.0)
            await data.new.fetch(0, 1, MIB)
            assert not (await data.fetch()).is_paced
            assert (await asyncio.create_task(data.fetch())).is_paced
            await asyncio.create_task(data.new.fetch(0, 1, MIB))
            assert (await data.fetch()).is_paced

    virtually(scenario)


def test_work_of_background_priority_does_not_throttle_itself() -> None:
    """A cleaning reads what it has written, and writes what it has read."""

    async def scenario() -> None:
        read = dataclasses.replace(READ, tail_cache_bytes=MIB)
        async with old_stream(StreamEngineConfig(read=read)) as data:
            await data.new.append(batch(b"x"), AppendContext(priority=Priority.BACKGROUND))
            await data.new.fetch(0, 1, MIB, FetchContext(priority=Priority.BACKGROUND))
            result = await data.fetch()
            assert size_of(result) == 8 * MIB
            assert not result.is_paced
            await asyncio.create_task(append_one(data.new))
            behind = FetchContext(priority=Priority.BACKGROUND, read_mode=ReadMode.WAIT)
            assert (await data.fetch(context=behind)).is_paced

    virtually(scenario)


def test_a_read_in_skip_mode_returns_nothing_instead_of_waiting() -> None:
    async def scenario() -> None:
        async with old_stream() as data, data.appends():
            assert size_of(await data.fetch(context=SKIP)) == MIB
            result = await data.fetch(context=SKIP)
            assert result.is_paced
            assert not result.batches
            assert size_of(await data.fetch()) == MIB

    virtually(scenario)


def test_a_cancelled_read_does_not_delay_the_next() -> None:
    async def scenario() -> None:
        async with old_stream() as data, data.appends():
            readers = [asyncio.ensure_future(data.fetch()) for _ in range(100)]
            await asyncio.sleep(0.05)
            for reader in readers:
                reader.cancel()
            began = asyncio.get_running_loop().time()
            assert size_of(await data.fetch()) == MIB
            assert asyncio.get_running_loop().time() - began < 0.2
            assert data.metric["catch_up_waiting"] == 0

    virtually(scenario)


def test_a_failed_catch_up_read_is_not_charged() -> None:
    async def scenario() -> None:
        async with old_stream() as data, data.appends():
            assert isinstance(await error_of(data.fetch(1 << 40)), OffsetOutOfRange)
            ranges = await data.world.metadata.locate(data.old.stream_id, 0, 1)
            row = ranges[0].object
            key = data_key(row.object_id)
            whole = bytearray(await data.world.objects.get(key))
            whole[row.index_position // 2] ^= 1
            await data.world.objects.put(key, [bytes(whole)])
            began = asyncio.get_running_loop().time()
            failed = 0
            for position in range(OLD_BATCHES):
                error = await error_of(data.old.fetch(position, position + 1, 1, WAIT))
                failed += isinstance(error, Corrupt)
            assert failed
            await data.world.objects.delete([key])
            data.engine.blocks.forget(row.object_id)
            assert isinstance(await error_of(data.fetch()), Corrupt)
            assert asyncio.get_running_loop().time() - began < 2.0

    virtually(scenario)


def test_a_waiting_catch_up_read_sees_a_trim() -> None:
    async def scenario() -> None:
        async with old_stream() as data, data.appends():
            readers = [asyncio.ensure_future(data.fetch()) for _ in range(20)]
            await asyncio.sleep(0.05)
            await data.old.trim(10)
            errors = [await error_of(reader) for reader in readers]
            assert errors[0] is None
            assert isinstance(errors[-1], OffsetOutOfRange)
            assert size_of(await data.fetch(10)) == MIB

    virtually(scenario)


def test_stopping_the_engine_ends_waiting_catch_up_reads() -> None:
    async def scenario() -> None:
        async with old_stream() as data:
            async with data.appends():
                readers = [asyncio.ensure_future(error_of(data.fetch())) for _ in range(100)]
                await asyncio.sleep(0.05)
            began = asyncio.get_running_loop().time()
            await data.engine.kill()
            await asyncio.gather(*readers)
            assert asyncio.get_running_loop().time() == began
            assert data.metric["catch_up_waiting"] == 0

    virtually(scenario)
