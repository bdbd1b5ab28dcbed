"""Starts move while somebody reads, and answers about a copy are lost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection

import pytest

from streamlog.errors import Internal, MetadataUnavailable, OffsetOutOfRange, OutcomeUnknown
from streamlog.log.api.abstract_log import Isolation
from streamlog.model.kv import Key, Value
from streamlog.runtime.concurrency.background import Background
from streamlog.runtime.rand import SeededRandom
from streamlog.testing.basic_kv import BasicKV
from streamlog.testing.clocks import ManualClock
from streamlog.testing.logs.log_conformance import append, encoded, refused
from streamlog.testing.logs.transaction_conformance import begin, end, transactional
from streamlog.testing.simulation.world.loop import run as run_virtually
from streamlog.testing.torn_folder import TornTree
from streamlog.tiered.api import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
    TopicIdPartition,
)
from streamlog.tiered.metadata.kv_records import DELETIONS
from streamlog.tiered.reading.late_results import KEPT_BYTES, LateResults
from tests.log.memory_log import turns
from tests.tiered.harness import (
    TieredLogUnderTest,
    VirtualClock,
    filled_and_copied,
    filled_and_moved,
    lose_metadata,
    tiered_log,
    values,
)

AT_MS = 1_700_000_000_000
WAIT_S = 5


def run(test: Callable[[TieredLogUnderTest], Awaitable[None]]) -> None:
    async def body() -> None:
        async with tiered_log(TornTree(SeededRandom(3)), {}) as t:
            await test(t)

    asyncio.run(body())


@pytest.mark.parametrize("steps", range(0, 60, 2))
def test_no_aborted_record_is_shown_by_a_remote_fetch_whose_offset_is_deleted(steps: int) -> None:
    """`steps`: how far the event loop has come with the fetch when the start moves."""

    async def test(t: TieredLogUnderTest) -> None:
        await begin(t.log, transactional([b"aborted"]))
        await end(t.log, is_commit=False)
        await t.log.roll()
        await append(t.log, encoded([b"plain"]))
        await t.copy()
        await t.configure(local_retention_bytes="0")
        await t.retain()
        assert t.log.local_log_start_offset == 2
        fetch = asyncio.ensure_future(t.log.fetch(0, 1000, isolation=Isolation.READ_COMMITTED))
        for _ in range(steps):
            await asyncio.sleep(0)
        await t.log.raise_start(3)
        (answer,) = await asyncio.gather(fetch, return_exceptions=True)
        if isinstance(answer, OffsetOutOfRange):
            assert answer.fields["start_offset"] == 3
        else:
            assert not isinstance(answer, BaseException)
            assert [one.first_offset for one in answer.aborted] == [0] * bool(answer.batches)

    run(test)


@pytest.mark.parametrize("steps", range(12))
def test_a_look_up_by_time_finds_what_becomes_remote_meanwhile(steps: int) -> None:
    async def test(t: TieredLogUnderTest) -> None:
        for number in range(30):
            await append(t.log, encoded([b"." * 100], at_ms=AT_MS + number))
        await t.log.roll()
        await t.copy()
        await t.configure(local_retention_bytes="0")
        search = asyncio.ensure_future(
            t.log.offset_for_timestamp(AT_MS + 3, Isolation.READ_UNCOMMITTED)
        )
        for _ in range(steps):
            await asyncio.sleep(0)
        await t.retain()
        assert (await search).offset == 3

    run(test)


def test_a_look_up_by_time_in_a_segment_that_is_deleted_goes_on_behind_it() -> None:
    async def test(t: TieredLogUnderTest) -> None:
        await append(t.log, encoded([b"." * 100], at_ms=AT_MS))
        await t.log.roll()
        await append(t.log, encoded([b"." * 100], at_ms=AT_MS + 1))
        await t.copy()
        await t.configure(local_retention_bytes="0")
        await t.retain()
        (one, *_) = await t.metadata.list_remote_log_segments(t.partition)
        deleted = RemoteLogSegmentMetadataUpdate(
            one.remote_log_segment_id,
            t.clock.now_ms(),
            RemoteLogSegmentState.DELETE_SEGMENT_STARTED,
            1,
        )

        async def meanwhile(call: str) -> None:
            if call == "index":
                # Readers hear first that the records are gone, as by an expiry.
                await t.log.raise_start(1)
                await t.metadata.update_remote_log_segment_metadata(deleted)
                t.storage.segments.clear()

        t.storage.strike = meanwhile
        found = await t.log.offset_for_timestamp(AT_MS, Isolation.READ_UNCOMMITTED)
        assert found.offset == 1

    run(test)


def test_a_look_up_by_time_finds_what_becomes_remote_while_the_tier_is_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def test(t: TieredLogUnderTest) -> None:
        for number in range(60):
            await append(t.log, encoded([b"." * 100], at_ms=AT_MS + number))
        await t.copy()
        await t.configure(local_retention_bytes="4000")
        await t.retain()
        wanted = t.log.local_log_start_offset + 2
        answer = t.metadata.remote_log_segment_metadata

        async def meanwhile(
            partition: TopicIdPartition, epoch: int, offset: int
        ) -> RemoteLogSegmentMetadata | None:
            found = await answer(partition, epoch, offset)
            await t.configure(local_retention_bytes="0")
            await t.retain()
            return found

        monkeypatch.setattr(t.metadata, "remote_log_segment_metadata", meanwhile)
        found = await t.log.offset_for_timestamp(AT_MS + wanted, Isolation.READ_UNCOMMITTED)
        assert found.offset == wanted < t.log.local_log_start_offset

    run(test)


def test_what_the_tier_has_is_read_there_while_the_local_disk_removes_it() -> None:
    """The disk may be slow, or hang: no deadline would end the wait for it."""

    async def test(t: TieredLogUnderTest) -> None:
        for number in range(60):
            await append(t.log, encoded([b"." * 100], at_ms=AT_MS + number))
        await t.copy()
        await t.configure(local_retention_bytes="0")
        t.offload.hold()
        under_way = asyncio.ensure_future(t.retain())
        await turns()
        assert not under_way.done()
        try:
            async with asyncio.timeout(WAIT_S):
                fetched = await t.log.fetch(0, 1000)
                found = await t.log.offset_for_timestamp(AT_MS + 3, Isolation.READ_UNCOMMITTED)
        finally:
            t.offload.release()
        await under_way
        assert fetched.batches
        assert found.offset == 3
        assert t.log.log_start_offset == 0 < t.log.local_log_start_offset

    run(test)


async def held_retention(t: TieredLogUnderTest, *, is_flushing: bool) -> list[Awaitable[object]]:
    """A round of local retention that waits for the disk until `t.offload.release()`, and, if there
    is one, the append that it waits for first."""
    t.offload.hold()
    waits: list[Awaitable[object]] = []
    if is_flushing:
        waits.append(await t.log.append(encoded([b"." * 100])))
    waits.append(asyncio.ensure_future(t.retain()))
    await turns()
    return waits


@pytest.mark.parametrize("is_flushing", [True, False])
def test_a_tier_whose_metadata_are_lost_beside_local_retention_leaves_the_log_start(
    is_flushing: bool,
) -> None:
    """What is lost may be put back: a start behind it would delete what is remote. `is_flushing`:
    the round waits for an append, and has not chosen what it removes."""

    async def test(t: TieredLogUnderTest) -> None:
        await filled_and_copied(t, 60)
        await t.configure(local_retention_bytes="3000")
        await t.retain()
        assert 0 < t.log.local_log_start_offset < t.log.copied_end_offset
        await t.configure(local_retention_bytes="0")
        # A follower reads anew what the metadata say.
        await t.manager.on_leadership_change([], [t.log], {"t": t.topic_id})
        await t.copy()
        waits = await held_retention(t, is_flushing=is_flushing)
        copied = t.log.copied_end_offset
        await lose_metadata(t, slice(None))
        await t.copy()
        assert t.log.copied_end_offset < copied
        t.offload.release()
        await asyncio.gather(*waits)
        assert t.log.log_start_offset == 0 < t.log.local_log_start_offset

    run(test)


@pytest.mark.parametrize("is_flushing", [True, False])
def test_a_tier_is_given_up_beside_a_round_of_local_retention(is_flushing: bool) -> None:
    """The log begins where its files do, also where the round ends behind the raise of its start.
    `is_flushing`: the round still waits for an append, and has not chosen what it removes."""

    async def test(t: TieredLogUnderTest) -> None:
        for _ in range(60):
            await append(t.log, encoded([b"." * 100]))
        await t.copy()
        await t.configure(local_retention_bytes="4000")
        await t.retain()
        await t.configure(local_retention_bytes="0")
        waits = await held_retention(t, is_flushing=is_flushing)
        await t.configure(remote_storage_enable="false", remote_log_delete_on_disable="true")
        waits.append(asyncio.ensure_future(t.copy()))
        await turns()
        t.offload.release()
        await asyncio.gather(*waits)
        await t.copy()
        assert not await t.metadata.list_remote_log_segments(t.partition)
        assert t.log.log_start_offset == t.log.local_log_start_offset
        assert t.manager.alarms() == []

    run(test)


def test_a_start_that_an_open_took_from_the_files_stays_when_the_tier_is_turned_on_again() -> None:
    """With a tier the checkpoint alone says where the log begins."""

    async def test(t: TieredLogUnderTest) -> None:
        for _ in range(60):
            await append(t.log, encoded([b"." * 100]))
        await t.copy()
        await t.configure(local_retention_bytes="0")
        await t.retain()
        assert t.log.log_start_offset == 0
        await t.configure(remote_storage_enable="false", remote_log_delete_on_disable="true")
        await t.reopened()
        start = t.log.log_start_offset
        assert start > 0
        await t.copy()
        await t.configure(remote_storage_enable="true")
        await t.reopened()
        assert t.log.log_start_offset == start
        assert t.manager.alarms() == []

    run(test)


class _Answerless(BasicKV):
    """The next change of a segment is made, and its answer lost; `is_away`: from then on nothing is
    answered."""

    is_lost = False
    is_away = False

    async def compare_and_set_kv(self, key: Key, data: bytes, expected_revision: int) -> Value:
        value = await super().compare_and_set_kv(key, data, expected_revision)
        if self.is_lost:
            self.is_lost = False
            raise OutcomeUnknown("the answer was lost")
        return value

    async def get_kv(self, key: Key) -> Value | None:
        if self.is_away and not self.is_lost:
            raise MetadataUnavailable("away")
        return await super().get_kv(key)


def test_a_copy_whose_end_got_no_answer_is_kept_and_counts() -> None:
    async def test(t: TieredLogUnderTest) -> None:
        kv = t.kv = _Answerless()
        await t.open_node()
        await t.open()
        await append(t.log, encoded([b"copied"]))
        await t.log.roll()
        kv.is_lost = True
        await t.copy()
        assert t.log.copied_end_offset == 1
        (segment,) = await t.metadata.list_remote_log_segments(t.partition)
        assert segment.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED
        assert t.storage.segments

    run(test)


@pytest.mark.parametrize("is_stored", [True, False], ids=["of the store", "of the plug-in"])
def test_a_deletion_whose_end_got_no_answer_has_ended(is_stored: bool) -> None:
    """The answer of the store is lost, or the plug-in fails behind it."""

    async def body() -> None:
        async with tiered_log(TornTree(SeededRandom(3)), {}, clock=VirtualClock()) as t:
            await filled_and_moved(t, 60)
            failures = t.registry.get_sample_value
            lost = [MetadataUnavailable("no answer")]
            stop, delete = t.metadata.on_stop_partitions, t.kv.del_kv

            async def deleted(key: Key, expected_revision: int | None = None) -> None:
                await delete(key, expected_revision)
                if key.namespace == DELETIONS and is_stored and lost:
                    raise lost.pop()

            async def stopped(partitions: Collection[TopicIdPartition]) -> None:
                await stop(partitions)
                if not is_stored and lost:
                    raise lost.pop()

            t.kv.del_kv = deleted  # type: ignore[method-assign]
            t.metadata.on_stop_partitions = stopped  # type: ignore[method-assign]
            await t.manager.stop_partitions([t.partition.topic_partition], deletes=True)
            async with asyncio.timeout(600):
                await t.manager.deletions_done()
            assert not lost
            labels = {"operation": "delete", "topic": "t"}
            assert failures("streamlog_remote_errors_total", labels) == 1
            assert t.storage.segments == {}

    run_virtually(body)


def test_a_copy_whose_end_got_no_answer_in_an_outage_is_not_made_again() -> None:
    """The copy cannot be taken back then, and the next run finds it finished."""

    async def test(t: TieredLogUnderTest) -> None:
        kv = t.kv = _Answerless()
        await t.open_node()
        await t.open()
        await append(t.log, encoded([b"copied"]))
        await t.log.roll()
        kv.is_lost = kv.is_away = True
        await t.copy()
        assert len(t.manager.alarms()) == 1
        kv.is_away = False
        for _ in range(3):
            await t.copy()
        assert t.manager.alarms() == []
        assert t.log.copied_end_offset == 1
        (segment,) = await t.metadata.list_remote_log_segments(t.partition)
        assert segment.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED
        assert list(t.storage.segments) == [segment.remote_log_segment_id.id]

    run(test)


class Gates:
    """Metadata updates that take effect when they may go, whatever becomes of their callers."""

    def __init__(self, t: TieredLogUnderTest, *states: RemoteLogSegmentState) -> None:
        self._update = t.metadata.update_remote_log_segment_metadata
        self._held = dict.fromkeys(states, True)
        self.came = {state: asyncio.Event() for state in states}
        self.may_go = {state: asyncio.Event() for state in states}
        self._under_way: list[asyncio.Task[None]] = []
        t.metadata.update_remote_log_segment_metadata = self._gated  # type: ignore[method-assign]

    async def _gated(self, update: RemoteLogSegmentMetadataUpdate) -> None:
        if not self._held.pop(update.state, False):
            await self._update(update)
            return

        async def later() -> None:
            await self.may_go[update.state].wait()
            await self._update(update)

        self.came[update.state].set()
        task = asyncio.create_task(later())
        self._under_way.append(task)
        await asyncio.shield(task)


def test_the_first_copy_of_a_topic_is_announced_while_the_topic_is_deleted() -> None:
    """Nothing was known of its tier when the deletion looked."""

    async def test(t: TieredLogUnderTest) -> None:
        add = t.metadata.add_remote_log_segment_metadata
        came, may_go = asyncio.Event(), asyncio.Event()

        async def later(metadata: RemoteLogSegmentMetadata) -> None:
            came.set()
            await may_go.wait()
            await add(metadata)

        t.metadata.add_remote_log_segment_metadata = later  # type: ignore[method-assign]
        await append(t.log, encoded([b"copied"]))
        await t.log.roll()
        copying = asyncio.ensure_future(t.copy())
        await came.wait()
        await t.log.close()
        await t.factory.remove(t.handle)
        may_go.set()
        await copying
        async with asyncio.timeout(10):
            await t.manager.deletions_done()
        assert await t.metadata.list_remote_log_segments(t.partition) == []
        assert t.storage.segments == {}

    run(test)


def test_a_copy_that_was_announced_without_an_answer_and_late_holds_no_retention_up() -> None:
    async def test(t: TieredLogUnderTest) -> None:
        add, late = t.metadata.add_remote_log_segment_metadata, list[RemoteLogSegmentMetadata]()

        async def added(metadata: RemoteLogSegmentMetadata) -> None:
            if not late:
                late.append(metadata)
                raise MetadataUnavailable("no answer")
            await add(metadata)
            if len(late) == 1:
                late.append(metadata)
                await add(late[0])

        t.metadata.add_remote_log_segment_metadata = added  # type: ignore[method-assign]
        for number in range(30):
            await append(t.log, encoded([b"%d" % number]))
        await t.log.roll()
        for _ in range(3):
            await t.copy()
        assert len(late) == 2
        segments = await t.metadata.list_remote_log_segments(t.partition)
        assert {one.state for one in segments} == {RemoteLogSegmentState.COPY_SEGMENT_FINISHED}
        assert t.log.copied_end_offset == 30

    run(test)


def test_no_local_segment_goes_that_relies_on_a_copy_which_is_being_taken_back() -> None:
    """The log fails while a copy's end is written, and the next log while the copy that it took for
    a left-over is announced as deleted: both writes take effect later."""
    finished = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
    deleting = RemoteLogSegmentState.DELETE_SEGMENT_STARTED

    async def test(t: TieredLogUnderTest) -> None:
        for number in range(30):
            await append(t.log, encoded([b"%d" % number]))
        await t.log.roll()
        gates = Gates(t, finished, deleting)
        rounds = [asyncio.ensure_future(t.copy())]
        await gates.came[finished].wait()
        await t.log.close()
        await t.open()
        rounds.append(asyncio.ensure_future(t.copy()))
        await turns(300)
        gates.may_go[finished].set()
        await turns(300)
        await t.log.close()
        await t.open()
        gates.may_go[deleting].set()
        await asyncio.wait(rounds)
        await t.copy()
        await t.configure(local_retention_bytes="0")
        await t.retain()
        assert t.log.local_log_start_offset == 30
        assert await values(t.log) == {number: b"%d" % number for number in range(30)}

    run(test)


@pytest.mark.parametrize("result", [b"index", b""])
def test_what_comes_late_is_there_for_those_who_have_no_time(result: bytes) -> None:
    """They would begin the work anew each time, and never have what it comes to."""

    async def body() -> None:
        clock, may_go, begun = ManualClock(), asyncio.Event(), 0
        background = Background("late", print)
        each = len(result) + KEPT_BYTES
        late = LateResults(clock, background, 8 * each, 1)

        async def work() -> bytes:
            nonlocal begun
            begun += 1
            await may_go.wait()
            return result

        for _ in range(2):
            assert await late.get("key", work, clock.monotonic()) is None
        may_go.set()
        await turns(20)
        for _ in range(2):
            assert await late.get("key", work, clock.monotonic()) == result
        assert begun == 1
        for number in range(20):
            may_go.clear()
            assert await late.get(number, work, clock.monotonic()) is None
            may_go.set()
            await turns(20)
            assert late.size_bytes == each * min(number + 2, 8)
        assert await late.get("key", work, clock.monotonic() + 1) == result
        assert begun == 22, "the first one was forgotten"
        await background.close()

    asyncio.run(body())


def test_a_bug_is_no_end_of_the_node_for_those_who_wait_for_what_comes_late() -> None:
    async def body() -> None:
        clock, failures = ManualClock(), list[BaseException]()
        background = Background("late", failures.append)
        late = LateResults(clock, background, 40, 1)

        async def work() -> bytes:
            raise KeyError("a bug")

        error = await refused(Internal, late.get("key", work, clock.monotonic() + 1))
        assert "KeyError('a bug')" in str(error)
        assert len(failures) == 1
        await background.close()

    asyncio.run(body())
