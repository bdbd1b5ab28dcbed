"""Checkpoints: their content, the memory they free, races between nodes, and damage."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from streamlog.errors import (
    Corrupt,
    MetadataUnavailable,
    StoreUnavailable,
    TenureFenced,
    Unauthorized,
)
from streamlog.kvstore.interface import Compare, Operation, Put, TxnResult, prefix_end
from streamlog.kvstore.memory.store import MemoryKVStore
from streamlog.metadata.checkpoint.files import LevelFile
from streamlog.metadata.interface import CommitEntry, StreamEpoch, TrimEntry
from streamlog.metadata.keys import checkpoint, fence
from streamlog.metadata.keys.space import prefix_of
from streamlog.metadata.session import MetadataSession
from streamlog.objectstore.interface import ListPage, ObjectStore
from streamlog.objectstore.memory import MemoryObjectStore
from tests.metadata.counting_store import CountingStore
from tests.metadata.scripted_kv import ScriptedKV, checkpoints
from tests.metadata.world import World, append, create, new_object, ranges_of
from tests.support.metadata_filler import fill_metadata
from tests.support.metadata_insides import checkpointer_of, fold_of, follower_of
from tests.support.replacing import replace_method

PREFIX = prefix_of("test")


async def keys(world: World, letter: str) -> list[bytes]:
    start = PREFIX + letter.encode() + b"/"
    return [kv.key for kv in (await world.kv.range(start, prefix_end(start))).kvs]


async def files(world: World) -> list[str]:
    return [info.key for info in (await world.store.list("checkpoint/")).objects]


async def end_of(metadata: MetadataSession, stream_id: int) -> int:
    row = metadata.stream(stream_id)
    assert row is not None
    return row.end


async def trim(metadata: MetadataSession, stream_id: int, start: int) -> None:
    row = metadata.stream(stream_id)
    assert row is not None
    await metadata.commit(CommitEntry(trims=[TrimEntry(stream_id, row.epoch, start)]))


def test_a_checkpoint_replaces_records_and_transfer_records() -> None:
    async def main() -> None:
        world = World()
        async with world.tenure() as metadata:
            a, b = await create(metadata, 2, topic="x")
            expected = {}
            for i in range(20):
                await append(metadata, (a, b)[i % 2], i + 1)
            await metadata.open_streams([(b, None)])
            expected = {s: await ranges_of(metadata, s) for s in (a, b)}
            assert await keys(world, "c")
            assert await keys(world, "m")
            await metadata.checkpoint()
            assert not await keys(world, "c")
            assert not await keys(world, "m")
            assert {s: await ranges_of(metadata, s) for s in (a, b)} == expected
            assert metadata.object_count == 20
            await append(metadata, a, 1)
            expected[a] = await ranges_of(metadata, a)
            rows = metadata.streams()
        again = await world.open()
        assert [replace(r, tags=r.tags) for r in again.streams()] == rows
        assert {s: await ranges_of(again, s) for s in (a, b)} == expected
        assert again.object_count == 21
        await again.close(drained=True)

    asyncio.run(main())


@pytest.mark.parametrize("seed", range(6))
def test_random_histories_survive_merges_and_restarts(seed: int) -> None:
    """Compares with a plain list of every append, over trims, dead objects and many checkpoints."""

    async def main() -> None:
        rng, world = random.Random(seed), World()
        settings: dict[str, Any] = {"delta_bytes_min": rng.choice([0, 500, 20_000])}
        metadata = await world.open(**settings)
        truth: dict[int, list[tuple[int, int, int]]] = {}
        starts: dict[int, int] = {}
        ever: set[int] = set()
        for _ in range(150):
            draw = rng.random()
            if draw < 0.1 or not truth:
                (stream,) = await create(metadata)
                truth[stream], starts[stream] = [], 0
            elif draw < 0.7:
                rows = []
                for stream in sorted(rng.sample(sorted(truth), min(3, len(truth)))):
                    at, row = await end_of(metadata, stream), metadata.stream(stream)
                    assert row is not None
                    rows.append((stream, row.epoch, at, at + rng.randint(1, 9)))
                new = await new_object(metadata, rows)
                await metadata.commit(CommitEntry(objects=[new]))
                ever.add(new.row.object_id)
                for stream, _, at, end in rows:
                    truth[stream].append((at, end, new.row.object_id))
            elif draw < 0.8:
                stream = rng.choice(sorted(truth))
                starts[stream] = rng.randint(starts[stream], await end_of(metadata, stream))
                await trim(metadata, stream, starts[stream])
            elif draw < 0.83:
                stream = rng.choice(sorted(truth))
                row = metadata.stream(stream)
                assert row is not None
                await metadata.commit(CommitEntry(destroys=[StreamEpoch(stream, row.epoch)]))
                del truth[stream], starts[stream]
            elif draw < 0.95:
                await metadata.checkpoint()
            else:
                await metadata.kill()
                metadata = await world.open(**settings)
                await metadata.take_over_previous(frozenset())
        await metadata.checkpoint()
        live = set()
        for stream, ranges in truth.items():
            start = starts[stream]
            expected = [(max(a, start), b, o) for a, b, o in ranges if b > start]
            assert await ranges_of(metadata, stream) == expected
            live |= {o for _, _, o in expected}
        assert {one.object_id for one in metadata.dead_objects(9999)} == ever - live
        assert metadata.object_count == len(live)
        for object_id in ever:
            assert (await metadata.object(object_id) is not None) == (object_id in live)
        await metadata.close(drained=True)

    asyncio.run(main())


def test_objects_are_found_dead_when_every_stream_was_destroyed() -> None:
    async def main() -> None:
        world = World()
        async with world.tenure() as metadata:
            streams = await create(metadata, 3)
            ids = [await append(metadata, s, 5) for s in streams for _ in range(4)]
            await metadata.checkpoint()
            ids.append(await append(metadata, streams[0], 1))
            await metadata.commit(CommitEntry(destroys=[StreamEpoch(s, 1) for s in streams]))
            assert metadata.dead_objects() == []
            await metadata.checkpoint()
            assert {one.object_id for one in metadata.dead_objects()} == set(ids)
            assert metadata.object_count == 0
            assert metadata.stream_count == 0
            (one,) = metadata.dead_objects(1)
            assert one.revision <= metadata.revision
            assert one.died_ms <= world.clock.now_ms()
        async with world.tenure() as again:
            assert {one.object_id for one in again.dead_objects()} == set(ids)
            await again.forget_objects(ids[:5])
            assert {one.object_id for one in again.dead_objects()} == set(ids[5:])
            await create(again)
            await again.checkpoint()
        async with world.tenure() as last:
            assert {one.object_id for one in last.dead_objects()} == set(ids[5:])

    asyncio.run(main())


def test_an_object_lives_as_long_as_one_range_does() -> None:
    async def main() -> None:
        async with World().tenure(delta_bytes_min=0) as metadata:
            a, b = await create(metadata, 2)
            new = await new_object(metadata, [(a, 1, 0, 5), (b, 1, 0, 5)])
            await metadata.commit(CommitEntry(objects=[new]))
            await metadata.checkpoint()
            await trim(metadata, a, 5)
            await metadata.checkpoint()
            assert metadata.dead_objects() == []
            await trim(metadata, b, 4)  # one offset of it is left
            await metadata.checkpoint()
            assert metadata.dead_objects() == []
            await trim(metadata, b, 5)
            await metadata.checkpoint()
            assert [one.object_id for one in metadata.dead_objects()] == [new.row.object_id]

    asyncio.run(main())


def test_checkpoints_are_written_without_a_call() -> None:
    async def main() -> None:
        world = World()
        async with world.tenure(checkpoint_records=5) as metadata:
            (stream,) = await create(metadata)
            while follower_of(metadata).state.levels.revision == 0:
                await append(metadata, stream, 1)
        async with world.tenure(checkpoint_interval_ms=20) as metadata:
            before = follower_of(metadata).state.checkpoint_revision
            async with asyncio.timeout(60):
                await follower_of(metadata).adopted(before)

    asyncio.run(main())


def test_racing_checkpoints_leave_one_consistent_state() -> None:
    async def main() -> None:
        world = World()
        async with world.tenure(1) as a, world.tenure(2) as b, world.tenure(3) as c:
            streams = {m: (await create(m))[0] for m in (a, b, c)}
            for turn in range(8):
                for metadata, stream in streams.items():
                    await append(metadata, stream, turn + 1)
                await asyncio.gather(*(metadata.checkpoint() for metadata in streams))
            expected = {s: await ranges_of(m, s) for m, s in streams.items()}
            observer = await world.open(4)
            for stream, ranges in expected.items():
                assert len(ranges) == 8
                assert await ranges_of(observer, stream) == ranges
            # Followers freed what the newest checkpoint holds, and read it from the files.
            for metadata in streams:
                for stream, ranges in expected.items():
                    assert await ranges_of(metadata, stream) == ranges
            await observer.close(drained=True)

    asyncio.run(main())


def test_a_follower_adopts_another_nodes_checkpoint() -> None:
    async def main() -> None:
        world = World()
        async with world.tenure(1) as a, world.tenure(2) as b:
            (stream,) = await create(a)
            for _ in range(10):
                await append(a, stream, 1)
            await a.checkpoint()
            await follower_of(b).adopted(0)
            assert fold_of(b).newest.ranges == {}
            assert len(await ranges_of(b, stream)) == 10
            assert b.object_count == 10

    asyncio.run(main())


@pytest.mark.parametrize("plan", [["lost"], ["dropped"], ["late"], ["lost", "away"]])
def test_an_unknown_outcome_of_a_checkpoint_is_resolved(plan: list[str]) -> None:
    async def main() -> None:
        world = World()
        kv = ScriptedKV(world.kv)
        kv.matches = checkpoints
        metadata = await world.open(kv=kv)
        (stream,) = await create(metadata)
        object_id = await append(metadata, stream, 3)
        kv.plan = list(plan)
        await metadata.checkpoint()
        assert not any(await kv.land())
        assert await ranges_of(metadata, stream) == [(0, 3, object_id)]
        assert len(await files(world)) == 1
        await append(metadata, stream, 3)
        await metadata.checkpoint()
        assert len(await ranges_of(metadata, stream)) == 2
        await metadata.close(drained=True)

    asyncio.run(main())


def test_a_failed_checkpoint_leaves_the_old_one() -> None:
    async def main() -> None:
        world = World()
        store = CountingStore(world.store)
        metadata = await world.open(store=store)
        (stream,) = await create(metadata)
        for turn in range(4):
            await append(metadata, stream, 1)
            store.fail_puts = turn % 2 == 0
            if store.fail_puts:
                with pytest.raises(StoreUnavailable):
                    await metadata.checkpoint()
                assert len(fold_of(metadata).generations) == 1
            else:
                await metadata.checkpoint()
            assert len(await ranges_of(metadata, stream)) == turn + 1
        await metadata.close(drained=True)

    asyncio.run(main())


def test_nothing_new_writes_nothing() -> None:
    async def main() -> None:
        world = World()
        store = CountingStore(world.store)
        metadata = await world.open(store=store)
        await metadata.checkpoint()
        await create(metadata)
        await metadata.checkpoint()
        puts = len(store.puts)
        await metadata.checkpoint()
        assert len(store.puts) == puts == 1
        await metadata.close(drained=True)

    asyncio.run(main())


def test_more_tenures_than_one_transaction_can_delete() -> None:
    async def main() -> None:
        world = World()
        kv = ScriptedKV(world.kv)
        kv.matches = checkpoints
        opened = [await world.open(node) for node in range(10, 80)]
        for metadata in opened:
            await metadata.open_streams([((await create(metadata))[0], None)])
        metadata = await world.open(1, kv=kv)
        await metadata.checkpoint()
        ((compares, then),) = kv.sent
        assert len(compares) == 2
        assert len(then) == 128
        assert not await keys(world, "c")
        assert not await keys(world, "m")
        for one in (*opened, metadata):
            await one.kill()
        again = await world.open(1)
        assert again.stream_count == 70
        await again.close(drained=True)

    asyncio.run(main())


def test_covered_records_that_were_left_behind_are_deleted_later() -> None:
    async def main() -> None:
        world = World()
        async with world.tenure() as metadata:
            (stream,) = await create(metadata)
            left = [kv for k in await keys(world, "c") if (kv := await world.kv.get(k))]
            await metadata.checkpoint()
        await world.kv.txn([], [Put(kv.key, kv.value) for kv in left])
        async with world.tenure() as again:
            assert len(await keys(world, "c")) == 1
            await append(again, stream, 1)
            await again.checkpoint()
            assert not await keys(world, "c")

    asyncio.run(main())


def test_files_that_no_pointer_names_are_swept() -> None:
    async def main() -> None:
        world = World()
        first = await world.open()
        (stream,) = await create(first)
        await first.checkpoint()
        assert await files(world) == ["checkpoint/1.1/1"]
        await append(first, stream, 1)
        await first.checkpoint()
        assert await files(world) == ["checkpoint/1.1/2"]  # its own old file is gone
        await world.store.put("checkpoint/1.1/9", [b"an attempt that was cut short"])
        await world.store.put("checkpoint/2.1/1", [b"of a tenure that is no more"])
        second = await world.open()
        await second.take_over_previous(frozenset())
        live = await world.open(3)
        await world.store.put("checkpoint/3.1/7", [b"an attempt under way"])
        gone = await checkpointer_of(second).sweep_files()
        assert sorted(gone) == ["checkpoint/1.1/9", "checkpoint/2.1/1"]
        assert await files(world) == ["checkpoint/1.1/2", "checkpoint/3.1/7"]
        for metadata in (first, second, live):
            await metadata.close(drained=True)

    asyncio.run(main())


class DeniesDeletion(MemoryObjectStore):
    """A store whose policy allows everything but deletion."""

    is_denied = True

    async def delete(self, keys: Sequence[str]) -> None:
        if self.is_denied:
            raise Unauthorized("no", resource=keys[0], operation="delete")
        await super().delete(keys)


def test_a_store_that_denies_deletion_fails_no_checkpoint() -> None:
    """Once, each checkpoint counted as failed, so that the next one was written at once."""

    async def main() -> None:
        world = World()
        world.store = store = DeniesDeletion(world.clock)
        async with world.tenure() as metadata:
            (stream,) = await create(metadata)
            for count in (1, 2, 3):
                await append(metadata, stream, 1)
                await metadata.checkpoint()
                assert len(await files(world)) == count
            await store.put("checkpoint/9.1/1", [b"of a tenure that is no more"])
            assert await checkpointer_of(metadata).sweep_files() == []
            store.is_denied = False
            await append(metadata, stream, 1)
            await metadata.checkpoint()
            assert await files(world) == ["checkpoint/1.1/4", "checkpoint/9.1/1"]

    asyncio.run(main())


class Paging:
    """Lists two at a time."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self.lists = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def list(self, prefix: str, *, token: str | None = None, limit: int = 1000) -> ListPage:
        self.lists += 1
        return await self._store.list(prefix, token=token, limit=2)


