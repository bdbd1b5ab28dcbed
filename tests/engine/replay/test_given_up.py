"""Appends that were given up do not come back out of a WAL (docs/protocol.md, section 9)."""

from __future__ import annotations

import asyncio
import dataclasses

from streamlog.engine.config import UploadConfig
from streamlog.errors import Closed, DiskFull
from streamlog.metadata.interface import Tenure
from streamlog.model.batch import StreamState
from tests.engine.fakes import FakeWal
from tests.engine.harness import QUICK, World, batch, error_of, read_all, run, until

NEVER_UPLOADS = dataclasses.replace(QUICK, upload=UploadConfig(upload_interval_ms=1 << 30))


def _given_up(world: World, stream_id: int) -> None:
    """Another node takes the stream, accepting the loss, and closes it."""
    world.metadata.steal(stream_id)
    row = world.metadata.rows[stream_id]
    world.metadata.rows[stream_id] = dataclasses.replace(row, state=StreamState.CLOSED)


def _wal(world: World) -> FakeWal:
    assert world.wal is not None
    return world.wal


async def _left_in_the_wal(world: World) -> tuple[int, int]:
    """Two streams with three acknowledged appends each; the second one is given up."""
    async with world.engine(crash=True) as (streams, _):
        kept = await streams.create_and_open_stream()
        lost = await streams.create_and_open_stream()
        for number in range(3):
            await kept.append(batch(b"%d" % number))
            await lost.append(batch(b"given up"))
    _given_up(world, lost.stream_id)
    return kept.stream_id, lost.stream_id


def test_a_lost_stream_is_opened_again_only_after_a_durable_release() -> None:
    async def scenario() -> None:
        world = World("disk", NEVER_UPLOADS)
        kept_id, lost_id = await _left_in_the_wal(world)
        async with world.engine(crash=True) as (streams, _):
            assert await read_all(await streams.open_stream(lost_id)) == []
        _wal(world).crash()
        async with world.engine() as (streams, _):
            assert await read_all(await streams.open_stream(lost_id)) == []
            assert await read_all(await streams.open_stream(kept_id)) == [b"0", b"1", b"2"]

    run(scenario)


def test_appends_of_a_stream_lost_while_this_node_ran_do_not_come_back() -> None:
    async def scenario() -> None:
        world = World("disk", NEVER_UPLOADS)
        async with world.engine(crash=True) as (streams, engine):
            lost = await streams.create_and_open_stream()
            await lost.append(batch(b"given up"))
            _given_up(world, lost.stream_id)
            again = await streams.open_stream(lost.stream_id)
            assert again.confirm_offset == 0
            assert not engine.foreign
        _wal(world).crash()
        async with world.engine() as (streams, _):
            assert await read_all(await streams.open_stream(lost.stream_id)) == []

    run(scenario)


def test_a_disk_error_fails_the_opening_and_nothing_else() -> None:
    async def scenario() -> None:
        world = World("disk", NEVER_UPLOADS)
        kept_id, lost_id = await _left_in_the_wal(world)
        async with world.engine() as (streams, engine):
            _wal(world).failures = 1
            epoch = world.metadata.rows[lost_id].epoch
            assert isinstance(await error_of(streams.open_stream(lost_id)), DiskFull)
            assert world.metadata.rows[lost_id].epoch == epoch
            assert engine.foreign == {lost_id}
            assert await read_all(await streams.open_stream(kept_id)) == [b"0", b"1", b"2"]
            assert await read_all(await streams.open_stream(lost_id)) == []

    run(scenario)


def test_a_closed_engine_ends_the_wait_for_the_release() -> None:
    async def scenario() -> None:
        world = World("disk", NEVER_UPLOADS)
        _, lost_id = await _left_in_the_wal(world)
        world.metadata.gate.clear()
        async with world.engine(crash=True) as (streams, engine):
            opening = asyncio.ensure_future(error_of(streams.open_stream(lost_id)))
            await until(lambda: world.store.puts > 0)
            await engine.kill()
            assert isinstance(await opening, Closed)
        assert world.metadata.rows[lost_id].holder == Tenure(2, 1)

    run(scenario)


def test_appends_given_up_with_a_disk_do_not_come_back() -> None:
    """Another WAL was in use meanwhile: the appends in the old one were given up."""

    async def scenario() -> None:
        world = World("disk", NEVER_UPLOADS)
        async with world.engine(crash=True) as (streams, _):
            stream = await streams.create_and_open_stream()
            for _ in range(3):
                await stream.append(batch(b"given up"))
        _given_up(world, stream.stream_id)
        old, world.wal = _wal(world), FakeWal()
        async with world.engine() as (streams, _):
            await (await streams.open_stream(stream.stream_id)).append(batch(b"new"))
        world.wal = old
        # The second start finds the first one's tenure named in the WAL.
        for _ in range(2):
            async with world.engine(crash=True) as (streams, _):
                assert await read_all(await streams.open_stream(stream.stream_id)) == [b"new"]
            old.crash()

    run(scenario)


def test_older_metadata_gets_the_appends_of_the_wal() -> None:
    """Recovered from the bucket, it names the last tenure that stored the stream's data."""

    async def scenario() -> None:
        world = World("disk", NEVER_UPLOADS)
        world.metadata.tenure = Tenure(1, 7)
        async with world.engine(crash=True) as (streams, _):
            stream = await streams.create_and_open_stream()
            await stream.append(batch(b"acknowledged"))
        row = world.metadata.rows[stream.stream_id]
        world.metadata.rows[stream.stream_id] = dataclasses.replace(row, holder=Tenure(1, 3))
        async with world.engine() as (streams, _):
            assert await read_all(await streams.open_stream(stream.stream_id)) == [b"acknowledged"]

    run(scenario)
