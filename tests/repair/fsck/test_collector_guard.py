"""The collector deletes nothing on the word of metadata that cannot be right."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry

from streamlog.compaction.collect.collector import Collector, CollectorConfig
from streamlog.errors import Unauthorized
from streamlog.kvstore.interface import Put
from streamlog.kvstore.memory.store import MemoryKVStore
from streamlog.metadata.interface import CommitEntry, Metadata, StreamEpoch
from streamlog.objectstore.cluster.guard import ClusterFile, encode
from streamlog.objectstore.keys import CLUSTER_KEY, data_key
from streamlog.objectstore.keys import object_id as id_of_key
from streamlog.objectstore.memory import MemoryObjectStore
from streamlog.runtime.buffers import Buffer
from streamlog.testing.clocks import ManualClock
from tests.metadata.world import World, append, create, new_object
from tests.repair.cluster import run
from tests.support.object_ids import give_up_id, give_up_ids, take_id, take_ids
from tests.support.replacing import replace_method

NOW = CollectorConfig(deletion_delay_ms=0)


class _Collected:
    """A collector over a tenure's metadata; `stopped` as the metric tells it."""

    def __init__(self, world: World, metadata: Metadata, config: CollectorConfig = NOW) -> None:
        self.registry = CollectorRegistry()
        self.collector = Collector(metadata, world.store, world.clock, config, self.registry)

    async def tick(self) -> str:
        await self.collector.tick()
        stopped = self.registry.get_sample_value("streamlog_collector_stopped")
        assert stopped == (1.0 if self.collector.alarm else 0.0)
        return self.collector.alarm


async def keys(world: World) -> set[str]:
    return {info.key for info in (await world.store.list("data/")).objects}


async def fill(world: World, objects: int = 5) -> set[str]:
    """Objects of a tenure that crashed, one of them an orphan; all keys."""
    await world.store.put(CLUSTER_KEY, [encode(ClusterFile("test"))])
    metadata = await world.open()
    (stream,) = await create(metadata)
    for _ in range(objects):
        object_id = await append(metadata, stream, 2)
        await world.store.put(data_key(object_id), [b"x"])
    orphan = await new_object(metadata, [])
    await world.store.put(data_key(orphan.row.object_id), [b"x"])
    await metadata.kill()
    return await keys(world)


def test_the_orphan_of_a_crash_goes_and_nothing_else() -> None:
    async def scenario() -> None:
        world = World()
        before = await fill(world)
        async with world.tenure() as metadata:
            assert await _Collected(world, metadata).tick() == ""
        assert len(before) - len(await keys(world)) == 1

    run(scenario)


@pytest.mark.parametrize("ahead_ms", [36_000_000, 200_000])
def test_what_died_while_the_clock_was_ahead_waits_for_the_delay_alone(ahead_ms: int) -> None:
    """Not for the clock to catch up; and a clock that does so meanwhile shortens no delay."""

    async def scenario() -> None:
        world = World()
        await world.store.put(CLUSTER_KEY, [encode(ClusterFile("test"))])
        delay_ms = 600_000
        async with world.tenure() as metadata:
            (stream,) = await create(metadata)
            await append(metadata, stream, 1)
            await metadata.commit(CommitEntry(destroys=[StreamEpoch(stream, 1)]))
            await create(metadata)
            await metadata.checkpoint()
            (dead,) = metadata.dead_objects()
            # That of the collector is right, and the checkpoint's was ahead.
            clock = ManualClock(dead.died_ms - ahead_ms)
            config = CollectorConfig(deletion_delay_ms=delay_ms)
            collector = Collector(metadata, world.store, clock, config, CollectorRegistry())

            async def is_kept() -> bool:
                await collector.tick()
                return bool(metadata.dead_objects())

            assert await is_kept()
            clock.advance(delay_ms - 1)
            assert await is_kept()
            if ahead_ms < delay_ms:
                clock.advance(ahead_ms)
                assert await is_kept()
            clock.advance(1)
            assert not await is_kept()

    run(scenario)