def test_files_on_every_page_of_a_listing_are_swept() -> None:
    async def main() -> None:
        world = World()
        store = Paging(world.store)
        metadata = await world.open(store=store)
        await create(metadata)
        await metadata.checkpoint()
        left = [f"checkpoint/9.{epoch}/1" for epoch in range(1, 6)]
        for name in left:
            await world.store.put(name, [b"of a tenure that is no more"])
        assert sorted(await checkpointer_of(metadata).sweep_files()) == left
        assert store.lists == 3
        assert await files(world) == ["checkpoint/1.1/1"]
        await metadata.close(drained=True)

    asyncio.run(main())


async def checkpointed(metadata: MetadataSession) -> tuple[int, LevelFile]:
    """A new stream with three appends, and the base file that has them."""
    (stream,) = await create(metadata)
    await append(metadata, stream, 3)
    await metadata.checkpoint()
    base = follower_of(metadata).state.levels.base
    assert base is not None
    return stream, base


@pytest.mark.parametrize("part", ["tail", "range block", "object block", "missing"])
def test_a_damaged_checkpoint_file_is_corrupt_and_named(part: str) -> None:
    async def main() -> None:
        world = World()
        async with world.tenure(delta_bytes_min=0) as metadata:
            stream, ref = await checkpointed(metadata)
            name = ref.ref.name
        data = bytearray(await world.store.get(name))
        at = {
            "tail": ref.ref.tail_position + 3,
            "range block": ref.range_bytes(0, 1)[0] + 3,
            "object block": ref.object_bytes(0, 1)[0] + 3,
            "missing": 0,
        }[part]
        data[at] ^= 4
        await world.store.put(name, [bytes(data)])
        if part == "missing":
            await world.store.delete([name])

        async def open_and_look() -> None:
            again = await world.open()
            try:
                await ranges_of(again, stream)
            finally:
                await again.kill()

        with pytest.raises(Corrupt) as caught:
            await open_and_look()
        assert caught.value.fields["object_key"] == name

    asyncio.run(main())


