"""How many GETs a reader needs for objects as compaction writes them."""

from __future__ import annotations

import asyncio
from unittest.mock import ANY

import pytest

from streamlog.engine.config import MIB
from streamlog.errors import Corrupt
from streamlog.objectstore.keys import data_key
from tests.engine.harness import World, damaged_range, run, until
from tests.engine.read.large_objects import CONFIG, PAYLOAD, read_through, store_object

GIB = 1 << 30


def test_streams_of_64_mib_need_at_most_80_gets_a_gib() -> None:
    async def scenario() -> None:
        for hint, readers in ((MIB, 1), (300_000, 1), (8 * MIB, 2)):
            world = World("object", CONFIG)
            await store_object(world, 1, [(1, 0)], 64 * MIB // len(PAYLOAD))
            await store_object(world, 2, [(2, 0)], 64 * MIB // len(PAYLOAD))
            async with world.engine() as (streams, engine):
                if readers == 1:
                    size = sum(
                        [await read_through(streams, stream_id, hint) for stream_id in (1, 2)]
                    )
                else:
                    size = sum(
                        await asyncio.gather(*[read_through(streams, n, hint) for n in (1, 2)])
                    )
                assert size == 128 * MIB
                assert len(world.store.gets) * GIB <= 80 * size
                assert sum(length or 0 for _, _, length in world.store.gets) < 1.01 * size
                blocks = engine.blocks.blocks
                assert blocks.size_bytes + blocks.reserved_bytes <= blocks.bound_bytes
                assert blocks.reserved_bytes == 0

    run(scenario)


def test_a_long_stream_is_read_in_gets_of_the_largest_size() -> None:
    async def scenario() -> None:
        world = World("object", CONFIG)
        for number in range(3):
            per_object = 64 * MIB // len(PAYLOAD)
            await store_object(world, number + 1, [(1, number * per_object)], per_object)
        async with world.engine() as (streams, _):
            size = await read_through(streams, 1, MIB)
        # Of 64 MiB each, the first: 12, 28, 24, the others: 28, 28, 8. Each has an index.
        assert size == 192 * MIB
        assert len(world.store.gets) == 3 + 3 + 3 + 3

    run(scenario)


def test_a_stream_of_one_step_needs_one_get_from_its_start() -> None:
    async def scenario() -> None:
        world = World("object", CONFIG)
        await store_object(world, 1, [(1, 0), (2, 0)], 10 * MIB // len(PAYLOAD))
        async with world.engine() as (streams, _):
            assert await read_through(streams, 1, MIB) == 10 * MIB
            # Its index, and all of it.
            assert len(world.store.gets) == 2
            stream = await streams.open_stream(2)
            await stream.fetch(8, stream.confirm_offset, MIB)
            # Who begins elsewhere may want no more than that.
            assert world.store.gets[2:] == [(data_key(1), world.store.gets[2][1], ANY)]
            assert (world.store.gets[2][2] or 0) < 2 * MIB

    run(scenario)


def test_a_small_fetch_at_the_start_reads_nothing_ahead() -> None:
    async def scenario() -> None:
        world = World("object", CONFIG)
        await store_object(world, 1, [(1, 0)], 10 * MIB // len(PAYLOAD))
        async with world.engine() as (streams, _):
            stream = await streams.open_stream(1)
            assert len((await stream.fetch(0, 1, 1)).batches) == 1
            assert sum(length or 0 for _, _, length in world.store.gets) < MIB

    run(scenario)


@pytest.mark.parametrize("hint", [MIB + 1000, 300_000])
def test_a_reader_that_does_not_take_the_last_batch_stays_in_sequence(hint: int) -> None:
    """As a consumer whose answer had no room for the last batch."""

    async def scenario() -> None:
        world = World("object", CONFIG)
        await store_object(world, 1, [(1, 0)], 64 * MIB // len(PAYLOAD))
        async with world.engine() as (streams, _):
            stream = await streams.open_stream(1)
            position = 0
            while position < stream.confirm_offset:
                batches = (await stream.fetch(position, stream.confirm_offset, hint)).batches
                position = batches[-1].end_offset
                if position < stream.confirm_offset:
                    (last,) = (await stream.fetch(position, stream.confirm_offset, 1)).batches
                    assert last.base_offset == position
            # Of 12, 28 and 24 MiB, and the index.
            assert len(world.store.gets) <= 5

    run(scenario)


def test_a_single_reader_has_two_gets_ahead_of_the_one_that_it_consumes() -> None:
    async def scenario() -> None:
        world = World("object", CONFIG)
        per_object = 64 * MIB // len(PAYLOAD)
        for number in range(3):
            await store_object(world, number + 1, [(1, number * per_object)], per_object)
        async with world.engine() as (streams, _):
            stream = await streams.open_stream(1)
            position = size = 0

            def ahead() -> int:
                return sum(length or 0 for _, _, length in world.store.gets) - size

            while size < 100 * MIB:
                batches = (await stream.fetch(position, stream.confirm_offset, MIB)).batches
                size += sum(len(part) for batch in batches for part in batch.parts)
                position = batches[-1].end_offset
                if size > 40 * MIB:
                    # One of them may be the 8 MiB at an object's end.
                    await until(lambda: ahead() >= (28 + 8) * MIB)

    run(scenario)


def test_a_damaged_block_fails_no_other_block_of_its_get() -> None:
    async def scenario() -> None:
        world = World("object", CONFIG)
        await store_object(world, 1, [(1, 0)], 8 * MIB // len(PAYLOAD))
        key = data_key(1)
        whole = bytearray(await world.store.get(key))
        whole[4 * MIB] ^= 1
        await world.store.put(key, [bytes(whole)])
        async with world.engine() as (streams, _):
            stream = await streams.open_stream(1)
            before = (await stream.fetch(0, stream.confirm_offset, 8 * MIB)).batches
            with pytest.raises(Corrupt) as caught:
                await stream.fetch(before[-1].end_offset, stream.confirm_offset, 8 * MIB)
            assert 4 * MIB in damaged_range(caught.value)
            size = sum(len(part) for batch in before for part in batch.parts)
            assert 3 * MIB < size < 4 * MIB
            behind = (size + MIB) // len(PAYLOAD)
            after = (await stream.fetch(behind, stream.confirm_offset, 8 * MIB)).batches
            assert after[-1].end_offset == stream.confirm_offset
            assert {bytes(part) for batch in (*before, *after) for part in batch.parts} == {PAYLOAD}

    run(scenario)


def test_many_streams_in_one_object_need_two_gets_each() -> None:
    async def scenario() -> None:
        world = World("object", CONFIG)
        ids = range(1, 65)
        await store_object(world, 1, [(stream_id, 0) for stream_id in ids], MIB // len(PAYLOAD))
        async with world.engine() as (streams, _):
            for hint in (300_000, MIB):
                world.store.gets.clear()
                size = sum([await read_through(streams, stream_id, hint) for stream_id in ids])
                assert size == 64 * MIB
                assert len(world.store.gets) <= 2 * len(ids) + 80 * size / GIB

    run(scenario)
