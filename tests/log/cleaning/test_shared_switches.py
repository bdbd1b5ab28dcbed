"""The switch of a shared log to cleaned slices: crashes, other leaders, readers under way."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any

import pytest

from streamlog.codec.batch import scan
from streamlog.codec.records import iterate
from streamlog.errors import Fenced, Invalid, StoreUnavailable, StreamlogError
from streamlog.log.api.abstract_log import Isolation
from streamlog.log.api.cleaning import CleanableLog, SegmentReplacement
from streamlog.log.api.topic_config import parse
from streamlog.log.cleaning.cleanable import dirtiest, group_by_size
from streamlog.log.cleaning.cleaner import LogCleaning
from streamlog.log.cleaning.log_cleaner import LogCleaner
from streamlog.log.cleaning.offset_map import ENTRY_BYTES
from streamlog.log.shared.cleaning import slice_trimmer
from streamlog.log.shared.cleaning.replacement import SharedReplacement
from streamlog.log.shared.shared_log import SharedLog
from streamlog.log.stream_slices import SlicesView
from streamlog.log.stream_tags import CLEANED_ROLES
from streamlog.model.batch import OpenStreamOptions
from streamlog.model.partition import TopicPartition
from streamlog.runtime.buffers import join
from streamlog.runtime.concurrency.byte_pace import UNLIMITED
from streamlog.runtime.offload import ThreadOffload
from streamlog.testing.basic_streams import BasicStreamClient
from streamlog.testing.clocks import ManualClock
from streamlog.testing.logs.cleaning_conformance import (
    COMPACT,
    KEYS,
    chosen,
    clean,
    clean_again,
    clean_away,
    cleanable,
    contents,
    filled,
    keyed,
    newest,
)
from streamlog.testing.logs.log_conformance import append, refused
from streamlog.testing.logs.transaction_conformance import (
    ABORT,
    COMMIT,
    aborted_in,
    begin,
    committed_values,
    end,
)
from streamlog.testing.memory_streams import MemoryMedium
from tests.log.harness import PARTITION, SharedLogUnderTest, shared_log
from tests.log.memory_log import turns
from tests.support.metrics import value_of

SLOW_TO_GO = {**COMPACT, "file.delete.delay.ms": "60000"}


class DyingMedium(MemoryMedium):
    """After so many durable changes none is made any more: the process that asks is dead."""

    def __init__(self) -> None:
        super().__init__()
        self.changes_left: int | None = None
        self.is_dead = asyncio.Event()

    async def _change(self) -> None:
        await asyncio.sleep(0)
        if self.changes_left is None:
            return
        if not self.changes_left:
            self.is_dead.set()
            await asyncio.Event().wait()
        self.changes_left -= 1

    async def create(self, rows: Any) -> None:
        await self._change()

    async def append(self, batches: Any) -> None:
        await self._change()

    async def update(self, row: Any) -> None:
        await self._change()

    async def remove(self, stream_id: int) -> None:
        await self._change()


Scene = Callable[[SharedLogUnderTest, DyingMedium], Awaitable[None]]


def run(scene: Scene, configs: dict[str, str] = COMPACT) -> None:
    async def body() -> None:
        medium = DyingMedium()

        async def client_of(clock: ManualClock) -> BasicStreamClient:
            return medium.client(clock)

        async with shared_log(client_of, configs) as t:
            await scene(t, medium)

    asyncio.run(body())


def cleaned_rows(medium: MemoryMedium) -> list[Any]:
    return [row for row in medium.rows.values() if row.tags["role"] in CLEANED_ROLES]


def stored_bytes(medium: MemoryMedium) -> int:
    """Of all batches of the log that take room, whether a segment has them or not."""
    return sum(
        len(join(one.parts))
        for row in medium.rows.values()
        for one in row.batches
        if row.tags["role"] in ("data", "cleaned_data")
    )


async def ends_or_dies(medium: DyingMedium, work: Awaitable[object]) -> bool:
    """Whether the work came to its end; it is cancelled where the process died."""
    task, dead = asyncio.ensure_future(work), asyncio.ensure_future(medium.is_dead.wait())
    await asyncio.wait({task, dead}, return_when=asyncio.FIRST_COMPLETED)
    dead.cancel()
    if task.done():
        await task
        return True
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError, StreamlogError):
        await task
    return False


@pytest.mark.parametrize("was_clean", [False, True])
def test_a_crash_at_each_step_leaves_the_old_or_the_new(was_clean: bool) -> None:
    steps: list[int] = []

    async def scene(t: SharedLogUnderTest, medium: DyingMedium) -> None:
        for number in range(12):
            data = keyed(
                b"k%d" % (number % 5),
                b"%d" % number,
                producer=(3, 0, number),
                is_transactional=True,
            )
            await begin(t.log, data)
            await end(t.log, number % 3 > 0, 3)
        await t.log.roll()
        if was_clean:
            await clean(t)
            await turns()
            await filled(t.log, 10, 5)
        expected = await committed_values(t.log)
        values, log_end = newest(await contents(t.log)), t.log.log_end_offset
        medium.changes_left = steps[-1]
        is_over = await ends_or_dies(medium, clean_again(t))
        if is_over:
            await turns()
        await asyncio.wait_for(_crash(t, medium), 10)
        seen = await committed_values(t.log)
        if was_clean:
            assert newest(await contents(t.log)) == values
        else:
            assert set(seen) <= set(expected)
            assert seen[-4:] == expected[-4:]
        assert t.log.log_end_offset == log_end
        # Either all streams for cleaned segments are named, or none is left.
        assert len(cleaned_rows(medium)) in (0, 3)
        await begin(t.log, keyed(b"k9", b"on", producer=(3, 0, 12), is_transactional=True))
        await end(t.log, COMMIT, 3)
        await t.log.roll()
        await clean_again(t)
        await turns()
        left = await committed_values(t.log)
        assert left[-1] == b"on"
        assert len(left) == len(set(left)) <= 6
        # What the dead cleaning has written is gone as well.
        assert stored_bytes(medium) == t.log.size_bytes
        if is_over:
            steps.append(-1)

    for step in range(200):
        steps.append(step)
        run(scene)
        if steps[-1] < 0:
            break
    assert 6 < len(steps) < 100


async def _crash(t: SharedLogUnderTest, medium: DyingMedium) -> None:
    medium.changes_left = None
    medium.is_dead.clear()
    medium.lock = asyncio.Lock()
    await t.crashed()


def test_the_next_open_deletes_streams_that_no_record_names() -> None:
    async def scene(t: SharedLogUnderTest, medium: DyingMedium) -> None:
        await filled(t.log, 20, 2)
        medium.changes_left = 2
        assert not await ends_or_dies(medium, clean(t))
        assert len(cleaned_rows(medium)) == 3
        await _crash(t, medium)
        assert cleaned_rows(medium) == []
        assert len(medium.rows) == 4
        await clean(t)
        assert len(cleaned_rows(medium)) == 3
        await t.log.delete()
        assert medium.rows == {}
        medium.rows.clear()
        await t.start()

    run(scene)


def test_a_leader_that_lost_the_partition_switches_nothing() -> None:
    async def scene(t: SharedLogUnderTest, medium: DyingMedium) -> None:
        await filled(t.log, 60, 10)
        await clean(t)
        await filled(t.log, 60, 10)
        zombie, log = t.log, cleanable(t.log)
        groups = group_by_size([one for one in log.segments if not one.is_active], 600)
        replacements = [await log.replace_segments(groups[0])]
        medium.live_holders.clear()
        t.client = medium.client(t.clock)
        await t.open()
        expected = await contents(t.log)
        data = [one async for one in log.read_for_cleaning(groups[0][0], 0)]
        await replacements[0].append(data[0])
        await refused(Fenced, replacements[0].commit())
        await replacements[0].abandon()
        assert isinstance(t.failures[0], Fenced)
        assert await contents(t.log) == expected
        await clean(t)
        assert newest(await contents(t.log)) == newest(expected)
        await zombie.kill()

    run(scene)


def test_a_leader_that_lost_the_partition_leaves_no_streams() -> None:
    async def scene(t: SharedLogUnderTest, medium: DyingMedium) -> None:
        await filled(t.log, 20, 2)
        zombie, old = t.log, cleanable(t.log).segments[:1]
        # It has written that it creates streams when the next leader comes.
        medium.changes_left = 1
        task = asyncio.ensure_future(cleanable(zombie).replace_segments(old))
        await medium.is_dead.wait()
        medium.changes_left = None
        other = medium.client(t.clock)
        medium.live_holders.clear()
        medium.lock = asyncio.Lock()
        t.client = other
        await t.open()
        task.cancel()
        await asyncio.wait({task})
        await zombie.kill()
        await clean(t)
        assert len(cleaned_rows(medium)) == 3
        await t.crashed()
        assert len(cleaned_rows(medium)) == 3

    run(scene)


class SlowMedium(MemoryMedium):
    """Changes wait while `gate` is closed, once `until` streams were made."""

    def __init__(self, until: int) -> None:
        super().__init__()
        self.until = until
        self.gate, self.waits = asyncio.Event(), asyncio.Event()

    async def _change(self) -> None:
        if len(self.rows) >= self.until:
            self.waits.set()
            await self.gate.wait()

    async def create(self, rows: Any) -> None:
        await self._change()

    async def append(self, batches: Any) -> None:
        await self._change()


@pytest.mark.parametrize("waits_in", ["announcement", "naming"])
def test_a_log_that_is_closed_while_its_first_cleaning_begins_opens_elsewhere(
    waits_in: str,
) -> None:
    async def body() -> None:
        medium = SlowMedium(7 if waits_in == "naming" else 4)
        medium.gate.set()

        async def client_of(clock: ManualClock) -> BasicStreamClient:
            return medium.client(clock)

        async with shared_log(client_of, COMPACT) as t:
            await filled(t.log, 20, 2)
            await t.log.roll()
            await turns()
            old = cleanable(t.log).segments[:1]
            expected = newest(await contents(t.log))
            medium.waits.clear()
            medium.gate.clear()
            task = asyncio.ensure_future(cleanable(t.log).replace_segments(old))
            await medium.waits.wait()
            closing = asyncio.ensure_future(t.log.close())
            await turns(50)
            medium.gate.set()
            await closing
            await asyncio.wait({task})
            # The first node lives on.
            living, t.client = t.client, medium.client(t.clock)
            await t.open()
            await clean(t)
            assert newest(await contents(t.log)) == expected
            assert len(cleaned_rows(medium)) == 3
            await living.stop()

    asyncio.run(body())


async def read_view(t: SharedLogUnderTest, view: SlicesView, end_offset: int) -> dict[int, bytes]:
    """Offset → value of all records that lie in the view's slices, read past the log."""
    found: dict[int, bytes] = {}
    for part in view.slices(0, end_offset):
        stream = await t.client.open_stream(
            part.stream_id,
            OpenStreamOptions(epoch=(await t.client.describe_stream(part.stream_id)).epoch),
        )
        start = part.start + part.shift
        while start < part.end + part.shift:
            read = await stream.fetch(start, part.end + part.shift, 1 << 20)
            for batch in scan(b"".join(join(one.parts) for one in read.batches)):
                for offset, _, _, value, _ in (
                    [] if batch.header.is_control else iterate(batch.view)
                ):
                    found[offset] = value or b""
            start = read.batches[-1].end_offset
    return found


