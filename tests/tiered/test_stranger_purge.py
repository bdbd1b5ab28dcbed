"""Files of the remote storage that no metadata names are purged, and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from itertools import groupby, zip_longest
from uuid import UUID

import pytest

from streamlog.errors import Corrupt, ObjectNotFound, StoreUnavailable
from streamlog.model.kv import KVClient
from streamlog.model.partition import TopicPartition
from streamlog.objectstore.interface import ListPage, ObjectStore
from streamlog.objectstore.memory import MemoryObjectStore
from streamlog.objectstore.opening import open_store
from streamlog.objectstore.url import parse_store_url
from streamlog.runtime.clock import SystemClock
from streamlog.runtime.offload import ThreadOffload
from streamlog.runtime.rand import SeededRandom
from streamlog.testing.clocks import ManualClock
from streamlog.testing.logs.log_conformance import append, encoded
from streamlog.testing.simulation.world.loop import run as run_virtually
from streamlog.testing.torn_folder import TornTree
from streamlog.tiered.api import LogSegmentData, RemoteLogSegmentMetadata, TopicIdPartition
from streamlog.tiered.api.storage_manager import StoredFile
from streamlog.tiered.config import RemoteLogConfig
from streamlog.tiered.draft.storage_adapter import DraftStorageAdapter, data_partition
from streamlog.tiered.metadata.kv_manager import KVRemoteLogMetadataManager
from streamlog.tiered.metadata.kv_records import segment_key
from streamlog.tiered.storage.object_storage_manager import ObjectRemoteStorageManager
from tests.support.s3 import S3Tests
from tests.tiered.draft.memory_plugin import MemoryPlugin
from tests.tiered.harness import (
    TieredLogUnderTest,
    VirtualClock,
    lose_metadata,
    tiered_log,
    values,
)

DAY_MS = 86_400_000
CONFIG = RemoteLogConfig(purge_age_ms=2 * DAY_MS)
GONE = UUID(int=0xDEAD)
STRANGE = UUID(int=0x5742A)
KEY = "remote/{topic}/0/00000000000000000007.{segment}.{kind}"


class Laggard(ObjectRemoteStorageManager):
    """Copies wait while `gate` is closed, their files being stored."""

    def __init__(self, store: ObjectStore) -> None:
        super().__init__(store, "remote")
        self.store = store
        self.gate = asyncio.Event()
        self.gate.set()
        self.waits = asyncio.Event()

    async def copy_log_segment_data(
        self, metadata: RemoteLogSegmentMetadata, data: LogSegmentData
    ) -> None:
        await super().copy_log_segment_data(metadata, data)
        if not self.gate.is_set():
            self.waits.set()
            await self.gate.wait()


def run(test: Callable[[TieredLogUnderTest, Laggard], Awaitable[None]]) -> None:
    async def body() -> None:
        clock = ManualClock()
        storage = Laggard(MemoryObjectStore(clock))
        async with tiered_log(TornTree(SeededRandom(3)), {}, CONFIG, storage, clock) as t:
            await test(t, storage)

    asyncio.run(body())


async def filled(t: TieredLogUnderTest, count: int = 40) -> dict[int, bytes]:
    wanted: dict[int, bytes] = {}
    for number in range(count):
        value = b"%06d" % number * 16
        wanted[(await append(t.log, encoded([value]))).base_offset] = value
    return wanted


async def keys(storage: Laggard) -> set[str]:
    return {one.key for one in (await storage.store.list("remote/")).objects}


async def put_strangers(storage: Laggard, topic: UUID, count: int = 1) -> set[str]:
    """Each of two files."""
    made = set()
    for number in range(count):
        segment = UUID(int=STRANGE.int + number).hex
        for kind in ("offset", "segment"):
            key = KEY.format(topic=topic.hex, segment=segment, kind=kind)
            await storage.store.put(key, [b"12345"])
            made.add(key)
    return made


async def purge(t: TieredLogUnderTest) -> None:
    topic_id = t.topic_id
    await t.manager.purge(lambda asked: "t" if asked == topic_id else None)


def purged(t: TieredLogUnderTest, what: str) -> float | None:
    return t.registry.get_sample_value(f"streamlog_remote_purged_{what}_total")


def test_strangers_go_when_they_are_old_and_segments_stay() -> None:
    async def test(t: TieredLogUnderTest, storage: Laggard) -> None:
        wanted = await filled(t)
        await t.copy()
        own = await keys(storage)
        assert len(own) > 20
        strangers = await put_strangers(storage, t.topic_id)
        strangers |= await put_strangers(storage, GONE)
        t.clock.advance(2 * DAY_MS)
        await purge(t)
        assert await keys(storage) == own | strangers, "a file is as old as the bound, not older"
        t.clock.advance(1)
        await put_strangers(storage, UUID(int=0xF0))
        await purge(t)
        young = await keys(storage) - own
        assert len(young) == 2
        assert not young & strangers
        assert (purged(t, "files"), purged(t, "bytes")) == (4, 20)
        await t.configure(local_retention_bytes="0")
        await t.retain()
        assert await values(t.log) == wanted

    run(test)


class Shuffled(Laggard):
    """Lists the files of a partition in two pieces."""

    async def stored_files(self) -> AsyncIterator[StoredFile]:
        listed = [one async for one in super().stored_files()]
        for one in [*listed[::2], *listed[1::2]]:
            yield one


def test_a_partition_that_is_listed_in_pieces_is_not_purged() -> None:
    async def body() -> None:
        clock = ManualClock()
        storage = Shuffled(MemoryObjectStore(clock))
        async with tiered_log(TornTree(SeededRandom(3)), {}, CONFIG, storage, clock) as t:
            await filled(t)
            await t.copy()
            strangers = await put_strangers(storage, t.topic_id)
            strangers |= await put_strangers(storage, GONE)
            clock.advance(2 * DAY_MS + 1)
            await purge(t)
            assert strangers <= await keys(storage)

    asyncio.run(body())


class InTurn(Laggard):
    """Lists one file of each partition in turn."""

    async def stored_files(self) -> AsyncIterator[StoredFile]:
        listed = [one async for one in super().stored_files()]
        by_partition = groupby(listed, lambda one: one[:2])
        for in_turn in zip_longest(*[list(files) for _, files in by_partition]):
            for one in filter(None, in_turn):
                yield one


def test_partitions_that_are_listed_in_many_pieces_are_told_once_and_others_are_purged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    whole = KEY.format(topic=UUID(int=2).hex, segment=STRANGE.hex, kind="segment")

    async def body() -> None:
        clock = ManualClock()
        storage = InTurn(MemoryObjectStore(clock))
        async with tiered_log(TornTree(SeededRandom(3)), {}, CONFIG, storage, clock) as t:
            strangers = set[str]()
            for topic in (GONE, UUID(int=1)):
                strangers |= await put_strangers(storage, topic, 3)
            await storage.store.put(whole, [b"12345"])
            clock.advance(2 * DAY_MS + 1)
            await purge(t)
            assert await keys(storage) == strangers

    asyncio.run(body())
    (told,) = (line for line in caplog.messages if "in several pieces" in line)
    assert "2 partitions" in told


def test_segments_that_another_leader_copied_meanwhile_stay() -> None:
    """A node that does not know yet that it lost the partition has old metadata in memory."""

    async def test(t: TieredLogUnderTest, storage: Laggard) -> None:
        await filled(t)
        await t.copy()
        stale = t.manager
        await t.open_node()
        await t.open()
        wanted = await filled(t, 8)
        await t.copy()
        own = await keys(storage)
        t.clock.advance(9 * DAY_MS)
        topic_id = t.topic_id
        await stale.purge(lambda asked: "t" if asked == topic_id else None)
        assert await keys(storage) == own
        await t.configure(local_retention_bytes="0")
        await t.retain()
        assert wanted.items() <= (await values(t.log)).items()
        await stale.close()

    run(test)


def test_segments_of_a_log_that_is_not_open_stay() -> None:
    """Strangers, too, until it is open: they may be what the metadata lost of its newest ones."""

    async def test(t: TieredLogUnderTest, storage: Laggard) -> None:
        wanted = await filled(t)
        await t.copy()
        own = await keys(storage)
        strangers = await put_strangers(storage, t.topic_id)
        await t.log.close()
        t.clock.advance(9 * DAY_MS)
        await purge(t)
        assert await keys(storage) == own | strangers
        assert t.manager.alarms() == []
        await t.open()
        await purge(t)
        assert await keys(storage) == own
        assert await values(t.log) == wanted

    run(test)


def test_the_newest_segments_that_the_metadata_lost_stay_while_the_log_is_not_open() -> None:
    async def test(t: TieredLogUnderTest, storage: Laggard) -> None:
        wanted = await filled(t)
        await t.copy()
        await t.configure(local_retention_bytes="0")
        await t.log.roll()
        await t.copy()
        await t.retain()
        own = await keys(storage)
        lost = await lose_metadata(t, slice(-3, None))
        await t.log.close()
        t.clock.advance(9 * DAY_MS)
        await purge(t)
        assert await keys(storage) == own
        for key, data in lost.items():
            await t.kv.put_kv(key, data)
        await t.reopened()
        assert await values(t.log) == wanted

    run(test)


def test_a_segment_with_a_young_file_stays_whole() -> None:
    async def test(t: TieredLogUnderTest, storage: Laggard) -> None:
        first, second = sorted(await put_strangers(storage, t.topic_id))
        t.clock.advance(2 * DAY_MS + 1)
        await storage.store.put(second, [b"again"])
        await purge(t)
        assert await keys(storage) == {first, second}

    run(test)


def test_what_a_copy_under_way_wrote_stays_however_old_it_is() -> None:
    async def test(t: TieredLogUnderTest, storage: Laggard) -> None:
        wanted = await filled(t)
        storage.gate.clear()
        await t.manager.tick()
        await storage.waits.wait()
        written = await keys(storage)
        assert written
        t.clock.advance(9 * DAY_MS)
        await purge(t)
        assert await keys(storage) == written
        storage.gate.set()
        await t.copy()
        await t.configure(local_retention_bytes="0")
        await t.retain()
        assert await values(t.log) == wanted

    run(test)


def test_other_objects_under_the_prefix_are_not_touched() -> None:
    async def test(t: TieredLogUnderTest, storage: Laggard) -> None:
        others = {
            "remote/notes.txt",
            f"remote/{GONE.hex}/0/7.{STRANGE.hex}.segment",
            KEY.format(topic=GONE.hex, segment=STRANGE.hex, kind="other"),
        }
        for key in others:
            await storage.store.put(key, [b"x"])
        t.clock.advance(9 * DAY_MS)
        await purge(t)
        assert await keys(storage) == others

    run(test)


class CountedLists(MemoryObjectStore):
    """Counts the listings; the first one fails."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.lists = 0

    async def list(self, prefix: str, *, token: str | None = None, limit: int = 1000) -> ListPage:
        self.lists += 1
        if self.lists == 1:
            raise StoreUnavailable("away")
        return await super().list(prefix, token=token, limit=limit)