def test_a_clock_that_is_behind_for_a_while_deletes_nothing_early() -> None:
    async def scenario() -> None:
        world = World()
        await world.store.put(CLUSTER_KEY, [encode(ClusterFile("test"))])
        async with world.tenure() as metadata:
            (stream,) = await create(metadata)
            await append(metadata, stream, 1)
            await metadata.commit(CommitEntry(destroys=[StreamEpoch(stream, 1)]))
            await create(metadata)
            await metadata.checkpoint()
            (dead,) = metadata.dead_objects()
            clock = ManualClock(dead.died_ms)
            config = CollectorConfig(deletion_delay_ms=600_000)
            collector = Collector(metadata, world.store, clock, config, CollectorRegistry())
            for change_ms in (-36_000_000, 36_000_000):
                clock.set_by(change_ms)
                clock.advance(299_999)
                await collector.tick()
                assert metadata.dead_objects()

    run(scenario)


def test_a_request_that_deletes_orphans_is_given_up_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A recovery trusts that none lands after its grace."""
    monkeypatch.setattr("streamlog.compaction.collect.collector.ORPHAN_REQUEST_S", 0.01)

    async def scenario() -> None:
        world = World()
        await fill(world)
        delete, cancelled = world.store.delete, list[bool]()

        async def hangs(_: Sequence[str]) -> None:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.append(True)
                raise

        async with world.tenure() as metadata:
            collected = _Collected(world, metadata)
            replace_method(world.store, "delete", hangs)
            before = await keys(world)
            assert await collected.tick() == ""
            assert cancelled
            replace_method(world.store, "delete", delete)
            assert await collected.tick() == ""
            assert len(before - await keys(world)) == 1

    run(scenario)


def test_empty_metadata_over_a_full_store_deletes_nothing() -> None:
    async def scenario() -> None:
        world = World()
        before = await fill(world)
        world.kv = MemoryKVStore(world.clock)
        # A tenure of the new, empty metadata that ended: its window has ids of the lost one.
        await (await world.open()).kill()
        async with world.tenure() as metadata:
            collected = _Collected(world, metadata)
            for _ in range(3):
                assert "knows no object" in await collected.tick()
            assert await keys(world) == before

    run(scenario)


def test_metadata_that_is_older_than_the_store_deletes_nothing() -> None:
    async def scenario() -> None:
        world = World(config=replace(World().config, put_window=4))
        await fill(world, 3)
        copied = (await world.kv.range(b"\0", b"\xff")).kvs
        # The same tenure goes on, the copy does not hear of it.
        prefix_keys = [kv for kv in copied if kv.lease_id == 0]
        last = max(int(key[5:][::-1], 16) for key in await keys(world))
        for number in range(1, 20):
            await world.store.put(data_key(last + number), [b"committed meanwhile"])
        world.kv = MemoryKVStore(world.clock)
        await world.kv.txn([], [Put(kv.key, kv.value) for kv in prefix_keys])
        before = await keys(world)
        async with world.tenure() as metadata:
            assert "older than the store" in await _Collected(world, metadata).tick()
            assert await keys(world) == before

    run(scenario)


def test_another_clusters_store_is_left_alone() -> None:
    async def scenario() -> None:
        world = World()
        before = await fill(world)
        for content in (encode(ClusterFile("else")), None):
            if content is None:
                await world.store.delete([CLUSTER_KEY])
            else:
                await world.store.put(CLUSTER_KEY, [content])
            async with world.tenure() as metadata:
                assert "cluster" in await _Collected(world, metadata).tick()
            assert await keys(world) == before

    run(scenario)


def test_deletion_goes_on_when_an_objection_has_passed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario() -> None:
        world = World(config=replace(World().config, put_window=4))
        before = await fill(world, 3)
        # Past the window of the tenure that ended: it cannot have stored it.
        strange = data_key(max(id_of_key(key) for key in before) + 4)
        await world.store.put(strange, [b"?"])
        async with world.tenure() as metadata:
            collected = _Collected(world, metadata)
            for _ in range(3):
                assert "older than the store" in await collected.tick()
            await world.store.put(CLUSTER_KEY, [encode(ClusterFile("else"))])
            assert "belongs to cluster else" in await collected.tick()
            assert "goes on by itself" in collected.collector.alarm
            assert await keys(world) == before | {strange}
            assert caplog.text.count("nothing is deleted any more") == 2
            await world.store.put(CLUSTER_KEY, [encode(ClusterFile("test"))])
            await world.store.delete([strange])
            assert await collected.tick() == ""
            assert "deletion goes on" in caplog.text
            assert len(await keys(world)) == len(before) - 1

    run(scenario)


def test_metadata_that_was_empty_stays_suspect_when_it_is_written_to() -> None:
    async def scenario() -> None:
        world = World()
        before = await fill(world)
        world.kv = MemoryKVStore(world.clock)
        async with world.tenure() as metadata:
            (stream,) = await create(metadata)
            orphan = await new_object(metadata, [])
            give_up_id(metadata, orphan.row.object_id)
            collected = _Collected(world, metadata)
            assert "engine.collector.force" in await collected.tick()
            await append(metadata, stream, 1)
            assert "knows no object" in await collected.tick()
            assert await keys(world) == before

    run(scenario)


def test_uploads_that_wait_for_deletion_are_reported() -> None:
    """While deletion is stopped, ids that were given up use up the window."""

    async def scenario() -> None:
        world = World(config=replace(World().config, put_window=2))
        await world.store.put(CLUSTER_KEY, [encode(ClusterFile("else"))])
        async with world.tenure() as metadata:
            compactor = await metadata.open_compaction_tenure(ids_max=2)
            collected = _Collected(world, metadata)

            def waits(what: str) -> float | None:
                name = "streamlog_metadata_waiting_for_deletion"
                return world.registry.get_sample_value(name, {"what": what})

            for _ in range(2):
                give_up_id(metadata, await take_id(metadata))
            give_up_ids(compactor, await take_ids(compactor, 2))
            upload = asyncio.create_task(take_id(metadata))
            merge = asyncio.create_task(take_ids(compactor, 1))
            assert metadata.waiting_for_sweep() == []
            while len(metadata.waiting_for_sweep()) < 2:  # noqa: ASYNC110 - any state may be waited for
                await asyncio.sleep(0)
            assert "belongs to cluster else" in await collected.tick()
            assert waits("uploads") == waits("compaction") == 1.0
            assert not upload.done()
            assert not merge.done()
            await world.store.put(CLUSTER_KEY, [encode(ClusterFile("test"))])
            assert await collected.tick() == ""
            await upload
            await merge
            assert metadata.waiting_for_sweep() == []
            assert waits("uploads") == waits("compaction") == 0.0

    run(scenario)


def test_more_orphans_than_crashes_explain_stop_deletion_until_forced(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario() -> None:
        world = World()
        before = await fill(world)
        assert len(before) == 6
        config = replace(NOW, orphans_per_tenure_max=63)
        async with world.tenure() as metadata:
            collected = _Collected(world, metadata, config)
            assert "at most 63" in await collected.tick()
            assert await keys(world) == before
            # It stays, whatever the metadata says afterwards.
            collected.collector._guard._per_tenure_max = 64
            assert "at most 63" in await collected.tick()
            assert await keys(world) == before
            assert "nothing is deleted any more" in caplog.text
        async with world.tenure() as metadata:
            forced = _Collected(world, metadata, replace(config, force=True))
            assert await forced.tick() == ""
        assert len(await keys(world)) == 5

    run(scenario)


def test_objects_left_when_all_streams_are_deleted_go() -> None:
    async def scenario() -> None:
        world = World()
        await fill(world)
        async with world.tenure() as metadata:
            await metadata.take_over_previous(frozenset())
            (row,) = metadata.streams()
            destroy = StreamEpoch(row.stream_id, row.epoch)
            await metadata.commit(CommitEntry(destroys=[destroy]))
            await metadata.checkpoint()
            collected = _Collected(world, metadata)
            assert (metadata.stream_count, metadata.object_count) == (0, 0)
            for _ in range(2):
                assert await collected.tick() == ""
        assert await keys(world) == set()

    run(scenario)


def test_an_upload_under_way_is_no_sign_of_empty_metadata() -> None:
    """The only stream was deleted while a long merge of its data went on."""

    async def scenario() -> None:
        world = World()
        await world.store.put(CLUSTER_KEY, [encode(ClusterFile("test"))])
        async with world.tenure() as metadata:
            (stream,) = await create(metadata)
            old = await append(metadata, stream, 2)
            await world.store.put(data_key(old), [b"x"])
            compactor = await metadata.open_compaction_tenure(ids_max=8)
            mine, (others,) = await new_object(metadata, []), await take_ids(compactor, 1)
            for object_id in (mine.row.object_id, others):
                await world.store.put(data_key(object_id), [b"not committed yet"])
            await metadata.commit(CommitEntry(destroys=[StreamEpoch(stream, 1)]))
            await metadata.checkpoint()
            assert metadata.object_count == 0
            assert await _Collected(world, metadata).tick() == ""
            assert await keys(world) == {data_key(mine.row.object_id), data_key(others)}
            give_up_ids(compactor, [others])
            await world.store.put(data_key(1 << 40), [b"nobody's"])
            assert "knows no object" in await _Collected(world, metadata).tick()
            await compactor.close()

    run(scenario)


def test_an_orphan_stored_after_its_deletion_is_no_sign_of_empty_metadata() -> None:
    """A PUT of a crashed node, late; the second sweep takes it."""

    async def scenario() -> None:
        world = World(config=replace(World().config, orphan_resweep_ms=60_000))
        await world.store.put(CLUSTER_KEY, [encode(ClusterFile("test"))])
        crashed = await world.open()
        orphan = data_key((await new_object(crashed, [])).row.object_id)
        await crashed.kill()
        async with world.tenure() as metadata:
            collected = _Collected(world, metadata)
            assert await collected.tick() == ""
            await world.store.put(orphan, [b"late"])
            (stream,) = await create(metadata)
            dead = data_key(await append(metadata, stream, 2))
            await world.store.put(dead, [b"x"])
            await metadata.commit(CommitEntry(destroys=[StreamEpoch(stream, 1)]))
            await metadata.checkpoint()
            assert metadata.object_count == 0
            assert await collected.tick() == ""
            assert await keys(world) == {orphan}

    run(scenario)


def test_the_next_object_of_a_live_compactor_is_no_sign_of_old_metadata() -> None:
    async def scenario() -> None:
        world = World()
        await fill(world)
        async with world.tenure() as metadata:
            compactor = await metadata.open_compaction_tenure(ids_max=8)
            released, uploading = await take_ids(compactor, 2)
            give_up_ids(compactor, [released])
            await world.store.put(data_key(uploading), [b"not committed yet"])
            assert await _Collected(world, metadata).tick() == ""
            await compactor.close()

    run(scenario)


def test_what_a_dead_nodes_compactor_stores_is_no_sign_of_old_metadata() -> None:
    """The node deletes late what its compactor gave up, by ids of the compactor's blocks. Its last
    output was stored and not committed, and no other node may say that the compactor has ended."""

    async def scenario() -> None:
        world = World()
        await fill(world)
        dead = await world.open(2)
        compactor = await dead.open_compaction_tenure(ids_max=8)
        released, uploaded = await take_ids(compactor, 2)
        give_up_ids(compactor, [released])
        assert await _Collected(world, dead).tick() == ""
        await world.store.put(data_key(uploaded), [b"not committed"])
        await compactor.kill()
        await dead.kill()
        async with world.tenure() as metadata:
            await metadata.seal(dead.tenure, even_if_alive=True)
            (listed,) = [o for o in await metadata.orphan_candidates() if o.tenure == dead.tenure]
            assert released in listed.object_ids
            assert await _Collected(world, metadata).tick() == ""

    run(scenario)


class _DiesMeanwhile(MemoryObjectStore):
    """While the collector asks whether the store is its own, a checkpoint finds objects dead."""

    async def get(self, key: str, start: int = 0, length: int | None = None) -> Buffer:
        if key == CLUSTER_KEY and self.next_death is not None:
            death, self.next_death = self.next_death, None
            await death()
        return await super().get(key, start, length)

    next_death: Callable[[], Awaitable[None]] | None = None


def test_a_death_that_is_found_meanwhile_is_no_sign_of_old_metadata() -> None:
    async def scenario() -> None:
        world = World(config=replace(World().config, put_window=2))
        world.store = store = _DiesMeanwhile(world.clock)
        await store.put(CLUSTER_KEY, [encode(ClusterFile("test"))])
        first = await world.open()
        ended, kept = await create(first, 2)
        orphan = await new_object(first, [])
        # Past the orphan, which holds the window's floor.
        late = await append(first, ended, 1)
        await store.put(data_key(late), [b"x"])
        await first.kill()
        async with world.tenure() as metadata:
            assert await append(metadata, kept, 1) > orphan.row.object_id

            async def die() -> None:
                await metadata.commit(CommitEntry(destroys=[StreamEpoch(ended, 2)]))
                await metadata.checkpoint()
                assert await metadata.object(late) is None

            store.next_death = die
            collected = _Collected(world, metadata, CollectorConfig(deletion_delay_ms=10**9))
            assert await collected.tick() == ""
            assert store.next_death is None
            assert data_key(late) in await keys(world)

    run(scenario)


def test_more_dead_objects_than_one_run_deletes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A topic of any size may be the last one."""
    monkeypatch.setattr("streamlog.compaction.collect.collector._DELETED_MAX", 10)

    async def scenario() -> None:
        world = World()
        await fill(world, 25)
        await world.store.put("data/readme.txt", [b"of somebody else"])
        async with world.tenure() as metadata:
            await metadata.take_over_previous(frozenset())
            (row,) = metadata.streams()
            destroy = StreamEpoch(row.stream_id, row.epoch)
            await metadata.commit(CommitEntry(destroys=[destroy]))
            await metadata.checkpoint()
            collected = _Collected(world, metadata)
            for left in (15, 5, 0):
                assert await collected.tick() == ""
                assert len(await keys(world)) == left + 1

    run(scenario)