@pytest.mark.parametrize("bytes_left", [0, 20])
def test_a_checkpoint_file_that_is_cut_short_is_corrupt_and_named(bytes_left: int) -> None:
    """A GET past the end of an object is refused as Invalid: that is not the caller's mistake."""

    async def main() -> None:
        world = World()
        async with world.tenure(delta_bytes_min=0) as metadata:
            stream, base = await checkpointed(metadata)
            name = base.ref.name
            whole = bytes(await world.store.get(name))
            await world.store.put(name, [whole[:bytes_left]])
            with pytest.raises(Corrupt) as in_use:
                await ranges_of(metadata, stream)
            with pytest.raises(Corrupt) as opening:
                await world.open(2)
            assert in_use.value.object_key == opening.value.object_key == name

    asyncio.run(main())


def test_a_look_up_survives_a_checkpoint_that_deletes_its_file() -> None:
    async def main() -> None:
        world = World()
        async with world.tenure(1) as a, world.tenure(2) as b:
            (stream,) = await create(a)
            await append(a, stream, 3)
            await a.checkpoint()
            await follower_of(b).adopted(0)
            async with follower_of(b).lock:  # b cannot adopt for now
                await append(a, stream, 3)
                await a.checkpoint()
                looking = asyncio.ensure_future(ranges_of(b, stream))
                await asyncio.sleep(0.01)
            # At least what it had folded at the call.
            ranges = [r[:2] for r in await looking]
            assert ranges in ([(0, 3)], [(0, 3), (3, 6)])

    asyncio.run(main())