def test_a_node_looks_an_hour_after_its_start_and_then_once_a_day() -> None:
    async def body() -> None:
        clock = VirtualClock()
        store = CountedLists(clock)
        storage = Laggard(store)
        async with tiered_log(TornTree(SeededRandom(3)), {}, CONFIG, storage, clock) as t:
            await filled(t)
            await t.copy()
            strangers = await put_strangers(storage, GONE)
            t.names = lambda _: None
            await t.reopened()
            await asyncio.sleep(3599)
            assert store.lists == 0
            for days in range(1, 5):
                await asyncio.sleep(DAY_MS / 1000)
                assert store.lists == days
                there = {await exists(store, key) for key in strangers}
                # Two days old at the third look, an hour after the second day.
                assert there == {days < 3}

    run_virtually(body)


async def exists(store: ObjectStore, key: str) -> bool:
    try:
        await store.get(key)
    except ObjectNotFound:
        return False
    return True


def test_metadata_that_was_lost_is_an_alarm_and_no_purge() -> None:
    async def test(t: TieredLogUnderTest, storage: Laggard) -> None:
        await filled(t)
        await t.copy()
        segments = len(await t.metadata.list_remote_log_segments(t.partition))
        own = await keys(storage)
        strangers = await put_strangers(storage, GONE, segments + 1)
        t.clock.advance(9 * DAY_MS)
        await purge(t)
        assert await keys(storage) == own | strangers
        (alarm,) = t.manager.alarms()
        assert f"{segments + 1} of {2 * segments + 1} segments" in alarm
        await storage.store.delete(sorted(strangers)[:2])
        await purge(t)
        assert await keys(storage) == own
        assert t.manager.alarms() == []

    run(test)