def test_a_view_is_old_or_new_and_old_slices_stay_for_the_delay() -> None:
    async def scene(t: SharedLogUnderTest, medium: DyingMedium) -> None:
        for number in range(40):
            data = keyed(
                b"k%d" % (number % 4),
                b"%d" % number,
                producer=(1, 0, number),
                is_transactional=True,
            )
            await begin(t.log, data)
            await end(t.log, number % 2 > 0, 1)
        await t.log.roll()
        log_end = t.log.log_end_offset
        old = t.log.slices_view()
        before = await read_view(t, old, log_end)
        told = await old.aborted(0, log_end)
        assert (len(before), len(told)) == (40, 20)
        await clean_away(t)
        await turns(50)
        # Who has found the old slices finishes on them, with the transactions that they have.
        assert await read_view(t, old, log_end) == before
        assert await old.aborted(0, log_end) == told
        new = t.log.slices_view()
        after = await read_view(t, new, log_end)
        assert set(after.values()) < {b"%d" % number for number in range(1, 40, 2)}
        assert len(after) == 2
        assert len(await new.aborted(0, log_end)) < 2
        await t.reopened()
        # Nobody of the last process reads any more.
        await refused(StreamlogError, read_view(t, old, log_end))

    run(scene, SLOW_TO_GO)