def test_a_watch_that_fell_behind_starts_over() -> None:
    async def main() -> None:
        world = World()
        async with world.tenure(1) as a, world.tenure(2) as b:
            (stream,) = await create(a)
            async with follower_of(b).lock:
                for _ in range(30):
                    await append(a, stream, 1)
                await world.kv.compact(await world.kv.revision())
            await follower_of(b).reach(a.revision)
            assert len(await ranges_of(b, stream)) == 30

    asyncio.run(main())


def test_opening_reads_no_more_with_many_objects() -> None:
    async def main() -> list[tuple[int, int]]:
        costs = []
        for objects in (10, 1000, 60_000):
            world = World()
            store = CountingStore(world.store)
            filled = await fill_metadata(
                world.kv, world.store, cluster_id="test", node_id=1, objects=objects, streams=40
            )
            metadata = await world.open(store=store)
            await metadata.take_over_previous(frozenset())
            assert metadata.object_count == objects
            opening = list(store.gets)
            stream = filled.streams[0]
            at = filled.end_offset - 1
            (located,) = await metadata.locate(stream, at, at + 1)
            assert (located.start, located.end) == (filled.end_offset - 10, filled.end_offset)
            assert len(store.gets) - len(opening) <= 2  # one range block, one object block
            assert all(size <= 16 << 10 for _, size in store.gets[len(opening) :])
            (again,) = await metadata.locate(stream, at, at + 1)
            assert len(store.gets) - len(opening) <= 2
            assert again == located
            object_id = await append(metadata, stream, 5)
            await metadata.checkpoint()
            tail = await metadata.locate(stream, filled.end_offset, filled.end_offset + 1)
            assert tail[0].object.object_id == object_id
            costs.append((len(opening), sum(size for _, size in opening)))
            await metadata.close(drained=True)
        return costs

    costs = asyncio.run(main())
    assert [gets for gets, _ in costs] == [2, 2, 2]
    # 240,000 ranges and 60,000 objects: 24 and 16 bytes of index per block of them.
    assert costs[-1][1] < 16_000