def test_a_plug_in_that_lists_nothing_is_left_alone() -> None:
    async def body() -> None:
        async with tiered_log(TornTree(SeededRandom(3)), {}, CONFIG) as t:
            await filled(t)
            await t.copy()
            before = dict(t.storage.segments)
            assert before
            t.clock.advance(9 * DAY_MS)
            await purge(t)
            assert t.storage.segments == before

    asyncio.run(body())


def test_a_store_that_fails_is_told_to_the_caller() -> None:
    async def test(t: TieredLogUnderTest, storage: Laggard) -> None:
        strangers = await put_strangers(storage, GONE)
        t.clock.advance(9 * DAY_MS)

        async def fails(*_: object, **__: object) -> None:
            raise StoreUnavailable("away")

        real = storage.store.delete
        storage.store.delete = fails  # type: ignore[method-assign]
        with pytest.raises(StoreUnavailable):
            await purge(t)
        storage.store.delete = real  # type: ignore[method-assign]
        assert await keys(storage) == strangers
        await purge(t)
        assert await keys(storage) == set()

    run(test)


def test_a_draft_plug_in_cleans_up_what_copies_left_and_no_copy_under_way() -> None:
    async def body() -> None:
        plugin = MemoryPlugin()
        tree = TornTree(SeededRandom(3))
        async with tiered_log(tree, {}, CONFIG, DraftStorageAdapter(plugin)) as t:
            await filled(t)
            await t.copy()
            segments = set(plugin.segments)
            where = data_partition(t.partition)
            plugin.temporary[where] = t.clock.now_ms() - 1
            await purge(t)
            assert plugin.temporary, "not old enough"
            t.clock.advance(9 * DAY_MS)
            await purge(t)
            assert plugin.temporary == {}
            plugin.temporary[where] = t.clock.now_ms() - 9 * DAY_MS
            await purge(t)
            assert plugin.temporary, "as old as what is known"
            assert set(plugin.segments) == segments

    asyncio.run(body())