def test_a_view_that_is_kept_loses_no_slice_while_a_plan_is_made_of_it() -> None:
    """Not even where old slices go at once; afterwards they do."""

    async def scene(t: SharedLogUnderTest, medium: DyingMedium) -> None:
        await filled(t.log, 40, 4)
        old = t.log.slices_view()
        with old.kept():
            before = await read_view(t, old, 40)
            await clean(t)
            await turns(50)
            assert await read_view(t, old, 40) == before
            assert len(before) == 40
        await turns(50)
        await refused(StreamlogError, read_view(t, old, 40))
        assert stored_bytes(medium) == t.log.size_bytes

    run(scene)


def test_views_of_a_cleaning_that_tears_slices_from_readers_are_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(slice_trimmer.SliceTrimmer, "hold", lambda *_: ())

    async def scene(t: SharedLogUnderTest, medium: DyingMedium) -> None:
        await filled(t.log, 40, 4)
        old = t.log.slices_view()
        await clean(t)
        await t.log.raise_start(1)
        await refused(StreamlogError, read_view(t, old, 40))

    run(scene, SLOW_TO_GO)


class SlowReads:
    """Holds the next fetch of a stream with the role until it is let go."""

    def __init__(self, role: str) -> None:
        self.role = role
        self.is_armed = False
        self.began, self.may_go = asyncio.Event(), asyncio.Event()

    def slowed(self, client: BasicStreamClient, medium: MemoryMedium) -> BasicStreamClient:
        original = client.open_stream

        async def open_stream(
            stream_id: int,
            options: OpenStreamOptions = OpenStreamOptions(),  # noqa: B008
        ) -> Any:
            stream: Any = await original(stream_id, options)
            if medium.rows[stream_id].tags["role"] == self.role:
                fetch = stream.fetch

                async def slow(*args: Any) -> Any:
                    if self.is_armed:
                        self.is_armed = False
                        self.began.set()
                        await self.may_go.wait()
                    return await fetch(*args)

                stream.fetch = slow
            return stream

        client.open_stream = open_stream  # type: ignore[method-assign]
        return client