def test_a_base_merge_reads_and_parses_only_what_changed() -> None:
    async def main() -> None:
        world = World()
        filled = await fill_metadata(
            world.kv, world.store, cluster_id="test", node_id=1, objects=20_000, streams=40
        )
        metadata = await world.open(delta_bytes_min=0, delta_percent=1)
        await metadata.take_over_previous(frozenset())
        old = follower_of(metadata).state.levels.base
        assert old is not None
        before = bytes(await world.store.get(old.ref.name))
        stream = filled.streams[20]
        for _ in range(700):
            await append(metadata, stream, 1)
        await trim(metadata, filled.streams[3], 1000)
        await metadata.checkpoint()
        new = follower_of(metadata).state.levels.base
        assert new is not None
        assert new is not old
        after = bytes(await world.store.get(new.ref.name))
        copied = 0
        for block in range(len(old.tail.ranges)):
            start, end = old.range_bytes(block, block + 1)
            copied += before[start:end] in after
        assert copied >= len(old.tail.ranges) - 4
        assert len(await ranges_of(metadata, stream)) == 2000 + 700
        assert (await ranges_of(metadata, filled.streams[3]))[0][0] == 1000
        await metadata.close(drained=True)

    asyncio.run(main())


def test_a_fence_that_another_tenure_sealed_is_seen_without_a_checkpoint() -> None:
    """A store without a checkpoint opens; a fence that another tenure sealed is known."""

    async def main() -> None:
        world = World()
        a = await world.open(1)
        b = await world.open(2)
        await b.seal(a.tenure, even_if_alive=True)
        assert not follower_of(b).state.fences[a.tenure].is_live
        fenced = await world.kv.get(fence.key(PREFIX, a.tenure))
        assert fenced is not None
        assert fence.decode(fenced.value).sealed_ms
        assert await world.kv.get(checkpoint.key(PREFIX)) is None
        await a.kill()
        await b.close(drained=True)

    asyncio.run(main())