class _Denies(MemoryObjectStore):
    """May be written and read; deleting is not permitted."""

    is_denied = True

    async def delete(self, keys: Sequence[str]) -> None:
        if self.is_denied:
            raise Unauthorized("no", resource=keys[0], operation="delete")
        await super().delete(keys)


def test_a_store_that_denies_deletion_stops_no_node() -> None:
    async def scenario() -> None:
        world = World()
        world.store = store = _Denies(world.clock)
        before = await fill(world)
        async with world.tenure() as metadata:
            collected = _Collected(world, metadata)
            for runs in (1, 2):
                assert await collected.tick() == ""
                failed = collected.registry.get_sample_value(
                    "streamlog_collector_failed_runs_total"
                )
                assert failed == runs
            assert await keys(world) == before
            store.is_denied = False
            await collected.tick()
            assert len(await keys(world)) == len(before) - 1

    run(scenario)


@pytest.mark.parametrize("content", [b"damaged", b'{"cluster_id": "test", "format_version": 99}'])
def test_a_cluster_file_that_cannot_be_read_stops_deletion_and_no_node(content: bytes) -> None:
    async def scenario() -> None:
        world = World()
        before = await fill(world)
        await world.store.put(CLUSTER_KEY, [content])
        async with world.tenure() as metadata:
            assert await _Collected(world, metadata).tick()
        assert await keys(world) == before

    run(scenario)