@contextlib.asynccontextmanager
async def slow_log(role: str, configs: dict[str, str]) -> AsyncIterator[Any]:
    medium, reads = MemoryMedium(), SlowReads(role)

    async def client_of(clock: ManualClock) -> BasicStreamClient:
        return reads.slowed(medium.client(clock), medium)

    async with shared_log(client_of, configs) as t:
        yield t, reads


@pytest.mark.parametrize("role", ["data", "txn"])
@pytest.mark.parametrize("configs", [COMPACT, SLOW_TO_GO], ids=["at once", "later"])
def test_a_committed_fetch_beside_the_switch_takes_nothing_aborted(
    role: str, configs: dict[str, str]
) -> None:
    """Batches of an old slice go with its list of aborted transactions, also where it is gone."""

    async def body() -> None:
        async with slow_log(role, configs) as (t, reads):
            for number in range(30):
                data = keyed(
                    b"k%d" % number, b"%d" % number, producer=(1, 0, number), is_transactional=True
                )
                await begin(t.log, data)
                await end(t.log, COMMIT if number % 3 else ABORT, 1)
            await t.log.roll()
            await t.reopened()
            expected = [b"%d" % number for number in range(30) if number % 3]
            reads.is_armed = True
            reading = asyncio.ensure_future(committed_values(t.log))
            await reads.began.wait()
            await clean_away(t)
            await turns(50)
            reads.may_go.set()
            assert await reading == expected
            assert await committed_values(t.log) == expected
            assert len(await aborted_in(t.log, 0)) <= 1

    asyncio.run(body())


def test_a_look_up_by_time_beside_the_switch_finds_a_record() -> None:
    async def body() -> None:
        async with slow_log("time", COMPACT) as (t, reads):
            await filled(t.log, 60, 20)
            await t.reopened()
            reads.is_armed = True
            at_ms = 1_700_000_000_010
            finding = asyncio.ensure_future(
                t.log.offset_for_timestamp(at_ms, Isolation.READ_UNCOMMITTED)
            )
            await reads.began.wait()
            await clean(t)
            await turns(50)
            reads.may_go.set()
            assert (await finding).offset in (10, 40)
            found = await t.log.offset_for_timestamp(at_ms, Isolation.READ_UNCOMMITTED)
            assert found.offset == 40

    asyncio.run(body())