def test_a_checkpoint_whose_caller_is_cancelled_is_finished() -> None:
    class SlowKV(MemoryKVStore):
        """Answers late, after the checkpoint pointer is put."""

        is_named: asyncio.Event | None = None
        may_answer = asyncio.Event()

        async def txn(
            self,
            compares: Sequence[Compare],
            then: Sequence[Operation],
            otherwise: Sequence[Operation] = (),
        ) -> TxnResult:
            result = await super().txn(compares, then, otherwise)
            if self.is_named and any(
                isinstance(one, Put) and one.key == checkpoint.key(PREFIX) for one in then
            ):
                self.is_named.set()
                await self.may_answer.wait()
            return result

    async def main() -> None:
        world = World()
        world.kv = kv = SlowKV(world.clock)
        metadata = await world.open(checkpoint_interval_ms=1 << 30)
        (stream,) = await create(metadata)
        await append(metadata, stream, 1)
        kv.is_named = asyncio.Event()
        first = asyncio.create_task(metadata.checkpoint())
        await kv.is_named.wait()
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        await append(metadata, stream, 1)
        second = asyncio.create_task(metadata.checkpoint())
        kv.may_answer.set()
        async with asyncio.timeout(60):
            await second
        assert len(await ranges_of(metadata, stream)) == 2
        await metadata.close(drained=True)

    asyncio.run(main())


