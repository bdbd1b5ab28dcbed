"""Fetches: tail, objects, offsets, damage; waiting; attributes."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest

from streamlog.engine.config import ObjectConfig, ReadConfig, StreamEngineConfig
from streamlog.errors import Corrupt, OffsetOutOfRange
from streamlog.model.batch import CreateStreamOptions
from streamlog.objectstore.keys import data_key
from streamlog.wal.config import WalMode
from tests.engine.harness import (
    NO_CACHE,
    QUICK,
    World,
    batch,
    damaged_range,
    error_of,
    payloads,
    read_all,
    run,
    until,
)

MODES: list[WalMode] = ["disk", "object"]
both = pytest.mark.parametrize("mode", MODES)


@both
def test_everything_comes_back_from_memory_and_from_objects(mode: WalMode) -> None:
    async def scenario() -> None:
        world = World(mode, NO_CACHE)
        async with world.engine() as (streams, engine):
            many = await streams.create_and_open_streams([CreateStreamOptions()] * 3)
            expected: list[list[bytes]] = [[], [], []]
            for turn in range(60):
                futures = []
                for index, stream in enumerate(many):
                    payload = b"%d.%d " % (index, turn) * (1 + 500 * (turn % 3))
                    expected[index].append(payload)
                    futures.append(stream.append(batch(payload, records=2)))
                await asyncio.gather(*futures)
            for hint in (1, 2000, 1 << 20):
                for stream, payloads_expected in zip(many, expected, strict=True):
                    assert await read_all(stream, hint=hint) == payloads_expected
            await engine.drain()
            assert many[0].confirm_offset == 120
            assert engine.tails.committed_bytes == 0
            for hint in (1, 2000, 1 << 20):
                for stream, payloads_expected in zip(many, expected, strict=True):
                    assert await read_all(stream, hint=hint) == payloads_expected
                    assert await read_all(stream, start=61, hint=hint) == payloads_expected[30:]

    run(scenario)


@both
def test_a_fetch_returns_at_least_one_batch_and_exceeds_the_hint_by_one_at_most(
    mode: WalMode,
) -> None:
    async def scenario() -> None:
        for config in (QUICK, NO_CACHE):
            world = World(mode, config)
            async with world.engine() as (streams, engine):
                stream = await streams.create_and_open_stream()
                for number in range(10):
                    stream.append(batch(bytes(100), records=1 + number % 2))
                await engine.drain()
                end = stream.confirm_offset
                assert len((await stream.fetch(0, end, 1)).batches) == 1
                assert 2 <= len((await stream.fetch(0, end, 250)).batches) <= 3
                assert len((await stream.fetch(0, end, 1 << 20)).batches) == 10
                (second,) = (await stream.fetch(2, 3, 1 << 20)).batches
                assert (second.base_offset, second.end_offset) == (1, 3)
                assert (await stream.fetch(4, 4, 1 << 20)).batches == ()
                cached = await stream.fetch(0, end, 1 << 20)
                assert cached.from_cache is (config is QUICK)

    run(scenario)


@pytest.mark.parametrize("payload", [bytes(1000), bytes(range(250)) * 4], ids=["zeros", "bytes"])
@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_a_fetch_ends_where_it_should_within_blocks_of_many_batches(
    compression: str, payload: bytes
) -> None:
    config = dataclasses.replace(
        NO_CACHE,
        object=ObjectConfig(compression=compression, block_target_bytes=8000),
    )

    async def scenario() -> None:
        world = World("object", config)
        async with world.engine() as (streams, engine):
            stream = await streams.create_and_open_stream()
            await asyncio.gather(*[stream.append(batch(payload)) for _ in range(100)])
            await engine.drain()
            for start in range(0, 100, 7):
                for end in range(start + 1, 101, 5):
                    batches = (await stream.fetch(start, end, 1 << 20)).batches
                    assert [stored.base_offset for stored in batches] == list(range(start, end))
                    few = (await stream.fetch(start, end, 3500)).batches
                    assert [stored.base_offset for stored in few] == list(range(start, end))[:3]

    run(scenario)


@both
@pytest.mark.parametrize("config", [QUICK, NO_CACHE])
def test_fetches_of_empty_batches_and_with_tiny_hints(
    mode: WalMode, config: StreamEngineConfig
) -> None:
    async def scenario() -> None:
        written = [b"", b"a", b"", b"", b"bb", b""]
        world = World(mode, config)
        async with world.engine() as (streams, engine):
            stream = await streams.create_and_open_stream()
            for payload in written:
                await stream.append(batch(payload))
            await engine.drain()
            for hint in (0, 1, 2, 3, 100):
                assert await read_all(stream, hint=hint) == written

    run(scenario)


@both
def test_offsets_out_of_range_say_the_valid_range(mode: WalMode) -> None:
    async def scenario() -> None:
        async with World(mode).engine() as (streams, _):
            stream = await streams.create_and_open_stream()
            for _ in range(10):
                await stream.append(batch(b"x"))
            await stream.trim(4)
            for start, end, offset in ((3, 10, 3), (4, 11, 11), (8, 7, 8)):
                for read in (stream.fetch(start, end, 1), stream.attributes(start, end)):
                    error = await error_of(read)
                    assert isinstance(error, OffsetOutOfRange)
                    assert error.fields == {"offset": offset, "start_offset": 4, "end_offset": 10}
            assert isinstance(await error_of(stream.trim(11)), OffsetOutOfRange)

    run(scenario)


@both
def test_a_trim_inside_a_batch_keeps_the_batch_readable(mode: WalMode) -> None:
    async def scenario() -> None:
        for config in (QUICK, NO_CACHE):
            async with World(mode, config).engine() as (streams, engine):
                stream = await streams.create_and_open_stream()
                for letter in (b"a", b"b", b"c"):
                    await stream.append(batch(letter, records=10))
                await stream.trim(15)
                await stream.trim(3)
                assert stream.start_offset == 15
                await engine.drain()
                batches = (await stream.fetch(15, 30, 1 << 20)).batches
                assert payloads(batches) == [b"b", b"c"]
                assert batches[0].base_offset == 10

    run(scenario)


@both
def test_attributes_are_read_without_data(mode: WalMode) -> None:
    async def scenario() -> None:
        for config in (QUICK, NO_CACHE):
            world = World(mode, config)
            async with world.engine() as (streams, engine):
                stream = await streams.create_and_open_stream()
                for number in range(40):
                    await stream.append(batch(bytes(1000), records=2, attributes=b"n%d" % number))
                    if number % 10 == 9:
                        await engine.drain()
                world.store.gets.clear()
                attributes = await stream.attributes(0, 80)
                assert [a.attributes for a in attributes] == [b"n%d" % n for n in range(40)]
                assert [a.base_offset for a in attributes] == list(range(0, 80, 2))
                assert {a.base_timestamp_ms for a in attributes} == {1000}
                some = await stream.attributes(11, 15)
                assert [a.base_offset for a in some] == [10, 12, 14]
                assert await stream.attributes(7, 7) == []
                read = sum(length or 0 for _, _, length in world.store.gets)
                assert read < 20_000

    run(scenario)


@both
def test_waiters_get_confirmed_offsets_and_cancelled_ones_are_removed(
    mode: WalMode,
) -> None:
    async def scenario() -> None:
        async with World(mode).engine() as (streams, engine):
            stream = await streams.create_and_open_stream()
            polls = [asyncio.ensure_future(stream.wait_confirmed(n)) for n in range(1, 1001)]
            await asyncio.sleep(0)
            for poll in polls[1:]:
                poll.cancel()
            await asyncio.wait(polls[1:])
            (core,) = engine.cores.values()
            assert len(core._waiters) == 1
            await stream.append(batch(b"x"))
            await polls[0]
            assert len(core._waiters) == 0
            await stream.wait_confirmed(1)

    run(scenario)


def test_a_sequential_reader_reads_ahead_in_large_requests() -> None:
    async def scenario() -> None:
        world = World("object", NO_CACHE)
        async with world.engine() as (streams, engine):
            stream = await streams.create_and_open_stream()
            for _ in range(4):
                appends = [stream.append(batch(bytes(64 << 10))) for _ in range(128)]
                await asyncio.gather(*appends)
            world.store.gets.clear()
            position, fetches = 0, 0
            while position < 512:
                result = await stream.fetch(position, 512, 256 << 10)
                position = result.batches[-1].end_offset
                fetches += 1
            assert fetches >= 100
            assert len(world.store.gets) < fetches / 3
            assert engine.blocks.blocks.size_bytes <= engine.config.read.block_cache_bytes

    run(scenario)


def test_readers_of_one_block_share_one_request() -> None:
    async def scenario() -> None:
        world = World("object", NO_CACHE)
        async with world.engine() as (streams, _):
            stream = await streams.create_and_open_stream()
            await stream.append(batch(bytes(100_000)))
            await stream.append(batch(bytes(300_000)))
            world.store.gets.clear()
            reads = [stream.fetch(0, 1, 1) for _ in range(50)]
            assert len(await asyncio.gather(*reads)) == 50
            # A small object comes as a whole.
            assert len(world.store.gets) == 1
            reads = [stream.fetch(1, 2, 1) for _ in range(50)]
            assert len(await asyncio.gather(*reads)) == 50
            # One for the index region, one for the block.
            assert len(world.store.gets) == 3

    run(scenario)


def test_a_missing_object_that_is_live_is_corrupt_and_so_is_a_flipped_bit() -> None:
    async def scenario() -> None:
        config = dataclasses.replace(
            NO_CACHE, read=ReadConfig(tail_cache_bytes=0, block_cache_bytes=0, index_cache_bytes=0)
        )
        world = World("object", config)
        async with world.engine() as (streams, _):
            stream = await streams.create_and_open_stream()
            await stream.append(batch(bytes(1000)))
            key = data_key(world.metadata.commits[-1].objects[0].row.object_id)
            whole = bytes(await world.store.get(key))
            assert len((await stream.fetch(0, 1, 1)).batches) == 1

            flipped = bytearray(whole)
            flipped[500] ^= 1
            await world.store.put(key, [bytes(flipped)])
            error = await error_of(stream.fetch(0, 1, 1))
            assert isinstance(error, Corrupt)
            assert error.fields["object_key"] == key
            assert 500 in damaged_range(error)

            await world.store.delete([key])
            error = await error_of(stream.fetch(0, 1, 1))
            assert isinstance(error, Corrupt)
            assert error.fields["object_key"] == key

            await world.store.put(key, [whole])
            assert len((await stream.fetch(0, 1, 1)).batches) == 1

    run(scenario)


def test_a_gap_between_live_ranges_is_corrupt() -> None:
    async def scenario() -> None:
        world = World("object", NO_CACHE)
        async with world.engine() as (streams, engine):
            stream = await streams.create_and_open_stream()
            for _ in range(3):
                await stream.append(batch(b"x"))
            await until(lambda: engine.pending_upload_bytes == 0)
            del world.metadata.ranges[stream.stream_id][1]
            assert isinstance(await error_of(stream.fetch(1, 3, 100)), Corrupt)
            assert isinstance(await error_of(stream.attributes(0, 3)), Corrupt)

    run(scenario)
