"""wal=disk: on a disk whose syncs take long, groups are written beside each other, in order."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from streamlog.engine.append.group_commit import SLOW_SYNC_S
from streamlog.errors import DiskFull, Internal, StreamFenced
from streamlog.format.entry import StreamEntry
from streamlog.model.stream import Stream
from streamlog.wal.writer import WRITES_MAX
from tests.engine.harness import World, batch, error_of, read_all, sent
from tests.engine.remote import run
from tests.support.replacing import replace_method

SLOW_S = 20 * SLOW_SYNC_S
FEW = 5


class Disk:
    """A virtual disk: each write takes `write_s`, however many there are. `most`: at a time."""

    def __init__(self, write_s: float) -> None:
        self.world = World("disk", is_virtual=True)
        self.most = 0
        self.under_way = 0
        self.sizes: list[int] = []

        async def append(entries: Sequence[StreamEntry], known_failures: int) -> int:
            self.sizes.append(len(entries))
            self.under_way += 1
            self.most = max(self.most, self.under_way)
            try:
                return await original(entries, known_failures)
            finally:
                self.under_way -= 1

        assert self.world.wal is not None
        self.wal = self.world.wal
        self.wal.write_s = write_s
        original = self.wal.append
        replace_method(self.wal, "append", append)


async def known_as_slow(stream: Stream) -> None:
    """A first append, whose sync shows what the disk is like."""
    await stream.append(batch(b"first"))


async def appends_in_steps(
    stream: Stream, count: int, step_s: float
) -> list[asyncio.Future[object]]:
    made: list[asyncio.Future[object]] = []
    for number in range(count):
        made.append(asyncio.ensure_future(stream.append(batch(b"%d" % number))))
        await asyncio.sleep(step_s)
    return made


def test_on_a_slow_disk_appends_do_not_wait_for_the_sync_before() -> None:
    async def scenario() -> None:
        disk = Disk(SLOW_S)
        async with disk.world.engine() as (streams, _):
            stream = await streams.create_and_open_stream()
            await known_as_slow(stream)
            appends = await appends_in_steps(stream, WRITES_MAX, SLOW_S / WRITES_MAX)
            assert disk.most == WRITES_MAX
            # One after another the second would begin only now.
            assert appends[0].done()
            await asyncio.gather(*appends)
            assert disk.sizes == [1] + [1] * WRITES_MAX
            numbers = [b"%d" % number for number in range(WRITES_MAX)]
            assert await read_all(stream) == [b"first", *numbers]

    run(scenario)


def test_what_comes_while_all_places_are_taken_shares_the_next_group() -> None:
    async def scenario() -> None:
        disk = Disk(SLOW_S)
        async with disk.world.engine() as (streams, _):
            stream = await streams.create_and_open_stream()
            step_s = SLOW_S / WRITES_MAX / FEW
            appends = await appends_in_steps(stream, 20 * WRITES_MAX * FEW, step_s)
            await asyncio.gather(*appends)
            assert disk.most == WRITES_MAX
            in_between = disk.sizes[10 * WRITES_MAX : -WRITES_MAX]
            assert min(in_between) >= FEW - 1
            assert max(in_between) <= FEW + 2

    run(scenario)


def test_on_a_fast_disk_groups_are_written_one_after_another() -> None:
    """Halves of groups would cost twice the work, and nobody would be answered sooner."""

    async def scenario() -> None:
        disk = Disk(SLOW_SYNC_S / 2)
        async with disk.world.engine() as (streams, _):
            stream = await streams.create_and_open_stream()
            await asyncio.gather(*await appends_in_steps(stream, 100, SLOW_SYNC_S / 20))
            assert disk.most == 1

    run(scenario)


def test_a_disk_that_hung_once_is_not_taken_for_one_of_such_syncs() -> None:
    async def scenario() -> None:
        disk = Disk(60.0)
        async with disk.world.engine() as (streams, _):
            stream = await streams.create_and_open_stream()
            await stream.append(batch(b"hung"))
            disk.wal.write_s = SLOW_S
            appends = await appends_in_steps(stream, 20 * WRITES_MAX, SLOW_S / WRITES_MAX)
            await asyncio.gather(*appends)
            assert disk.most == WRITES_MAX

    run(scenario)


def test_groups_behind_one_that_fails_follow_it_again_in_order() -> None:
    async def scenario() -> None:
        disk = Disk(SLOW_S)
        async with disk.world.engine() as (streams, engine):
            stream = await streams.create_and_open_stream()
            await known_as_slow(stream)
            disk.wal.failures = 1
            appends = await appends_in_steps(stream, WRITES_MAX, SLOW_S / WRITES_MAX / 2)
            assert not any(append.done() for append in appends)
            assert engine.group_commit is not None
            unconfirmed = [len(group.items) for group in engine.group_commit.unconfirmed()]
            assert unconfirmed == [1] * WRITES_MAX + [0]
            await asyncio.gather(*appends)
            numbers = [b"%d" % number for number in range(WRITES_MAX)]
            assert await read_all(stream) == [b"first", *numbers]
            # The failed one twice, and those behind it.
            assert disk.sizes == [1] * (1 + 2 * WRITES_MAX)

    run(scenario)


def test_a_group_of_lost_streams_beside_one_that_fails_stops_nothing() -> None:
    async def scenario() -> None:
        disk = Disk(SLOW_S)
        async with disk.world.engine() as (streams, engine):
            stream = await streams.create_and_open_stream()
            lost = await streams.create_and_open_stream()
            await known_as_slow(stream)
            disk.wal.failures = 1
            kept = sent(stream.append(batch(b"kept")))
            await asyncio.sleep(SLOW_S / 100)
            gone = sent(lost.append(batch(b"gone")))
            await asyncio.sleep(0)
            disk.world.metadata.steal(lost.stream_id)
            assert isinstance(await error_of(gone), StreamFenced)
            assert (await kept).base_offset == 1
            assert engine.failure is None
            assert (await stream.append(batch(b"later"))).base_offset == 2

    run(scenario)


def test_a_group_that_begins_when_the_failure_is_not_told_yet_fails_with_it() -> None:
    """It has waited for its turn since before: the log would give it the failed one's place."""

    async def scenario() -> None:
        disk = Disk(SLOW_S)
        known: list[int] = []

        async def append(entries: Sequence[StreamEntry], known_failures: int) -> int:
            known.append(known_failures)
            try:
                return await original(entries, known_failures)
            except DiskFull:
                await asyncio.sleep(SLOW_S)  # The log knows, and its caller does not.
                raise

        original = disk.wal.append
        replace_method(disk.wal, "append", append)
        async with disk.world.engine() as (streams, _):
            stream = await streams.create_and_open_stream()
            await known_as_slow(stream)
            disk.wal.failures = 1
            await asyncio.gather(*await appends_in_steps(stream, 2, SLOW_S * 3 / 2))
            assert known == [0, 0, 0, 1, 1]
            assert await read_all(stream) == [b"first", b"0", b"1"]

    run(scenario)