def test_the_metadata_store_going_away_during_a_checkpoint() -> None:
    async def main() -> None:
        world = World()
        kv = ScriptedKV(world.kv)
        metadata = await world.open(kv=kv)
        (stream,) = await create(metadata)
        await append(metadata, stream, 1)
        original = MemoryKVStore.get

        async def away(self: MemoryKVStore, key: bytes, **more: Any) -> Any:
            if key == checkpoint.key(PREFIX):
                raise MetadataUnavailable("away")
            return await original(self, key, **more)

        replace_method(MemoryKVStore, "get", away)
        try:
            with pytest.raises(MetadataUnavailable):
                await metadata.checkpoint()
        finally:
            replace_method(MemoryKVStore, "get", original)
        await append(metadata, stream, 1)
        await metadata.checkpoint()
        assert len(await ranges_of(metadata, stream)) == 2
        await metadata.close(drained=True)

    asyncio.run(main())


async def checkpoint_held_up(world: World, kv: ScriptedKV, metadata: MetadataSession) -> Any:
    """A checkpoint whose files are stored and whose transaction waits for `released`."""
    kv.matches, kv.plan, kv.sent = checkpoints, ["hold"], []
    task = asyncio.create_task(metadata.checkpoint())
    await kv.held.wait()
    return task


def test_constant_opening_of_streams_holds_up_no_checkpoint() -> None:
    """Each open raises the own fence's gen; a checkpoint only needs the fence to be LIVE."""

    async def main() -> None:
        kv = ScriptedKV(MemoryKVStore(World().clock))
        world = World(kv=kv)
        async with world.tenure() as metadata:
            streams = await create(metadata, 3)
            for stream_id in streams:
                await append(metadata, stream_id, 5)
            task = await checkpoint_held_up(world, kv, metadata)
            for stream_id in streams * 5:
                await metadata.open_streams([(stream_id, None)])
            await append(metadata, streams[0], 2)
            kv.released.set()
            await task
            assert len(kv.sent) == 1
            assert len(await keys(world, "m")) == 15
            assert len(await keys(world, "c")) == 1
            rows = [(r.stream_id, r.start, r.end) for r in metadata.streams()]
            expected = {s: await ranges_of(metadata, s) for s in streams}
        async with world.tenure() as again:
            assert [(r.stream_id, r.start, r.end) for r in again.streams()] == rows
            assert {s: await ranges_of(again, s) for s in streams} == expected

    asyncio.run(main())


def test_a_sealed_tenure_names_no_checkpoint() -> None:
    async def main() -> None:
        kv = ScriptedKV(MemoryKVStore(World().clock))
        world = World(kv=kv)
        a, b = await world.open(1), await world.open(2)
        (stream,) = await create(a)
        await append(a, stream, 5)
        task = await checkpoint_held_up(world, kv, a)
        await b.seal(a.tenure, even_if_alive=True)
        kv.released.set()
        with pytest.raises(TenureFenced):
            await task
        assert await world.kv.get(checkpoint.key(PREFIX)) is None
        await a.kill()
        await b.kill()

    asyncio.run(main())