class TellsCleanUps(MemoryPlugin):
    def __init__(self) -> None:
        super().__init__()
        self.cleaned = asyncio.Event()

    async def cleanup_log_until(
        self, topic_partition: TopicPartition, clean_up_till_ms: int
    ) -> int:
        self.cleaned.set()
        return await super().cleanup_log_until(topic_partition, clean_up_till_ms)


def test_a_partition_that_is_being_copied_is_cleaned_up_before_its_next_copies() -> None:
    """On a busy node one is under way whenever a purge looks."""

    async def body() -> None:
        plugin = TellsCleanUps()
        tree = TornTree(SeededRandom(3))
        async with tiered_log(tree, {}, CONFIG, DraftStorageAdapter(plugin)) as t:
            await filled(t)
            await t.copy()
            for number in range(8):
                await append(t.log, encoded([b"%d" % number * 200]))
            copied = set(plugin.segments)
            plugin.free.clear()
            await t.manager.tick()
            await plugin.waits.wait()
            await purge(t)
            assert not plugin.cleaned.is_set()
            plugin.free.set()
            await plugin.cleaned.wait()
            assert copied < set(plugin.segments)

    asyncio.run(body())


class ByAge(MemoryPlugin):
    """Its clean-up removes whole segments, too, where they are older; it waits for `may_clean`."""

    def __init__(self) -> None:
        super().__init__()
        self.cleans = asyncio.Event()
        self.may_clean = asyncio.Event()

    async def cleanup_log_until(
        self, topic_partition: TopicPartition, clean_up_till_ms: int
    ) -> int:
        self.cleans.set()
        await self.may_clean.wait()
        old = [
            key
            for key, stored in self.segments.items()
            if key[0] == topic_partition and stored.max_timestamp_ms < clean_up_till_ms
        ]
        for key in old:
            del self.segments[key]
        return len(old)