def test_a_cancelled_cleaning_leaves_the_log_and_the_next_one_works() -> None:
    async def scene(t: SharedLogUnderTest, medium: DyingMedium) -> None:
        await filled(t.log, 200, 20)
        expected = newest(await contents(t.log))
        for steps in range(0, 120, 3):
            cleaning = asyncio.ensure_future(clean_again(t))
            for _ in range(steps):
                await asyncio.sleep(0)
            cleaning.cancel()
            await asyncio.wait({cleaning})
            assert newest(await contents(t.log)) == expected
        await clean_again(t)
        assert len(await contents(t.log)) == 20
        assert t.failures == []
        await t.crashed()
        assert newest(await contents(t.log)) == expected

    run(scene)


@pytest.mark.parametrize("role", ["cleaned_data", "cleaned_time"])
def test_the_switch_waits_for_all_that_it_names(role: str) -> None:
    async def scene(t: SharedLogUnderTest, medium: DyingMedium) -> None:
        await filled(t.log, 60, 10)
        await clean(t)
        await filled(t.log, 60, 10)
        expected = newest(await contents(t.log))
        segments = t.log.segments
        (held,) = (row.stream_id for row in cleaned_rows(medium) if row.tags["role"] == role)
        t.client.hold(held)
        cleaning = asyncio.ensure_future(clean(t))
        stream = await t.client.open_stream(
            held, OpenStreamOptions(epoch=(await t.client.describe_stream(held)).epoch)
        )
        while stream.next_offset == stream.confirm_offset:  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0)
        await turns(200)
        assert not cleaning.done()
        # Small segments have no time index, and are switched.
        assert role == "cleaned_time" or t.log.segments == segments
        assert newest(await contents(t.log)) == expected
        cleaning.cancel()
        await asyncio.wait({cleaning})
        await t.crashed()
        assert newest(await contents(t.log)) == expected
        await clean(t)
        assert len(await contents(t.log)) == 10

    run(scene)


def test_the_switch_waits_for_every_batch() -> None:
    """On a medium whose streams do not wait for one another, the last one may come late."""

    async def scene(t: SharedLogUnderTest, medium: DyingMedium) -> None:
        await filled(t.log, 40, 40)
        await clean(t)
        (held,) = (
            row.stream_id for row in cleaned_rows(medium) if row.tags["role"] == "cleaned_data"
        )
        stream: Any = await t.client.open_stream(
            held, OpenStreamOptions(epoch=(await t.client.describe_stream(held)).epoch)
        )
        append_to, gate, answers = stream.append, asyncio.Event(), 0

        def late(*args: Any) -> Any:
            nonlocal answers
            answers += 1
            waits, real = answers > 1, append_to(*args)

            async def answer() -> Any:
                if waits:
                    await gate.wait()
                return await real

            return asyncio.ensure_future(answer())

        stream.append = late
        segments = t.log.segments
        cleaning = asyncio.ensure_future(clean_again(t))
        while answers < 2:  # noqa: ASYNC110 - another thread fills the map of keys
            await asyncio.sleep(0)
        await turns(200)
        assert t.log.segments == segments
        gate.set()
        await cleaning
        assert len(await contents(t.log)) == 40

    run(scene)


def test_a_cleaning_waits_for_the_meta_records_of_its_segments() -> None:
    async def scene(t: SharedLogUnderTest, medium: DyingMedium) -> None:
        (time,) = (row.stream_id for row in medium.rows.values() if row.tags["role"] == "time")
        t.client.hold(time)
        for number in range(60):
            await append(t.log, keyed(b"k%d" % (number % 5), b"%d" % number))
        assert len(t.log.segments) > 2
        beginning = asyncio.ensure_future(cleanable(t.log).replace_segments(t.log.segments[:2]))
        await turns(200)
        assert not beginning.done()
        t.client.release()
        await (await beginning).abandon()
        await t.log.roll()
        await clean(t)
        assert len(await contents(t.log)) == 5
        assert t.failures == []

    run(scene)


async def written_again(
    t: SharedLogUnderTest,
) -> tuple[CleanableLog, dict[int, tuple[bytes | None, bytes | None]], SegmentReplacement]:
    """A log, what is in it, and a replacement that has all of its first segment."""
    await filled(t.log, 40, 40)
    log = cleanable(t.log)
    expected, old = await contents(log), log.segments[:1]
    replacement = await log.replace_segments(old)
    async for data in log.read_for_cleaning(old[0], 0):
        await replacement.append(data)
    await turns(50)
    return log, expected, replacement


