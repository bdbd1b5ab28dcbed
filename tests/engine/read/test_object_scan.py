"""Streams of one object, read one after another: few GETs, and few bytes read in vain."""

from __future__ import annotations

import asyncio
import dataclasses
import random
from collections import OrderedDict
from collections.abc import Iterable

import pytest

from streamlog.engine.config import MIB, ReadConfig
from streamlog.engine.read.object_scan import ObjectScans, StreamPart
from streamlog.engine.streams.client import EngineStreamClient
from streamlog.errors import Corrupt, StoreUnavailable
from streamlog.objectstore.keys import data_key
from streamlog.runtime.buffers import Buffer
from streamlog.testing.clocks import ManualClock
from tests.engine.harness import QUICK, FlakyStore, World, run, until
from tests.engine.read.large_objects import PAYLOAD, read_through, store_object

STREAMS = range(1, 401)
SIZE = len(STREAMS) * len(PAYLOAD)
"""50 MiB in one object."""


class SlowStore(FlakyStore):
    """Each GET takes a while, so that other readers wait for it."""

    async def get(self, key: str, start: int = 0, length: int | None = None) -> Buffer:
        data = await super().get(key, start, length)
        await asyncio.sleep(0.002)
        return data


async def gets_of(
    order: Iterable[int], *, readers: int = 1, config: ReadConfig | None = None
) -> tuple[int, int]:
    """GETs of data, and their bytes, when the streams are read in that order."""
    world = World("object", dataclasses.replace(QUICK, read=config or ReadConfig()))
    world.store = SlowStore()
    await store_object(world, 1, [(stream_id, 0) for stream_id in STREAMS], 1)
    async with world.engine() as (streams, engine):
        await _read(streams, order, readers)
        await until(lambda: engine.blocks.blocks.reserved_bytes == 0)
        return len(world.store.gets) - 1, sum(length or 0 for _, _, length in world.store.gets[1:])


async def _read(streams: EngineStreamClient, order: Iterable[int], readers: int) -> list[int]:
    """Streams whose readers get Corrupt."""
    left, failed = iter(order), []

    async def reader() -> None:
        for stream_id in left:
            try:
                assert await read_through(streams, stream_id, MIB) == len(PAYLOAD)
            except Corrupt:
                failed.append(stream_id)

    await asyncio.gather(*[reader() for _ in range(readers)])
    return failed


@pytest.mark.parametrize("readers", [1, 8, 16])
def test_streams_read_one_after_another_share_gets(readers: int) -> None:
    async def scenario() -> None:
        gets, size = await gets_of(STREAMS, readers=readers)
        assert gets <= 20 + readers
        assert size <= 1.05 * SIZE

    run(scenario)


def test_nothing_is_read_ahead_where_most_streams_are_left_out() -> None:
    async def scenario() -> None:
        order = STREAMS[::5]
        gets, size = await gets_of(order)
        assert gets == len(order)
        assert size <= 1.1 * len(order) * len(PAYLOAD)

    run(scenario)


def test_streams_in_random_order_read_nothing_ahead() -> None:
    async def scenario() -> None:
        order = list(STREAMS)
        random.Random(1).shuffle(order)
        _, size = await gets_of(order)
        assert size <= 1.3 * SIZE

    run(scenario)


def test_scans_do_not_fill_a_small_cache() -> None:
    async def scenario() -> None:
        config = ReadConfig(block_cache_bytes=MIB)
        gets, size = await gets_of(STREAMS, readers=8, config=config)
        assert gets <= 2 * len(STREAMS)
        assert size <= 2 * SIZE

    run(scenario)


def test_reading_ahead_for_scans_can_be_switched_off() -> None:
    async def scenario() -> None:
        gets, _ = await gets_of(STREAMS, config=ReadConfig(object_scan_bytes_max=0))
        assert gets == len(STREAMS)

    run(scenario)


class LargeGetsFail(SlowStore):
    """Fails `failures` GETs of more than one stream."""

    def __init__(self, failures: int) -> None:
        super().__init__()
        self.failures = failures

    async def get(self, key: str, start: int = 0, length: int | None = None) -> Buffer:
        data = await super().get(key, start, length)
        if self.failures and len(data) > 2 * len(PAYLOAD):
            self.failures -= 1
            raise StoreUnavailable("away", operation="get")
        return data