def test_a_copy_of_old_records_that_begins_during_a_clean_up_stays() -> None:
    async def body() -> None:
        plugin = ByAge()
        tree = TornTree(SeededRandom(3))
        async with tiered_log(tree, {}, CONFIG, DraftStorageAdapter(plugin)) as t:
            before = await filled(t, 8)
            await t.copy()
            t.clock.advance(9 * DAY_MS)
            cleaning = asyncio.ensure_future(purge(t))
            await plugin.cleans.wait()
            # Records of 1970: a producer says when they are from.
            for number in range(40):
                await append(t.log, encoded([b"%06d" % number * 16], at_ms=number))
            await t.manager.tick()
            for _ in range(1000):
                await asyncio.sleep(0)
            plugin.may_clean.set()
            await cleaning
            await t.copy()
            wanted = await values(t.log)
            assert len(wanted) == 40 + len(before)
            await t.configure(local_retention_bytes="0")
            await t.retain()
            assert t.log.local_log_start_offset > 0
            assert await values(t.log) == wanted

    asyncio.run(body())


@pytest.mark.parametrize("numbers", [slice(0, None), slice(0, 1)], ids=["all", "the oldest"])
def test_a_draft_plug_in_cleans_up_nothing_where_metadata_was_lost(numbers: slice) -> None:
    """Its segments are all that is left of the records then."""

    async def body() -> None:
        plugin = ByAge()
        plugin.may_clean.set()
        tree = TornTree(SeededRandom(3))
        async with tiered_log(tree, {}, CONFIG, DraftStorageAdapter(plugin)) as t:
            for day in range(40):
                await append(t.log, encoded([b"%06d" % day * 16], at_ms=t.clock.now_ms()))
                t.clock.advance(DAY_MS)
            await t.copy()
            await t.configure(local_retention_bytes="0")
            await t.retain()
            segments = set(plugin.segments)
            lost = await lose_metadata(t, numbers)
            await purge(t)
            assert set(plugin.segments) == segments
            (alarm,) = t.manager.alarms()
            assert alarm.startswith("remote_storage: 1 partitions have offsets")
            for key, data in lost.items():
                await t.kv.put_kv(key, data)
            await purge(t)
            assert t.manager.alarms() == []

    asyncio.run(body())


def test_a_plug_in_that_hangs_in_a_purge_is_given_up_and_told() -> None:
    class Hangs(Laggard):
        listed = 0

        async def stored_files(self) -> AsyncIterator[StoredFile]:
            self.listed += 1
            await asyncio.Event().wait()
            yield StoredFile(GONE, 0, STRANGE, "", 0, 0)

    async def body() -> None:
        clock = VirtualClock()
        storage = Hangs(MemoryObjectStore(clock))
        async with tiered_log(TornTree(SeededRandom(3)), {}, CONFIG, storage, clock) as t:
            t.names = lambda _: None
            await t.reopened()
            await asyncio.sleep(2 * 3600)
            assert storage.listed == 1
            labels = {"operation": "purge", "topic": ""}
            assert t.registry.get_sample_value("streamlog_remote_errors_total", labels) == 1
            await asyncio.sleep(DAY_MS / 1000)
            assert storage.listed == 2, "the next purge comes in its time"

    run_virtually(body)


def test_strangers_go_from_a_real_s3_server(s3: S3Tests) -> None:
    async def body() -> None:
        offload = ThreadOffload()
        store = await open_store(parse_store_url(s3.new_url()), offload, SystemClock())
        storage = Laggard(store)
        # The server's clock stands behind the times of what it stores.
        clock = ManualClock(SystemClock().now_ms())
        async with tiered_log(TornTree(SeededRandom(3)), {}, CONFIG, storage, clock) as t:
            wanted = await filled(t)
            await t.copy()
            own = await keys(storage)
            strangers = await put_strangers(storage, GONE) | await put_strangers(
                storage, t.topic_id
            )
            await purge(t)
            assert await keys(storage) == own | strangers
            clock.advance(3 * DAY_MS)
            await purge(t)
            assert await keys(storage) == own
            await t.configure(local_retention_bytes="0")
            await t.retain()
            assert await values(t.log) == wanted
        await store.close()
        await offload.close()

    asyncio.run(body())