def test_a_trim_beside_a_cleaning_takes_nothing_of_it() -> None:
    async def scene(t: SharedLogUnderTest, medium: DyingMedium) -> None:
        log, expected, replacement = await written_again(t)
        await t.log.raise_start(2)
        await replacement.commit()
        left = await contents(log)
        assert left == {offset: record for offset, record in expected.items() if offset >= 2}
        await t.crashed()
        assert await contents(t.log) == left

    run(scene)


def test_a_switch_whose_caller_gave_up_keeps_its_slices() -> None:
    """A deletion that trims comes between the caller's end and the switch."""

    async def scene(t: SharedLogUnderTest, medium: DyingMedium) -> None:
        log, expected, replacement = await written_again(t)
        old = log.segments[0]
        (meta,) = (row.stream_id for row in medium.rows.values() if row.tags["role"] == "meta")
        t.client.hold(meta)
        deletion = asyncio.ensure_future(t.log.raise_start(2))
        await turns(20)
        switch = asyncio.ensure_future(replacement.commit())
        await turns(20)
        switch.cancel()
        await asyncio.wait({switch})
        await replacement.abandon()
        t.client.release()
        assert await deletion == 2
        await turns(50)
        assert log.segments[0] is not old
        left = {offset: record for offset, record in expected.items() if offset >= 2}
        assert await contents(log) == left
        await t.crashed()
        assert await contents(t.log) == left

    run(scene)


def test_a_cleaning_whose_segments_are_deleted_switches_nothing() -> None:
    async def scene(t: SharedLogUnderTest, medium: DyingMedium) -> None:
        await filled(t.log, 40, 40)
        log = cleanable(t.log)
        old = log.segments[:2]
        replacement = await log.replace_segments(old)
        async for data in log.read_for_cleaning(old[0], 0):
            await replacement.append(data)
        await log.delete_oldest_segments(old[0].end_offset, "start_offset")
        await refused(Invalid, replacement.commit())
        await replacement.abandon()
        assert (log.log_start_offset, t.failures) == (old[0].end_offset, [])
        await clean(t)
        assert min(await contents(log)) == old[0].end_offset

    run(scene)


def test_what_a_given_up_cleaning_has_written_goes_at_once() -> None:
    async def scene(t: SharedLogUnderTest, medium: DyingMedium) -> None:
        log, expected, replacement = await written_again(t)
        assert stored_bytes(medium) > log.size_bytes
        await replacement.abandon()
        await turns(20)
        assert stored_bytes(medium) == log.size_bytes
        assert await contents(log) == expected

    run(scene)


@pytest.mark.parametrize("dies", [False, True])
def test_what_lies_behind_slices_in_use_has_the_log_cleaned_again(dies: bool) -> None:
    """A stream loses its beginning alone: the slices before it have to go, too."""

    async def scene(t: SharedLogUnderTest, medium: DyingMedium) -> None:
        config = parse({**COMPACT, "min.cleanable.dirty.ratio": "0.9"})
        await filled(t.log, 40, 40)
        await clean(t)
        await turns(20)
        log, expected = cleanable(t.log), await contents(t.log)
        assert dirtiest([(chosen(t), config)]) is None
        old = log.segments[:1]
        replacement = await log.replace_segments(old)
        async for data in log.read_for_cleaning(old[0], 0):
            await replacement.append(data)
        await turns(20)
        await (t.crashed() if dies else replacement.abandon())
        assert stored_bytes(medium) > t.log.size_bytes
        assert dirtiest([(chosen(t), config)]) is not None
        await clean(t)
        await turns(20)
        assert stored_bytes(medium) == t.log.size_bytes
        assert dirtiest([(chosen(t), config)]) is None
        assert await contents(t.log) == expected

    run(scene)


def test_a_batch_that_nobody_can_read_does_not_fill_the_store() -> None:
    """Each try of the cleaner would write what comes before it, behind slices in use."""

    async def scene(t: SharedLogUnderTest, medium: DyingMedium) -> None:
        log = await with_a_damaged_batch(t, medium)
        config = parse({**COMPACT, "min.cleanable.dirty.ratio": "0"})
        offload, environment, stored = ThreadOffload(), t.environment(), []
        wanted = True
        cleaner = LogCleaner(environment, offload, lambda: UNLIMITED, lambda _: wanted)
        for _ in range(6):
            assert await cleaner.clean_one([(log, config)])
            assert not await cleaner.clean_one([(log, config)]), "it is left alone for a while"
            t.clock.advance(1000 * environment.config.cleaner_backoff_ms)
            await turns(20)
            stored.append(stored_bytes(medium))
        assert stored[1:] == stored[:-1]
        assert value_of(environment.metrics.cleaning_errors) == 6
        wanted = False
        assert await cleaner.clean_one([(log, config)])
        assert await cleaner.clean_one([(log, config)]), "it may be wanted again at once"
        assert value_of(environment.metrics.cleaning_errors) == 6
        await offload.close()

    run(scene)