@pytest.mark.parametrize("readers", [1, 8])
def test_a_failed_get_ahead_fails_no_reader(readers: int) -> None:
    async def scenario() -> None:
        world = World("object", dataclasses.replace(QUICK, read=ReadConfig()))
        world.store = store = LargeGetsFail(1)
        await store_object(world, 1, [(stream_id, 0) for stream_id in STREAMS], 1)
        async with world.engine() as (streams, _):
            assert await _read(streams, STREAMS, readers) == []
        assert store.failures == 0

    run(scenario)


@pytest.mark.parametrize("readers", [1, 8])
def test_only_readers_of_a_damaged_block_get_the_error(readers: int) -> None:
    async def scenario() -> None:
        world = World("object", dataclasses.replace(QUICK, read=ReadConfig()))
        world.store = SlowStore()
        await store_object(world, 1, [(stream_id, 0) for stream_id in STREAMS], 1)
        whole = bytearray(await world.store.get(data_key(1)))
        for stream_id in (5, 20):
            whole[stream_id * len(PAYLOAD)] ^= 1
        await world.store.put(data_key(1), [bytes(whole)])
        async with world.engine() as (streams, _):
            assert sorted(await _read(streams, STREAMS, readers)) == [5, 20]

    run(scenario)


class Asked:
    """ObjectScans, and an LRU cache of parts that all have one size."""

    def __init__(self, size: int, objects: int, parts: int, cache_bytes: int = 128 * MIB) -> None:
        self.clock = ManualClock()
        self.scans = ObjectScans(ReadConfig(block_cache_bytes=cache_bytes), self.clock)
        self.size, self.objects, self.parts = size, objects, parts
        self.cached: OrderedDict[tuple[int, int], None] = OrderedDict()
        self.cache_parts = cache_bytes // size
        self.read = self.gets = self.asks = 0

    def ask(self, object_id: int, number: int) -> None:
        self.asks += 1
        self.clock.advance(1)
        is_cached = (object_id, number) in self.cached
        if is_cached:
            self.cached.move_to_end((object_id, number))
        else:
            self._load(object_id, number, number + 1)
        part = StreamPart(number * self.size, (number + 1) * self.size, number + 1)
        ahead = self.scans.note_read(object_id, part, is_cached=is_cached)
        if ahead is None:
            return
        scan, wanted = ahead
        end = min(self.parts, scan.next_number + wanted // self.size)
        if end > scan.next_number:
            self._load(object_id, scan.next_number, end)
            self.scans.note_read_ahead(scan, scan.until, end * self.size, end)

    def _load(self, object_id: int, first: int, end: int) -> None:
        self.gets += 1
        for number in range(first, end):
            if (object_id, number) not in self.cached:
                self.read += 1
                self.cached[object_id, number] = None
                if len(self.cached) > self.cache_parts:
                    self.cached.popitem(last=False)


@pytest.mark.parametrize(("size", "objects"), [(2048, 8), (2048, 64), (8192, 8), (8192, 32)])
def test_random_reads_cause_little_reading_ahead(size: int, objects: int) -> None:
    asked = Asked(size, objects, 32 * MIB // size)
    chance = random.Random(1)
    for _ in range(20_000):
        asked.ask(chance.randrange(objects), chance.randrange(asked.parts))
    assert asked.read <= 1.1 * asked.asks


@pytest.mark.parametrize("size", [2048, 8192, 107_000, 1_000_000])
@pytest.mark.parametrize("shuffled", [1, 8, 16])
def test_readers_out_of_order_by_some_streams_are_on_one_scan(size: int, shuffled: int) -> None:
    asked = Asked(size, 1, 256 * MIB // size)
    chance = random.Random(1)
    for first in range(0, asked.parts, shuffled):
        group = list(range(first, min(first + shuffled, asked.parts)))
        chance.shuffle(group)
        for number in group:
            asked.ask(0, number)
    assert asked.read <= 1.02 * asked.asks
    assert asked.gets <= 120 + 2 * shuffled


def test_reading_one_stream_in_five_reads_nothing_ahead() -> None:
    asked = Asked(8192, 1, 4000)
    for number in range(0, 4000, 10):
        for _ in range(5):
            asked.ask(0, number)
            asked.ask(0, number + 5)
    assert asked.read <= 1.1 * 800


def test_scans_of_many_objects_share_a_quarter_of_the_cache() -> None:
    asked = Asked(8192, 200, 1000)
    for number in range(asked.parts):
        for object_id in range(asked.objects):
            asked.ask(object_id, number)
            if object_id % 50 == 0:
                assert asked.scans.ahead_bytes <= 32 * MIB
    assert asked.read <= 1.01 * asked.asks
    assert asked.gets <= asked.asks / 5