def test_a_group_that_was_written_behind_a_failed_one_stops_the_engine() -> None:
    """The log promises that it fails, too: written again, it would be there twice."""

    async def scenario() -> None:
        disk = Disk(SLOW_S)
        calls = 0

        async def append(entries: Sequence[StreamEntry], known_failures: int) -> int:
            nonlocal calls
            calls += 1
            if calls == 1:
                return await original(entries, known_failures)
            if calls == 2:
                disk.wal.failures = 1
                await asyncio.sleep(SLOW_S)
                return await original(entries, known_failures)
            return calls

        original = disk.wal.append
        replace_method(disk.wal, "append", append)
        async with disk.world.engine(crash=True) as (streams, engine):
            stream = await streams.create_and_open_stream()
            await known_as_slow(stream)
            appends = await appends_in_steps(stream, 2, SLOW_S / 2)
            errors = [await error_of(append) for append in appends]
            assert all(isinstance(error, Internal) for error in errors)
            assert isinstance(await engine.wait_stopped(), Internal)

    run(scenario)


def test_an_engine_that_is_killed_leaves_no_write_behind(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario() -> None:
        disk = Disk(SLOW_S)
        async with disk.world.engine(crash=True) as (streams, _):
            stream = await streams.create_and_open_stream()
            await known_as_slow(stream)
            appends = [sent(stream.append(batch(b"a")))]
            await asyncio.sleep(SLOW_S / 2)
            appends.append(sent(stream.append(batch(b"b"))))
            await asyncio.sleep(SLOW_S / 4)
            assert disk.under_way == 2
        # Nor does it begin one, for what came later.
        await asyncio.sleep(SLOW_S)
        assert disk.under_way == 0
        for append in appends:
            await error_of(append)

    run(scenario)
    assert "never retrieved" not in caplog.text