async def with_a_damaged_batch(t: SharedLogUnderTest, medium: MemoryMedium) -> CleanableLog:
    """A log that was cleaned once, in whose second cleaned segment a byte has changed."""
    await filled(t.log, 80, 80)
    await clean(t)
    await filled(t.log, 20, 20)
    (row,) = [one for one in cleaned_rows(medium) if one.tags["role"] == "cleaned_data"]
    at = len(row.batches) * 3 // 4
    data = bytearray(join(row.batches[at].parts))
    data[-1] ^= 1
    row.batches[at] = row.batches[at]._replace(parts=(bytes(data),))
    return cleanable(t.log)


@pytest.mark.parametrize("asks", range(6))
def test_a_cleaning_ends_when_it_is_not_wanted_any_more(asks: int) -> None:
    """A topic that is not compacted any more loses no further record by its key."""

    async def scene(t: SharedLogUnderTest, medium: DyingMedium) -> None:
        await filled(t.log, 200, 20)
        config = parse({**COMPACT, "min.cleanable.dirty.ratio": "0"})
        offload, left, before = ThreadOffload(), [asks], t.log.segments

        def is_wanted(_: TopicPartition) -> bool:
            left[0] -= 1
            return left[0] >= 0

        cleaner = LogCleaner(t.environment(), offload, lambda: UNLIMITED, is_wanted)
        await cleaner.clean_one([(cleanable(t.log), config)])
        await turns(20)
        # It asks before each group, and before it is swapped in.
        assert len(set(t.log.segments) - set(before)) == asks // 2
        assert t.failures == []
        assert stored_bytes(medium) == t.log.size_bytes
        await offload.close()

    run(scene)


@pytest.mark.parametrize("is_created", [False, True])
def test_streams_that_cannot_be_made_end_no_log(is_created: bool) -> None:
    """A store that is away, or a quota, keeps a log from being cleaned, and nobody else from it."""

    async def scene(t: SharedLogUnderTest, medium: DyingMedium) -> None:
        await filled(t.log, 40, 4)
        create = t.client.create_and_open_streams

        async def fails(*arguments: Any) -> Any:
            if is_created:
                await create(*arguments)
            raise StoreUnavailable("no answer came")

        t.client.create_and_open_streams = fails  # type: ignore[method-assign,assignment]
        await refused(StoreUnavailable, clean(t))
        assert t.failures == []
        await filled(t.log, 4, 4)
        t.client.create_and_open_streams = create  # type: ignore[method-assign]
        await clean(t)
        assert len(await contents(t.log)) == 4
        assert len(cleaned_rows(medium)) == 3

    run(scene)


def test_segments_that_do_not_follow_or_are_active_are_refused() -> None:
    async def scene(t: SharedLogUnderTest, medium: DyingMedium) -> None:
        await filled(t.log, 60, 60)
        log = cleanable(t.log)
        for wrong in (log.segments[-1:], [log.segments[0], log.segments[2]], []):
            await refused(Invalid, log.replace_segments(wrong))
        replacement = await log.replace_segments(log.segments[:1])
        await replacement.abandon()
        await refused(Invalid, replacement.append(b""))
        await refused(Invalid, replacement.commit())
        assert chosen(t).first_dirty_offset == 0

    run(scene)


def test_the_append_time_of_a_batch_that_is_gone_is_that_of_no_other() -> None:
    configs = {**COMPACT, "message.timestamp.type": "LogAppendTime"}

    async def scene(t: SharedLogUnderTest, medium: DyingMedium) -> None:
        times: list[int] = []
        for number in range(6):
            t.clock.advance(10)
            info = await append(t.log, keyed(b"k", b"%d" % number, producer=(1, 0, number)))
            times.append(info.log_append_time_ms)
        await t.log.roll()
        await clean(t, configs=configs)
        for number in range(6):
            again = await append(t.log, keyed(b"k", b"%d" % number, producer=(1, 0, number)))
            assert (again.is_duplicate, again.base_offset) == (True, number)
            assert again.log_append_time_ms == (times[5] if number == 5 else -1)

    run(scene, configs)


