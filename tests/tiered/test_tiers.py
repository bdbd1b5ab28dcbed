"""One log in two tiers: what is copied may go here, and is read from there."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from uuid import UUID

import pytest

from streamlog.codec.batch import parse_header, scan
from streamlog.codec.records import iterate
from streamlog.errors import Corrupt, OffsetOutOfRange, StoreUnavailable
from streamlog.format.kafka_files.names import LOG, file_name
from streamlog.log.api.abstract_log import (
    EARLIEST,
    EARLIEST_LOCAL,
    LATEST,
    LATEST_TIERED,
    AbortedTransaction,
    Isolation,
)
from streamlog.runtime.rand import SeededRandom
from streamlog.testing.logs.log_conformance import append, encoded
from streamlog.testing.logs.transaction_conformance import begin, end, transactional
from streamlog.testing.torn_folder import TornTree
from streamlog.tiered.api import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
)
from streamlog.tiered.config import RemoteLogConfig
from streamlog.tiered.reading.chunks import ChunkConfig
from streamlog.unified.disk.files import read_file
from tests.tiered.harness import TieredLogUnderTest, tiered_log, values

STARTED = RemoteLogSegmentState.COPY_SEGMENT_STARTED
FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
UNCOMMITTED = Isolation.READ_UNCOMMITTED
SMALL_CHUNKS = RemoteLogConfig(
    reads_kept_bytes=1024,
    chunks=ChunkConfig(chunk_bytes=256, retry_ms=1, retry_ms_max=2),
    fetch_wait_ms=200,
    batch_bytes_max=256,
)


def run(
    test: Callable[[TieredLogUnderTest], Awaitable[None]],
    config: RemoteLogConfig = SMALL_CHUNKS,
    **configs: str,
) -> None:
    async def body() -> None:
        tree = TornTree(SeededRandom(3))
        named = {name.replace("_", "."): text for name, text in configs.items()}
        async with tiered_log(tree, named, config) as t:
            await test(t)

    asyncio.run(body())


async def filled(t: TieredLogUnderTest, count: int = 40) -> dict[int, bytes]:
    """Records of 100 bytes, each a batch, 10 minutes after each other: about five a segment."""
    wanted: dict[int, bytes] = {}
    for number in range(count):
        value = b"%06d" % number * 16
        at_ms = t.clock.now_ms()
        info = await append(t.log, encoded([value], at_ms=at_ms))
        wanted[info.base_offset] = value
        t.clock.advance(600_000)
    return wanted


async def only_newest_local(t: TieredLogUnderTest) -> None:
    await t.copy()
    await t.configure(local_retention_bytes="1")
    await t.retain()
    assert len(t.log.segments) == 1
    assert t.log.log_start_offset == 0


def test_what_is_copied_may_go_here_and_is_read_from_there() -> None:
    async def test(t: TieredLogUnderTest) -> None:
        wanted = await filled(t)
        before = len(t.log.segments)
        assert before > 4
        await t.retain()
        assert len(t.log.segments) == before, "nothing is copied yet"
        await only_newest_local(t)
        assert t.log.local_log_start_offset == t.log.segments[0].base_offset > 0
        assert await values(t.log) == wanted
        for offset in wanted:
            assert await values(t.log, offset) == {
                at: value for at, value in wanted.items() if at >= offset
            }
        for life in (t.reopened, t.crashed):
            await life()
            assert (t.log.log_start_offset, t.log.copied_end_offset) == (
                0,
                t.log.segments[0].base_offset,
            )
            assert await values(t.log) == wanted

    run(test)


def test_an_active_segment_past_the_local_limits_is_closed_and_leaves_as_others_do() -> None:
    """As in Kafka: a log that is not appended to any more would stay here without end."""

    async def test(t: TieredLogUnderTest) -> None:
        wanted = await filled(t)
        end = t.log.log_end_offset
        await t.configure(local_retention_ms="599999")
        await t.retain()
        active = t.log.segments[-1].base_offset
        assert active < end, "what lies before it is not copied"
        for _ in range(2):
            await t.copy()
            await t.retain()
        assert (t.log.local_log_start_offset, t.log.copied_end_offset) == (end, end)
        assert len(t.log.segments) == 1
        assert await values(t.log) == wanted
        await t.retain()
        assert len(t.log.segments) == 1, "an empty one is not closed"
        info = await append(t.log, encoded([b"young"], at_ms=t.clock.now_ms()))
        await t.retain()
        assert t.log.segments[-1].base_offset == info.base_offset
        assert t.log.segments[-1].end_offset == info.base_offset + 1

    run(test)


def test_the_special_offsets_and_times_go_over_both_tiers() -> None:
    async def test(t: TieredLogUnderTest) -> None:
        begun_ms = t.clock.now_ms()
        wanted = await filled(t)

        async def at(special: int) -> int:
            return (await t.log.offset_for_timestamp(special, UNCOMMITTED)).offset

        assert (await at(EARLIEST), await at(EARLIEST_LOCAL), await at(LATEST_TIERED)) == (0, 0, -1)
        await only_newest_local(t)
        local = t.log.segments[0].base_offset
        assert (await at(EARLIEST), await at(EARLIEST_LOCAL)) == (0, local)
        assert (await at(LATEST_TIERED), await at(LATEST)) == (local - 1, len(wanted))
        for offset in wanted:
            stamp = begun_ms + 600_000 * offset
            for asked in (stamp, stamp - 599_999):
                found = await t.log.offset_for_timestamp(asked, UNCOMMITTED)
                assert (found.offset, found.timestamp_ms, found.leader_epoch) == (offset, stamp, 1)
        assert await at(begun_ms + 600_000 * len(wanted)) == -1
        await t.log.delete_records(7)
        assert (await at(EARLIEST), await at(begun_ms)) == (7, 7)

    run(test)


def test_the_whole_log_expires_by_its_own_limits() -> None:
    async def test(t: TieredLogUnderTest) -> None:
        wanted = await filled(t)
        await only_newest_local(t)
        copies = len(t.storage.segments)
        await t.configure(retention_ms=str(600_000 * 15 + 1))
        await t.copy()
        start = t.log.log_start_offset
        assert 0 < start <= 40 - 15
        assert 40 - 15 - start < 8, "all but a part of a segment"
        assert len(t.storage.segments) < copies
        assert await values(t.log, start) == {
            at: value for at, value in wanted.items() if at >= start
        }
        with pytest.raises(OffsetOutOfRange):
            await t.log.fetch(start - 1, 1000)
        await t.configure(retention_ms="-1", retention_bytes="1200", local_retention_bytes="-2")
        await t.copy()
        assert t.log.log_start_offset > start
        await t.log.delete_records(t.log.high_watermark)
        await t.copy()
        await t.copy()
        assert t.storage.segments == {}
        await t.crashed()
        assert t.log.log_start_offset == t.log.high_watermark == 40

    run(test)


def test_segments_of_another_lineage_count_against_no_limit() -> None:
    """A leader whose records were truncated here has left a large one, and an old one."""

    async def test(t: TieredLogUnderTest) -> None:
        wanted = await filled(t)
        await only_newest_local(t)
        for number, (epoch, size_bytes) in enumerate(((98, 1_000_000), (99, 10))):
            segment_id = RemoteLogSegmentId(t.partition, UUID(int=900 + number))
            stray = RemoteLogSegmentMetadata(
                segment_id, 0, 90, 0, 2, 0, size_bytes, STARTED, {epoch: 0}
            )
            await t.metadata.add_remote_log_segment_metadata(stray)
            await t.metadata.update_remote_log_segment_metadata(
                RemoteLogSegmentMetadataUpdate(segment_id, 1, FINISHED, 2)
            )
        await t.configure(retention_bytes="1000000", retention_ms=str(600_000 * 1000))
        t.clock.advance(600_000)
        await t.copy()
        assert t.log.log_start_offset == 0
        assert await values(t.log) == wanted

    run(test)


def test_records_of_an_open_transaction_are_not_copied_and_aborted_ones_are_told() -> None:
    async def test(t: TieredLogUnderTest) -> None:
        await append(t.log, encoded([b"plain"]))
        await begin(t.log, transactional([b"aborted" * 20], 8, 0, 0))
        await filled(t, 20)
        await t.copy()
        assert t.log.copied_end_offset <= 1
        await end(t.log, False, 8)
        last = t.log.log_end_offset
        await filled(t, 20)
        await only_newest_local(t)
        assert t.log.local_log_start_offset > last
        fetched = await t.log.fetch(0, 500, isolation=Isolation.READ_COMMITTED)
        assert fetched.aborted == (AbortedTransaction(8, 1),)
        late = await t.log.fetch(last, 500, isolation=Isolation.READ_COMMITTED)
        assert late.aborted == ()
        # The marker lies in the other tier than the transaction's records.
        first = await begin(t.log, transactional([b"aborted" * 20], 8, 0, 1))
        await t.log.roll()
        await filled(t, 8)
        await end(t.log, False, 8)
        await t.copy()
        fetched = await t.log.fetch(first.base_offset, 200, isolation=Isolation.READ_COMMITTED)
        assert fetched.aborted == (AbortedTransaction(8, first.base_offset),)

    run(test)


def test_a_copy_that_fails_is_taken_back_and_tried_again() -> None:
    async def test(t: TieredLogUnderTest) -> None:
        wanted = await filled(t)
        for call in ("copy", "copied"):

            def strike(now: str, call: str = call) -> None:
                if now == call:
                    raise RuntimeError("the plug-in has a bug")

            t.storage.strike = strike
            await t.copy()
            assert t.storage.segments == {}
            assert t.log.copied_end_offset == 0
            (alarm,) = t.manager.alarms()
            assert "the plug-in has a bug" in alarm
            await t.retain()
            assert await values(t.log) == wanted
        t.storage.strike = lambda _: None
        await only_newest_local(t)
        assert t.manager.alarms() == []
        assert await values(t.log) == wanted

    run(test)


def test_a_segment_whose_file_was_cut_is_not_copied_as_a_whole() -> None:
    """Retention would delete what somebody could put back."""

    async def test(t: TieredLogUnderTest) -> None:
        wanted = await filled(t)
        second = t.log.segments[1]
        folder, name = t.tree.open("t-0"), file_name(second.base_offset, LOG)
        whole = read_file(folder, name)
        file = folder.open(name)
        file.truncate(len(whole) // 2)
        await t.copy()
        assert t.log.copied_end_offset == second.base_offset
        assert len(t.storage.segments) == 1
        (alarm,) = t.manager.alarms()
        assert name in alarm
        await t.configure(local_retention_bytes="1")
        await t.retain()
        assert t.log.local_log_start_offset == second.base_offset
        file.append([whole[len(whole) // 2 :]])
        file.close()
        t.clock.advance(60_000)
        await t.copy()
        await only_newest_local(t)
        assert t.log.local_log_start_offset > second.base_offset
        assert await values(t.log) == wanted

    run(test)


def test_a_segment_that_is_refused_takes_nothing_of_the_quota() -> None:
    async def test(t: TieredLogUnderTest) -> None:
        await filled(t)
        first, second, *_ = t.log.segments
        file = t.tree.open("t-0").open(file_name(second.base_offset, LOG))
        file.truncate(second.size_bytes // 2)
        file.close()
        for _ in range(3):
            await t.copy()
            t.clock.advance(60_000)
        assert t.log.copied_end_offset == second.base_offset
        assert t.copy_quota.recorded == first.size_bytes

    run(test)


@pytest.mark.parametrize("left_bytes", [0, 50], ids=["whole batches", "half a batch"])
def test_a_segment_that_a_start_found_cut_is_not_copied_as_a_whole(left_bytes: int) -> None:
    async def test(t: TieredLogUnderTest) -> None:
        wanted = await filled(t)
        second = t.log.segments[1]
        folder, name = t.tree.open("t-0"), file_name(second.base_offset, LOG)
        whole = read_file(folder, name)
        file = folder.open(name)
        size = parse_header(whole).size_bytes + left_bytes
        file.truncate(size)
        file.sync()
        await t.reopened()
        await t.copy()
        assert t.log.copied_end_offset == second.base_offset
        assert len(t.storage.segments) == 1
        (alarm,) = t.manager.alarms()
        assert name in alarm
        assert "is not copied to the remote tier" in alarm
        await t.configure(local_retention_bytes="1")
        await t.retain()
        assert t.log.local_log_start_offset == second.base_offset
        file.append([whole[size:]])
        file.sync()
        file.close()
        await t.reopened()
        await only_newest_local(t)
        assert t.log.local_log_start_offset > second.base_offset
        assert await values(t.log) == wanted

    run(test)


def test_a_failure_lasts_as_long_as_it_does_where_the_clock_is_set_back() -> None:
    async def test(t: TieredLogUnderTest) -> None:
        await filled(t)
        await t.copy()
        await only_newest_local(t)
        await filled(t)

        def fails(_: str) -> None:
            raise OSError("away")

        t.storage.strike = fails
        await t.copy()
        with pytest.raises(StoreUnavailable, match=r"has failed for 0\.0 s"):
            await t.log.fetch(0, 1000)
        t.clock.set_by(-36_000_000)
        t.clock.advance(5000)
        with pytest.raises(StoreUnavailable, match=r"has failed for 5\.0 s"):
            await t.log.fetch(0, 1000)
        (alarm,) = t.manager.alarms()
        assert "are not copied or expired for 5 s" in alarm

    run(test)


def test_a_copy_that_a_crash_cut_off_is_deleted_by_the_next_life() -> None:
    async def test(t: TieredLogUnderTest) -> None:
        wanted = await filled(t)
        hangs = asyncio.Event()

        async def never(call: str) -> None:
            if call == "copied":
                hangs.set()
                await asyncio.Event().wait()

        t.storage.strike = never
        await t.manager.tick()
        await hangs.wait()
        assert len(t.storage.segments) == 1
        await t.crashed()
        t.storage.strike = lambda _: None
        await t.copy()
        await t.copy()
        found = await t.metadata.list_remote_log_segments(t.partition)
        assert {one.remote_log_segment_id.id for one in found} == set(t.storage.segments)
        assert [one.start_offset for one in found] == [
            one.base_offset for one in t.log.segments if not one.is_active
        ]
        await only_newest_local(t)
        assert await values(t.log) == wanted

    run(test)


def test_a_store_that_fails_is_told_and_one_that_is_slow_makes_progress() -> None:
    async def test(t: TieredLogUnderTest) -> None:
        wanted = await filled(t)
        await only_newest_local(t)

        def fails(_: str) -> None:
            raise OSError("away")

        t.storage.strike = fails
        with pytest.raises(StoreUnavailable, match="has failed for"):
            await t.log.fetch(0, 1000)
        assert await values(t.log, t.log.local_log_start_offset)
        gate = asyncio.Event()

        async def waits(_: str) -> None:
            await gate.wait()

        t.storage.strike = waits
        # The outage lasts until a try succeeds.
        with pytest.raises(StoreUnavailable):
            await t.log.fetch(0, 1000)
        gate.set()
        assert await values(t.log) == wanted
        gate.clear()
        await t.reopened()
        empty = await t.log.fetch(0, 1000)
        assert (empty.size_bytes, empty.is_paced, empty.next_offset) == (0, True, 0)
        gate.set()
        assert await values(t.log) == wanted

    run(test)


def test_damaged_bytes_are_found_and_never_served() -> None:
    async def test(t: TieredLogUnderTest) -> None:
        wanted = await filled(t)
        await only_newest_local(t)
        files = t.storage.segments[min(t.storage.segments, key=lambda one: one.int)]
        for name in ("LOG", "OFFSET", "TIMESTAMP"):
            good = files[name]
            for at in range(0, len(good), max(len(good) // 40, 1)):
                files[name] = good[:at] + bytes([good[at] ^ 0x41]) + good[at + 1 :]
                await t.reopened()
                if "remote-log-index-cache" in t.tree.folders():
                    t.tree.remove("remote-log-index-cache")
                await t.reopened()
                for offset in (0, 3, 11, 19, 30):
                    try:
                        found = await values(t.log, offset)
                    except Corrupt:
                        continue
                    assert found == {one: wanted[one] for one in wanted if one >= offset}
            files[name] = good
            for at in (0, 1, len(good) // 2, len(good) - 1):
                files[name] = good[:at]
                await t.reopened()
                for offset in (0, 3, 11, 19, 30):
                    try:
                        found = await values(t.log, offset)
                    except Corrupt:
                        continue
                    assert found == {one: wanted[one] for one in wanted if one >= offset}
            files[name] = good

    run(test)


def test_deleting_the_topic_deletes_what_is_remote_also_after_a_crash() -> None:
    async def test(t: TieredLogUnderTest) -> None:
        await filled(t)
        await only_newest_local(t)

        def fails(call: str) -> None:
            if call == "delete":
                raise OSError("away")

        t.storage.strike = fails
        await t.log.close()
        await t.factory.remove(t.handle)
        assert await t.metadata.deleted_partitions()
        assert t.storage.segments
        await t.folder.close()
        await t.manager.close()
        t.storage.strike = lambda _: None
        await t.open_node()
        async with asyncio.timeout(10):
            await t.manager.deletions_done()
        assert t.storage.segments == {}
        assert await t.metadata.deleted_partitions() == []
        assert await t.metadata.list_remote_log_segments(t.partition) == []

    run(test)


def test_tiering_is_turned_off_and_its_data_goes() -> None:
    async def test(t: TieredLogUnderTest) -> None:
        wanted = await filled(t)
        await only_newest_local(t)
        await t.configure(remote_log_copy_disable="true", local_retention_bytes="-2")
        await filled(t, 20)
        copied = t.log.copied_end_offset
        await t.copy()
        assert t.log.copied_end_offset == copied
        assert await values(t.log, 3) | wanted == await values(t.log)
        await t.configure(remote_storage_enable="false", remote_log_delete_on_disable="true")
        await t.copy()
        assert t.storage.segments == {}
        assert t.log.log_start_offset == t.log.local_log_start_offset
        await t.crashed()
        assert t.log.log_start_offset == t.log.segments[0].base_offset

    run(test)


@pytest.mark.parametrize("restarts", [False, True])
def test_a_tier_that_is_turned_off_and_on_in_an_outage_loses_nothing(restarts: bool) -> None:
    async def test(t: TieredLogUnderTest) -> None:
        wanted = await filled(t)
        await t.copy()
        copied = t.log.copied_end_offset
        deletions = 0

        def away(call: str) -> None:
            nonlocal deletions
            deletions += call == "delete"
            if deletions > 2:
                raise OSError("no connection")

        t.storage.strike = away
        await t.configure(remote_storage_enable="false", remote_log_delete_on_disable="true")
        await t.copy()
        assert t.storage.segments, "not all is deleted"
        assert t.log.copied_end_offset == 0, "no local segment may go"
        t.storage.strike = lambda _: None
        await t.configure(remote_storage_enable="true")
        if restarts:
            await t.crashed()
        await t.copy()
        await t.copy()
        assert t.log.copied_end_offset == copied
        await t.configure(local_retention_bytes="0")
        await t.retain()
        assert t.log.local_log_start_offset > 0
        assert await values(t.log) == wanted

    run(test)


def test_a_tier_that_was_turned_off_is_emptied_by_the_next_life() -> None:
    async def test(t: TieredLogUnderTest) -> None:
        wanted = await filled(t)
        await t.copy()

        def away(call: str) -> None:
            raise OSError("no connection")

        t.storage.strike = away
        await t.configure(remote_storage_enable="false", remote_log_delete_on_disable="true")
        await t.copy()
        assert t.storage.segments
        t.storage.strike = lambda _: None
        await t.crashed()
        await t.copy()
        await t.copy()
        assert t.storage.segments == {}
        assert await t.metadata.list_remote_log_segments(t.partition) == []
        assert await values(t.log) == wanted

    run(test)


def test_a_folder_that_lost_what_was_copied_is_refused() -> None:
    async def test(t: TieredLogUnderTest) -> None:
        await filled(t)
        await t.copy()
        await t.log.close()
        folder = t.tree.open("t-0")
        for name in folder.list():
            if name.endswith((".log", ".index", ".timeindex", ".snapshot")):
                folder.remove(name)
        t.folder.recovery_points.forget(t.log.topic_partition)
        with pytest.raises(Corrupt, match="has lost records"):
            await t.open()

    run(test)


def test_a_closed_quota_holds_copies_and_reads_back() -> None:
    async def test(t: TieredLogUnderTest) -> None:
        wanted = await filled(t)
        t.copy_quota.is_open = False
        await t.copy()
        assert t.log.copied_end_offset == 0
        t.copy_quota.is_open = True
        await only_newest_local(t)
        assert t.copy_quota.recorded == sum(
            len(files["LOG"]) for files in t.storage.segments.values()
        )
        t.fetch_quota.is_open = False
        assert (await t.log.fetch(0, 1000)).size_bytes == 0
        assert await values(t.log, t.log.local_log_start_offset)
        t.fetch_quota.is_open = True
        assert await values(t.log) == wanted
        assert t.fetch_quota.recorded

    run(test)


def test_a_remote_batch_without_room_in_the_answer_costs_no_quota() -> None:
    async def test(t: TieredLogUnderTest) -> None:
        await filled(t)
        await only_newest_local(t)
        for _ in range(3):
            fetched = await t.log.fetch(0, 10, min_one_batch=False)
            assert (fetched.size_bytes, fetched.is_paced) == (0, False)
        assert t.fetch_quota.recorded == 0
        assert not t.registry.get_sample_value(
            "streamlog_remote_fetch_bytes_total", {"topic": t.partition.topic}
        )
        fetched = await t.log.fetch(0, 10)
        assert t.fetch_quota.recorded == fetched.size_bytes > 10

    run(test)


@pytest.mark.parametrize("chunk_bytes", [256, 1000, 4 << 20])
@pytest.mark.parametrize("max_bytes", [1, 200, 400, 700, 1000])
def test_an_answer_keeps_no_more_than_twice_its_bytes_in_memory(
    chunk_bytes: int, max_bytes: int
) -> None:
    config = RemoteLogConfig(chunks=ChunkConfig(chunk_bytes=chunk_bytes))

    async def test(t: TieredLogUnderTest) -> None:
        wanted = await filled(t)
        await only_newest_local(t)
        found: dict[int, bytes] = {}
        offset = 0
        while offset < t.log.local_log_start_offset:
            fetched = await t.log.fetch(offset, max_bytes)
            views = [memoryview(part) for part in fetched.parts]
            owners = {id(view.obj): memoryview(view.obj) for view in views}
            kept = sum(owner.nbytes for owner in owners.values())
            assert kept <= 2 * fetched.size_bytes
            for batch in scan(b"".join(fetched.parts)):
                found |= {one[0]: one[3] or b"" for one in iterate(batch.view)}
            offset = fetched.next_offset
        assert found == {one: wanted[one] for one in found}
        assert sorted(found) == list(range(offset))

    run(test, config)


def test_a_damaged_file_of_leader_epochs_loses_nothing() -> None:
    async def test(t: TieredLogUnderTest) -> None:
        wanted = await filled(t, 20)
        await t.crashed()
        wanted |= await filled(t, 20)
        await only_newest_local(t)
        copies = set(t.storage.segments)
        await t.log.close()
        folder = t.tree.open("t-0")
        folder.remove("leader-epoch-checkpoint")
        folder.sync()
        await t.crashed()
        assert await values(t.log) == wanted
        await t.configure(retention_ms="31536000000")
        await t.copy()
        assert copies <= set(t.storage.segments)
        assert await values(t.log) == wanted

    run(test)


def test_a_copy_that_is_still_being_cut_off_is_not_overtaken_by_its_deletion() -> None:
    """A store may finish a write although its call was cancelled."""

    async def test(t: TieredLogUnderTest) -> None:
        wanted = await filled(t)
        begun, released = asyncio.Event(), asyncio.Event()

        async def lingers(call: str) -> None:
            if call != "copy":
                return
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                await released.wait()

        t.storage.strike = lingers
        await t.manager.tick()
        await begun.wait()
        await t.log.close()
        t.storage.strike = lambda _: None
        await t.open()
        tasks = asyncio.ensure_future(t.copy())
        for _ in range(100):
            await asyncio.sleep(0)
        assert len(t.storage.segments) == 1, "nothing is deleted or copied before it has ended"
        released.set()
        await tasks
        await t.copy()
        found = await t.metadata.list_remote_log_segments(t.partition)
        assert {one.remote_log_segment_id.id for one in found} == set(t.storage.segments)
        await only_newest_local(t)
        assert await values(t.log) == wanted

    run(test)