@pytest.mark.parametrize("numbers", [slice(0, 6), slice(2, 3)], ids=["most", "one in the middle"])
def test_metadata_that_was_lost_of_one_partition_is_an_alarm_and_no_purge_of_it(
    numbers: slice,
) -> None:
    """Whatever part of all segments of the node it is."""

    async def test(t: TieredLogUnderTest, storage: Laggard) -> None:
        await filled(t, 60)
        await t.copy()
        segments = len(await t.metadata.list_remote_log_segments(t.partition))
        assert 6 < segments < 20
        lost = await lose_metadata(t, numbers)
        assert len(await t.metadata.list_remote_log_segments(t.partition)) == segments - len(lost)
        own = await keys(storage)
        # Of a topic that is gone there is nothing that could have been lost.
        strangers = await put_strangers(storage, GONE, 3)
        t.clock.advance(9 * DAY_MS)
        await purge(t)
        assert await keys(storage) == own
        assert strangers
        (alarm,) = t.manager.alarms()
        assert alarm.startswith("remote_storage: 1 partitions")
        assert "put it back" in alarm

    run(test)


@pytest.mark.parametrize(
    ("count", "numbers", "is_reopened"),
    [
        (60, slice(-3, None), False),
        (60, slice(-3, None), True),
        (16, slice(0, None), False),
        (16, slice(0, None), True),
    ],
    ids=["the newest", "the newest, then a start", "all of a few", "all of a few, then a start"],
)
def test_segments_between_the_named_and_the_local_ones_are_no_strangers(
    count: int, numbers: slice, is_reopened: bool
) -> None:
    """They are too few to be suspicious by their share."""

    async def test(t: TieredLogUnderTest, storage: Laggard) -> None:
        await filled(t, count)
        await t.configure(local_retention_bytes="0")
        for _ in range(2):
            await t.copy()
            await t.retain()
        assert t.log.local_log_start_offset == count
        lost = await lose_metadata(t, numbers)
        assert 2 <= len(lost) <= 3
        own = await keys(storage)
        if is_reopened:
            await t.reopened()
        # Of a topic that is gone there is nothing that could have been lost.
        gone = await put_strangers(storage, GONE)
        t.clock.advance(9 * DAY_MS)
        await purge(t)
        assert not gone & await keys(storage)
        assert own <= await keys(storage)
        assert any(alarm.startswith("remote_storage: 1 partitions") for alarm in t.manager.alarms())

    run(test)


class Watched(KVRemoteLogMetadataManager):
    """Lists wait for their gates, as long as there are some."""

    def __init__(self, kv: KVClient) -> None:
        super().__init__(kv)
        self.gates: list[asyncio.Event] = []
        self.waits = asyncio.Semaphore(0)
        self.answers_for: dict[TopicIdPartition, str] = {}
        """What this node was told last of its role."""

    async def list_remote_log_segments(
        self, partition: TopicIdPartition, epoch: int | None = None
    ) -> Sequence[RemoteLogSegmentMetadata]:
        if self.gates:
            gate = self.gates.pop(0)
            self.waits.release()
            await gate.wait()
        return await super().list_remote_log_segments(partition, epoch)

    async def on_partition_leadership_changes(
        self, leaders: Collection[TopicIdPartition], followers: Collection[TopicIdPartition]
    ) -> None:
        self.answers_for |= dict.fromkeys(leaders, "leader") | dict.fromkeys(followers, "follower")
        await super().on_partition_leadership_changes(leaders, followers)

    async def on_stop_partitions(self, partitions: Collection[TopicIdPartition]) -> None:
        for one in partitions:
            self.answers_for.pop(one, None)
        await super().on_stop_partitions(partitions)