def test_lost_data_leaves_what_a_cleaning_wrote_elsewhere() -> None:
    """An operator gives up acknowledged data of the data stream for lost."""

    async def scene(t: SharedLogUnderTest, medium: DyingMedium) -> None:
        await filled(t.log, 60, 10)
        await clean(t)
        expected = await contents(t.log)
        await filled(t.log, 40, 10)
        await t.client.kill()
        await t.log.kill()
        (row,) = [one for one in medium.rows.values() if one.tags["role"] == "data"]
        lost = [batch for batch in row.batches if batch.base_offset >= 60]
        assert len(lost) == 40
        # All that came behind the cleaning, and a part of what it had replaced.
        row.batches, row.end, row.start = [], 50, 50
        t.client = medium.client(t.clock)
        await t.open()
        assert t.log.log_end_offset == 60
        assert await contents(t.log) == expected
        assert (await append(t.log, keyed(b"k", b"on"))).base_offset == 60
        await t.crashed()
        assert (await contents(t.log))[60] == (b"k", b"on")
        await t.log.roll()
        await clean(t)
        assert newest(await contents(t.log))[b"k"] == b"on"

    run(scene)


def roles(rows: Iterable[Any]) -> list[str]:
    return sorted(row.tags["role"] for row in rows)


def test_a_log_that_is_not_cleaned_has_no_more_streams_than_before() -> None:
    async def scene(t: SharedLogUnderTest, medium: DyingMedium) -> None:
        await filled(t.log, 20, 2)
        assert roles(medium.rows.values()) == ["data", "meta", "time", "txn"]
        assert isinstance(t.log, SharedLog)
        assert t.log.topic_partition == PARTITION
        assert not parse({}).is_compacted

    run(scene)


@pytest.mark.parametrize("is_old", [False, True], ids=["as written now", "as written before"])
def test_what_lies_before_an_open_transaction_is_cleaned_away_without_it(
    is_old: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The aborted record before the last stable offset goes: what takes its place is no batch of
    the transaction that is open behind it; or else is not read up to that offset."""
    if is_old:

        def without_headers(*arguments: Any, **options: Any) -> SharedReplacement:
            return SharedReplacement(*arguments, **{**options, "last_stable_offset": 1 << 62})

        monkeypatch.setattr("streamlog.log.shared.shared_log.SharedReplacement", without_headers)

    async def scene(t: SharedLogUnderTest, _: DyingMedium) -> None:
        late_ms = 1_700_000_000_500
        aborted = keyed(b"k", b"aborted", producer=(1, 0, 0), is_transactional=True)
        pending = keyed(b"k", b"open", at_ms=late_ms, producer=(2, 0, 0), is_transactional=True)
        await append(t.log, keyed(b"j", b"plain"))
        await begin(t.log, aborted)
        await begin(t.log, pending)
        await t.log.roll()
        to_clean = chosen(t)
        assert to_clean.first_uncleanable_offset == 1
        # It ends after the cleaning was chosen, and has a newer batch: of its last one a header
        # would stay.
        await end(t.log, ABORT, 1)
        await begin(t.log, keyed(b"k", b"2", producer=(1, 0, 1), is_transactional=True))
        await end(t.log, COMMIT, 1)
        assert t.log.last_stable_offset == 2
        offload = ThreadOffload()
        cleaning = LogCleaning(offload, KEYS * ENTRY_BYTES)
        stats = await cleaning.clean(to_clean, parse(COMPACT), t.clock.now_ms())
        await offload.close()
        assert (stats.records_read, stats.records_written) == (3, 2)
        for offset in (0, 1):
            fetched = await t.log.fetch(offset, 1 << 20, isolation=Isolation.READ_COMMITTED)
            assert fetched.next_offset == 2
            assert b"open" not in join(fetched.parts)
        assert await committed_values(t.log) == [b"plain"]
        if not is_old:
            assert await read_view(t, t.log.slices_view(), 2) == {0: b"plain"}
        found = await t.log.offset_for_timestamp(late_ms, Isolation.READ_COMMITTED)
        assert found.offset == -1
        await end(t.log, COMMIT, 2)
        assert await committed_values(t.log) == [b"plain", b"open", b"2"]

    run(scene)
