"""Creating, opening, closing, destroying; restart and crash."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest

from streamlog.engine.config import UploadConfig
from streamlog.errors import Closed, Corrupt, Invalid, StreamFenced, StreamNotFound
from streamlog.metadata.interface import CommitEntry
from streamlog.model.batch import (
    CreateStreamOptions,
    DeleteStreamOptions,
    OpenStreamOptions,
    StreamState,
)
from streamlog.wal.config import WalMode
from tests.engine.harness import (
    NO_CACHE,
    QUICK,
    World,
    batch,
    error_of,
    read_all,
    run,
    sent,
    until,
)
from tests.support.metrics import value_of

MODES: list[WalMode] = ["disk", "object"]
both = pytest.mark.parametrize("mode", MODES)
NEVER_UPLOADS = dataclasses.replace(QUICK, upload=UploadConfig(upload_interval_ms=1 << 30))


async def several_steps() -> None:
    """Of the loop: whatever waits for nothing but its turn goes on."""
    for _ in range(10):
        await asyncio.sleep(0)


@both
def test_streams_and_their_first_batches_are_one_commit(mode: WalMode) -> None:
    async def scenario() -> None:
        world = World(mode, NO_CACHE)
        async with world.engine() as (streams, _):
            options = [CreateStreamOptions({"name": name}) for name in ("meta", "data")]
            meta, data = await streams.create_and_open_streams(
                options,
                lambda ids: [
                    (ids[0], batch(b"%d" % ids[1])),
                    (ids[0], batch(b"second", records=2)),
                ],
            )
            assert len(world.metadata.commits) == 1
            assert world.store.puts == 1
            assert (meta.next_offset, meta.confirm_offset, data.next_offset) == (3, 3, 0)
            assert await read_all(meta) == [b"%d" % data.stream_id, b"second"]
            assert (await meta.append(batch(b"third"))).base_offset == 3
            assert (await streams.describe_stream(data.stream_id)).tags == {"name": "data"}
            too_many = CreateStreamOptions({"x": "y" * 1024})
            assert isinstance(await error_of(streams.create_and_open_stream(too_many)), Invalid)

    run(scenario)


@both
def test_a_failed_create_leaves_no_stream(mode: WalMode) -> None:
    async def scenario() -> None:
        world = World(mode)
        async with world.engine() as (streams, _):
            world.store.puts_to_fail = 1000
            error = await error_of(
                streams.create_and_open_streams(
                    [CreateStreamOptions()], lambda ids: [(ids[0], batch(b"x"))]
                )
            )
            assert error is not None
            assert await streams.list_streams() == []
            world.store.puts_to_fail = 0

    run(scenario)


@both
def test_opening_again_fences_the_older_stream_after_storing_its_appends(mode: WalMode) -> None:
    async def scenario() -> None:
        world = World(mode, NEVER_UPLOADS)
        async with world.engine() as (streams, _):
            old = await streams.create_and_open_stream()
            same = await streams.open_stream(old.stream_id, OpenStreamOptions(old.stream_epoch))
            assert same.stream_epoch == old.stream_epoch
            append = old.append(batch(b"old"))
            new = await streams.open_stream(old.stream_id)
            assert (await append).base_offset == 0
            assert new.stream_epoch > old.stream_epoch
            assert isinstance(await error_of(old.append(batch(b"x"))), StreamFenced)
            assert isinstance(await error_of(old.trim(1)), StreamFenced)
            assert (await new.append(batch(b"new"))).base_offset == 1
            assert await read_all(new) == [b"old", b"new"]
            too_old = OpenStreamOptions(old.stream_epoch)
            error = await error_of(streams.open_stream(old.stream_id, too_old))
            assert isinstance(error, StreamFenced)

    run(scenario)


@both
def test_closing_a_stream_stores_everything_and_releases_the_stream(mode: WalMode) -> None:
    async def scenario() -> None:
        world = World(mode, NEVER_UPLOADS)
        async with world.engine() as (streams, _):
            stream = await streams.create_and_open_stream()
            append = sent(stream.append(batch(b"x")))
            closing = asyncio.ensure_future(stream.close())
            await asyncio.sleep(0)
            assert isinstance(await error_of(stream.append(batch(b"late"))), Closed)
            await closing
            assert append.result().base_offset == 0
            for call in (stream.append(batch(b"y")), stream.fetch(0, 1, 1), stream.close()):
                assert isinstance(await error_of(call), Closed)
            description = await streams.describe_stream(stream.stream_id)
            assert description.state is StreamState.CLOSED
            assert description.end_offset == 1
            again = await streams.open_stream(stream.stream_id)
            assert await read_all(again) == [b"x"]
            await streams.close_stream(again.stream_id)
            await streams.close_stream(again.stream_id)

    run(scenario)


@both
def test_a_destroy_whose_caller_is_cancelled_still_destroys_the_stream(mode: WalMode) -> None:
    async def scenario() -> None:
        world = World(mode)
        async with world.engine() as (streams, engine):
            stream = await streams.create_and_open_stream()
            waiter = asyncio.ensure_future(stream.wait_confirmed(1))
            world.metadata.gate.clear()
            destroying = asyncio.ensure_future(stream.destroy())
            await asyncio.sleep(0.01)
            destroying.cancel()
            assert isinstance(await error_of(destroying), asyncio.CancelledError)
            world.metadata.gate.set()
            assert isinstance(await error_of(waiter), StreamNotFound)
            assert engine.cores == {}

    run(scenario)


@both
def test_a_close_whose_caller_is_cancelled_leaves_one_holder_after_the_next_open(
    mode: WalMode,
) -> None:
    async def scenario() -> None:
        world = World(mode)
        async with world.engine() as (streams, engine):
            stream = await streams.create_and_open_stream()
            await stream.append(batch(b"x"))
            await engine.drain()
            world.metadata.answers.clear()
            closing = asyncio.ensure_future(stream.close())
            await until(lambda: len(world.metadata.commits[-1].closes) == 1)
            closing.cancel()
            assert isinstance(await error_of(closing), asyncio.CancelledError)
            opening = asyncio.ensure_future(streams.open_stream(stream.stream_id))
            await several_steps()
            world.metadata.answers.set()
            opened = await opening
            await several_steps()
            same_epoch = OpenStreamOptions(epoch=opened.stream_epoch)
            again = await streams.open_stream(stream.stream_id, same_epoch)
            results = [await handle.append(batch(b"y")) for handle in (opened, again, opened)]
            assert [result.base_offset for result in results] == [1, 2, 3]
            assert isinstance(await error_of(stream.append(batch(b"z"))), Closed)
            assert len(engine.cores) == 1

    run(scenario)


@both
def test_a_destroyed_stream_is_gone(mode: WalMode) -> None:
    async def scenario() -> None:
        world = World(mode)
        async with world.engine() as (streams, _):
            first, second = await streams.create_and_open_streams([CreateStreamOptions()] * 2)
            first.append(batch(b"x"))
            await first.destroy()
            old = DeleteStreamOptions(epoch=0)
            assert isinstance(
                await error_of(streams.delete_stream(second.stream_id, old)), StreamFenced
            )
            await streams.delete_stream(second.stream_id)
            for stream in (first, second):
                for call in (
                    stream.append(batch(b"y")),
                    stream.fetch(0, 0, 1),
                    streams.open_stream(stream.stream_id),
                    streams.delete_stream(stream.stream_id),
                    streams.describe_stream(stream.stream_id),
                ):
                    assert isinstance(await error_of(call), StreamNotFound)
            assert await streams.list_streams() == []

    run(scenario)


@both
@pytest.mark.parametrize("crash", [False, True])
def test_everything_acknowledged_is_there_after_a_restart(mode: WalMode, crash: bool) -> None:
    async def scenario() -> None:
        world = World(mode, NEVER_UPLOADS if crash else NO_CACHE)
        expected: dict[int, list[bytes]] = {}
        for life in range(4):
            async with world.engine(crash=crash) as (streams, engine):
                for stream_id, payloads_expected in expected.items():
                    stream = await streams.open_stream(stream_id)
                    assert stream.stream_epoch == 1 + life
                    assert await read_all(stream) == payloads_expected
                if not expected:
                    made = await streams.create_and_open_streams([CreateStreamOptions()] * 5)
                    expected = {stream.stream_id: [] for stream in made}
                    stream = made[0]
                opened = [engine.cores[stream_id] for stream_id in expected]
                appends = []
                for number in range(50):
                    core = opened[number % 5]
                    payload = b"%d %d" % (life, number)
                    expected[core.stream_id].append(payload)
                    handle = await streams.open_stream(
                        core.stream_id, OpenStreamOptions(core.epoch)
                    )
                    appends.append(handle.append(batch(payload, records=1 + number % 3)))
                await asyncio.gather(*appends)
        if world.wal is not None:
            assert bool(world.wal.groups) is crash

    run(scenario)


def test_repeated_failed_writes_are_replayed_once() -> None:
    async def scenario() -> None:
        world = World("disk", NEVER_UPLOADS)
        assert world.wal is not None
        async with world.engine(crash=True) as (streams, _):
            stream = await streams.create_and_open_stream()
            world.wal.failures = 5
            await asyncio.gather(*[stream.append(batch(b"%d" % n)) for n in range(3)])
            stream_id = stream.stream_id
        assert sum(len(group.entries) for group in world.wal.groups) > 3
        async with world.engine() as (streams, _):
            stream = await streams.open_stream(stream_id)
            assert await read_all(stream) == [b"0", b"1", b"2"]
        assert world.wal.groups == []

    run(scenario)


def test_a_gap_in_the_wal_is_corrupt_with_its_position() -> None:
    async def scenario() -> None:
        world = World("disk", NEVER_UPLOADS)
        assert world.wal is not None
        async with world.engine(crash=True) as (streams, _):
            stream = await streams.create_and_open_stream()
            for number in range(3):
                await stream.append(batch(b"%d" % number))
        del world.wal.groups[1]

        async def opening() -> None:
            async with world.engine(crash=True):
                pass

        error = await error_of(opening())
        assert isinstance(error, Corrupt)
        assert error.fields == {"object_key": "wal:3", "start": 2, "end": 3}

    run(scenario)


def test_appends_of_streams_that_went_elsewhere_are_skipped() -> None:
    async def scenario() -> None:
        world = World("disk", NEVER_UPLOADS)
        assert world.wal is not None
        async with world.engine(crash=True) as (streams, _):
            kept, moved, destroyed = await streams.create_and_open_streams(
                [CreateStreamOptions()] * 3
            )
            for stream in (kept, moved, destroyed):
                await stream.append(batch(b"x"))
            kept_id = kept.stream_id
        del world.metadata.rows[destroyed.stream_id]
        async with world.engine() as (streams, engine):
            world.metadata.steal(moved.stream_id)
            assert await read_all(await streams.open_stream(kept_id)) == [b"x"]
            await engine.drain()
            # The old appends must not come back under the epoch of the next opening.
            again = await streams.open_stream(moved.stream_id)
            assert again.confirm_offset == again.next_offset
        assert world.wal.groups == []

    run(scenario)


def test_a_wal_left_behind_is_replayed_without_disk_mode() -> None:
    async def scenario() -> None:
        world = World("disk", NEVER_UPLOADS)
        assert world.wal is not None
        async with world.engine(crash=True) as (streams, _):
            stream = await streams.create_and_open_stream()
            await stream.append(batch(b"x"))
        world.mode = "object"
        async with world.engine() as (streams, engine):
            backlog = engine.metrics.upload_backlog_bytes
            assert value_of(backlog) == 1, "acknowledged, and not stored"
            await engine.drain()
            assert value_of(backlog) == 0
            assert world.wal.groups == []
            stream = await streams.open_stream(stream.stream_id)
            assert await read_all(stream) == [b"x"]
            assert (await stream.append(batch(b"y"))).base_offset == 1
            assert value_of(backlog) == 0

    run(scenario)


@both
def test_many_streams_share_few_objects(mode: WalMode) -> None:
    async def scenario() -> None:
        world = World(mode, NO_CACHE)
        async with world.engine() as (streams, engine):
            many = await streams.create_and_open_streams([CreateStreamOptions()] * 10_000)
            puts = world.store.puts
            for turn in range(2):
                appends = [stream.append(batch(b"%d" % turn)) for stream in many]
                await asyncio.gather(*appends)
            await engine.drain()
            assert world.store.puts - puts <= 10
            for stream in many[::1000]:
                assert await read_all(stream) == [b"0", b"1"]
            page = await streams.list_streams(after=many[10].stream_id, limit=5)
            assert [row.stream_id for row in page] == [s.stream_id for s in many[11:16]]
            assert page[0].end_offset == 2

    run(scenario)


@both
def test_commits_hold_the_objects_in_the_order_of_the_appends(mode: WalMode) -> None:
    async def scenario() -> None:
        world = World(mode)
        async with world.engine() as (streams, engine):
            stream = await streams.create_and_open_stream()
            for _ in range(10):
                world.store.puts_to_fail = 1
                await asyncio.gather(*[stream.append(batch(bytes(100))) for _ in range(20)])
            await engine.drain()
        rows = [
            row
            for entry in world.metadata.commits
            if isinstance(entry, CommitEntry)
            for new in entry.objects
            for row in new.ranges
        ]
        assert [row.start for row in rows] == [0, *[row.end for row in rows[:-1]]]
        assert rows[-1].end == 200

    run(scenario)
