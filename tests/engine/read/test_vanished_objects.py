"""Objects that disappear under a reader: replaced by another object, trimmed, or lost."""

from __future__ import annotations

import dataclasses

import pytest

from streamlog.codec.crc import crc32c
from streamlog.engine.config import ReadConfig
from streamlog.errors import Corrupt, MetadataUnavailable, OffsetOutOfRange
from streamlog.format.entry import StreamEntry
from streamlog.format.object.build import build_object
from streamlog.format.object.footer import ObjectIdentity
from streamlog.metadata.interface import ObjectRow
from streamlog.model.stream import Stream, StreamClient
from streamlog.objectstore.keys import data_key
from tests.engine.harness import NO_CACHE, World, batch, error_of, payloads, read_all, run
from tests.support.object_ids import take_id

PAYLOADS = [b"%d" % number * 200_000 for number in range(8)]
LARGE = dataclasses.replace(NO_CACHE, read=ReadConfig(tail_cache_bytes=0, get_bytes_max=1 << 20))


async def _replace(world: World, stream_id: int) -> ObjectRow:
    """All ranges of the stream in one new object; the old ones are deleted."""
    entries = [
        StreamEntry(stream_id, 1, number, 1, 0, (payload,), b"", crc32c(payload))
        for number, payload in enumerate(PAYLOADS)
    ]
    object_id = await take_id(world.metadata.as_metadata)
    built = build_object(ObjectIdentity("fake", 1, 1, object_id), entries)
    await world.store.put(data_key(object_id), built.parts)
    old = {row.object_id for _, row in world.metadata.ranges[stream_id]}
    await world.store.delete([data_key(object_id) for object_id in old])
    world.metadata.while_catching_up = lambda: world.metadata.ranges.update(
        {stream_id: [(built.ranges[0], built.row)]}
    )
    return built.row


async def _filled(streams: StreamClient) -> Stream:
    """A stream with an object for each payload."""
    stream = await streams.create_and_open_stream()
    for payload in PAYLOADS:
        await stream.append(batch(payload))
    return stream


@pytest.mark.parametrize("is_index_cached", [False, True])
def test_a_replaced_object_is_found_again_once_the_fold_has_caught_up(
    is_index_cached: bool,
) -> None:
    async def scenario() -> None:
        world = World("object", LARGE)
        async with world.engine() as (streams, engine):
            stream = await _filled(streams)
            if is_index_cached:
                await stream.fetch(0, 1, 1)
            old = {row.object_id for _, row in world.metadata.ranges[stream.stream_id]}
            row = await _replace(world, stream.stream_id)
            assert await read_all(stream, hint=300_000) == PAYLOADS
            assert world.metadata.caught_up == 1
            assert len(await stream.attributes(0, 8)) == 8
            assert engine.blocks.indexes.peek(row.object_id) is not None
            if not is_index_cached:
                assert not any(object_id in engine.blocks.indexes for object_id in old)

    run(scenario)


def test_attributes_find_a_replaced_object() -> None:
    async def scenario() -> None:
        world = World("object", LARGE)
        async with world.engine() as (streams, _):
            stream = await _filled(streams)
            await _replace(world, stream.stream_id)
            assert len(await stream.attributes(0, 8)) == 8
            assert world.metadata.caught_up == 1

    run(scenario)


def test_a_concurrently_trimmed_offset_is_out_of_range() -> None:
    async def scenario() -> None:
        world = World("object", LARGE)
        async with world.engine() as (streams, _):
            stream = await _filled(streams)
            stream_id = stream.stream_id
            first = world.metadata.ranges[stream_id][0][1]
            await world.store.delete([data_key(first.object_id)])

            def trim() -> None:
                row = world.metadata.rows[stream_id]
                world.metadata.rows[stream_id] = dataclasses.replace(row, start=2)
                del world.metadata.ranges[stream_id][0]

            world.metadata.while_catching_up = trim
            error = await error_of(stream.fetch(0, 8, 1))
            assert isinstance(error, OffsetOutOfRange)
            assert error.fields["start_offset"] == 2
            assert payloads((await stream.fetch(2, 8, 1)).batches) == [PAYLOADS[2]]

    run(scenario)


def test_a_live_object_that_is_gone_is_corrupt_and_says_which() -> None:
    async def scenario() -> None:
        world = World("object", LARGE)
        async with world.engine() as (streams, _):
            stream = await _filled(streams)
            rows = [row for _, row in world.metadata.ranges[stream.stream_id]]
            await world.store.delete([data_key(rows[3].object_id)])
            batches = (await stream.fetch(0, 8, 1 << 30)).batches
            assert payloads(batches) == PAYLOADS[:3]
            error = await error_of(stream.fetch(3, 8, 1 << 30))
            assert isinstance(error, Corrupt)
            assert error.object_key == data_key(rows[3].object_id)
            assert (error.start, error.end) == (0, rows[3].size_bytes)
            error = await error_of(stream.attributes(0, 8))
            assert isinstance(error, Corrupt)
            assert error.object_key == data_key(rows[3].object_id)

    run(scenario)


def test_metadata_that_is_away_makes_the_read_retryable() -> None:
    async def scenario() -> None:
        world = World("object", LARGE)
        async with world.engine() as (streams, _):
            stream = await _filled(streams)
            await _replace(world, stream.stream_id)
            catch_up = world.metadata.while_catching_up

            def away() -> None:
                raise MetadataUnavailable("away")

            world.metadata.while_catching_up = away
            assert isinstance(await error_of(stream.fetch(0, 8, 1)), MetadataUnavailable)
            world.metadata.while_catching_up = catch_up
            assert await read_all(stream) == PAYLOADS

    run(scenario)