@pytest.mark.parametrize("is_open_first", [True, False], ids=["is opened", "is being opened"])
def test_a_log_that_is_opened_during_a_purge_stays_led(is_open_first: bool) -> None:
    """The purge asks the metadata of the partition, which nobody had opened before."""

    async def test(t: TieredLogUnderTest, storage: Laggard) -> None:
        t.new_metadata = lambda: Watched(t.kv)
        await filled(t)
        await t.copy()
        await t.reopened()
        await t.log.close()
        await t.metadata.on_stop_partitions([t.partition])
        metadata = t.metadata
        assert isinstance(metadata, Watched)
        assert metadata.answers_for == {}
        of_purge, of_log = asyncio.Event(), asyncio.Event()
        metadata.gates = [of_purge, of_log]
        purging = asyncio.ensure_future(purge(t))
        await metadata.waits.acquire()
        opening = asyncio.ensure_future(t.open())
        await metadata.waits.acquire()
        assert metadata.answers_for == {t.partition: "leader"}
        if is_open_first:
            of_log.set()
            await opening
        of_purge.set()
        await purging
        assert metadata.answers_for == {t.partition: "leader"}
        of_log.set()
        await opening
        await t.log.close()
        await purge(t)
        assert metadata.answers_for == {}, "nobody leads it"
        await t.open()

    run(test)


def test_a_log_that_is_opened_while_the_storage_is_listed_stays_led() -> None:
    class Listed(Laggard):
        async def stored_files(self) -> AsyncIterator[StoredFile]:
            self.waits.set()
            await self.gate.wait()
            async for one in super().stored_files():
                yield one

    async def body() -> None:
        clock = ManualClock()
        storage = Listed(MemoryObjectStore(clock))
        async with tiered_log(TornTree(SeededRandom(3)), {}, CONFIG, storage, clock) as t:
            t.new_metadata = lambda: Watched(t.kv)
            await filled(t)
            await t.copy()
            await t.reopened()
            await t.log.close()
            storage.gate.clear()
            storage.waits.clear()
            purging = asyncio.ensure_future(purge(t))
            await storage.waits.wait()
            await t.open()
            storage.gate.set()
            await purging
            assert isinstance(t.metadata, Watched)
            assert t.metadata.answers_for == {t.partition: "leader"}

    asyncio.run(body())


def test_a_partition_whose_metadata_is_damaged_holds_no_purge_of_others_up() -> None:
    async def test(t: TieredLogUnderTest, storage: Laggard) -> None:
        await filled(t)
        await t.copy()
        own = await keys(storage)
        (first, *_) = await t.metadata.list_remote_log_segments(t.partition)
        key = segment_key(first.remote_log_segment_id)
        stored = await t.kv.get_kv(key)
        assert stored is not None
        await t.kv.put_kv(key, stored.data[:-1] + b"?")
        own |= await put_strangers(storage, t.topic_id)
        gone = await put_strangers(storage, GONE)
        t.clock.advance(9 * DAY_MS)
        # Its clean-up asks the metadata, too, and its error is told when all is done.
        with pytest.raises(Corrupt):
            await purge(t)
        assert not gone & await keys(storage)
        assert await keys(storage) == own
        (alarm,) = t.manager.alarms()
        assert alarm.startswith("remote_storage: 1 partitions")
        await t.kv.put_kv(key, stored.data)
        await purge(t)
        assert t.manager.alarms() == []
        assert len(own - await keys(storage)) == 2

    run(test)


def test_a_clean_up_that_fails_holds_no_purge_up() -> None:
    class Failing(Laggard):
        async def delete_left_overs(self, partition: TopicIdPartition, until_ms: int) -> int:
            raise RuntimeError("the plug-in has a bug")

    async def body() -> None:
        clock = ManualClock()
        storage = Failing(MemoryObjectStore(clock))
        async with tiered_log(TornTree(SeededRandom(3)), {}, CONFIG, storage, clock) as t:
            await filled(t)
            await t.copy()
            own = await keys(storage)
            await put_strangers(storage, t.topic_id)
            t.clock.advance(9 * DAY_MS)
            with pytest.raises(RuntimeError, match="has a bug"):
                await purge(t)
            assert await keys(storage) == own

    asyncio.run(body())
