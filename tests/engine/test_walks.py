"""Streams of one object that are read one after another: few GETs, and little in vain."""

from __future__ import annotations

import asyncio
import dataclasses
import random
from collections.abc import Iterable

import pytest

from streamlog.engine.config import MIB, ReadConfig
from streamlog.engine.walks import Walks
from streamlog.errors import Corrupt, StoreUnavailable
from streamlog.objectstore.keys import data_key
from streamlog.runtime.buffers import Buffer
from streamlog.testing.clocks import ManualClock
from tests.engine.harness import QUICK, FlakyStore, World, run, until
from tests.engine.test_requests import PAYLOAD, read_through, store_object

STREAMS = range(1, 401)
SIZE = len(STREAMS) * len(PAYLOAD)
"""50 MiB in one object."""


async def gets_of(
    order: Iterable[int], *, readers: int = 1, config: ReadConfig | None = None
) -> tuple[int, int]:
    """GETs but for the index, and their bytes, when the streams are read in that order."""
    world = World("object", dataclasses.replace(QUICK, read=config or ReadConfig()))
    await store_object(world, 1, [(one, 0) for one in STREAMS], 1)
    async with world.engine() as (streams, engine):
        left = iter(order)

        async def reader() -> None:
            for one in left:
                assert await read_through(streams, one, MIB) == len(PAYLOAD)

        await asyncio.gather(*[reader() for _ in range(readers)])
        await until(lambda: engine.blocks.blocks.reserved_bytes == 0)
        return len(world.store.gets) - 1, sum(length or 0 for _, _, length in world.store.gets[1:])


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


def test_streams_in_no_order_are_read_for_themselves() -> None:
    async def scenario() -> None:
        order = list(STREAMS)
        random.Random(1).shuffle(order)
        _, size = await gets_of(order)
        assert size <= 1.3 * SIZE

    run(scenario)


def test_a_small_cache_is_not_filled_with_what_is_dropped_again() -> None:
    async def scenario() -> None:
        config = ReadConfig(block_cache_bytes=MIB)
        gets, size = await gets_of(STREAMS, readers=8, config=config)
        assert gets <= 2 * len(STREAMS)
        assert size <= 2 * SIZE

    run(scenario)


def test_reading_ahead_for_walks_can_be_switched_off() -> None:
    async def scenario() -> None:
        gets, _ = await gets_of(STREAMS, config=ReadConfig(walk_bytes_max=0))
        assert gets == len(STREAMS)

    run(scenario)


class LargeGetsFail(FlakyStore):
    """Those of more than a stream, as often as `failures` says."""

    def __init__(self, failures: int) -> None:
        super().__init__()
        self.failures = failures

    async def get(self, key: str, start: int = 0, length: int | None = None) -> Buffer:
        data = await super().get(key, start, length)
        if self.failures and len(data) > 2 * len(PAYLOAD):
            self.failures -= 1
            raise StoreUnavailable("away", operation="get")
        return data


def test_a_get_ahead_that_fails_fails_nobody() -> None:
    async def scenario() -> None:
        world = World("object", dataclasses.replace(QUICK, read=ReadConfig()))
        world.store = store = LargeGetsFail(3)
        await store_object(world, 1, [(one, 0) for one in STREAMS], 1)
        async with world.engine() as (streams, _):
            for one in STREAMS:
                assert await read_through(streams, one, MIB) == len(PAYLOAD)
        assert store.failures == 0

    run(scenario)


def test_what_is_damaged_is_told_to_whom_it_belongs_alone() -> None:
    async def scenario() -> None:
        world = World("object", dataclasses.replace(QUICK, read=ReadConfig()))
        await store_object(world, 1, [(one, 0) for one in STREAMS], 1)
        whole = bytearray(await world.store.get(data_key(1)))
        whole[20 * len(PAYLOAD)] ^= 1
        await world.store.put(data_key(1), [bytes(whole)])
        failed: list[int] = []
        async with world.engine() as (streams, _):
            for one in STREAMS:
                try:
                    assert await read_through(streams, one, MIB) == len(PAYLOAD)
                except Corrupt:
                    failed.append(one)
        assert failed == [20]

    run(scenario)


def test_walks_through_many_objects_share_the_cache() -> None:
    clock = ManualClock()
    walks = Walks(ReadConfig(), clock)
    ahead = []
    for stream in range(200):
        for object_id in range(200):
            at = stream * 8192
            found = walks.asked(object_id, stream, at, at + 8192, stream + 1, is_here=stream > 2)
            if found is not None:
                walk, wanted = found
                ahead.append(wanted)
                walks.went_ahead(walk, walk.until, walk.until + wanted, stream + 1 + wanted // 8192)
        clock.advance(1000)
    # Of each object, and from the second round on no more than a quarter of the cache together.
    assert len(ahead) >= 2 * 200
    assert all(200 * wanted <= 32 * MIB for wanted in ahead[200:])
