"""Object ids and garbage: windows, orphans of live and of sealed tenures, pins, retired tenures."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamlog.compaction.collect.collector import CollectorConfig
from streamlog.kvstore.interface import Put, StoredKeyValue, prefix_end
from streamlog.kvstore.memory.store import MemoryKVStore
from streamlog.metadata.compaction.garbage import LATE_IDS_MAX, LATE_MS
from streamlog.metadata.config import MetadataConfig
from streamlog.metadata.interface import CommitEntry, StreamEpoch
from streamlog.metadata.journal.object_ids import BITS, BLOCK_IDS, ObjectIds, window_ids
from streamlog.metadata.keys import fence, head, id_block, late_deletes, pin
from streamlog.metadata.keys.space import prefix_of
from streamlog.runtime.clock import SystemClock
from streamlog.testing.clocks import ManualClock
from tests.metadata.scripted_kv import ScriptedKV, SlowLeases, writes
from tests.metadata.world import World, append, create, new_object
from tests.support.metadata_insides import (
    fold_of,
    follower_of,
    garbage_of,
    liveness_of,
    skip_ids,
)
from tests.support.object_ids import give_up_id, take_id

PREFIX = prefix_of("test")


@settings(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from(["take", "commit", "release", "sweep", "crash"]), max_size=60))
def test_uncommitted_objects_lie_in_the_window(steps: list[str]) -> None:
    window = 4
    ids = ObjectIds(3, window)
    taken: list[int] = []
    ended: set[int] = set()
    durable = 0
    for step in steps:
        if step == "take" and ids.has_room:
            taken.append(ids.take())
        elif step == "commit" and ids.uncommitted:
            one = min(ids.uncommitted) if len(taken) % 2 else max(ids.uncommitted)
            durable = ids.floor([one])
            ids.committed([one], durable)
            ended.add(one)
        elif step == "release" and ids.uncommitted:
            ids.give_up([max(ids.uncommitted)])
        elif step == "sweep":
            ended.update(ids.orphans)
            ids.swept(ids.orphans)
        left = set(taken) - ended
        assert left <= set(window_ids([3], durable, window))
    assert taken == list(range(3 << BITS, (3 << BITS) + len(taken)))


def test_a_window_passes_the_end_of_a_block() -> None:
    ids = ObjectIds(3, 4)
    skip_ids(ids, BLOCK_IDS - 2)
    assert [ids.take(), ids.take()] == [(4 << BITS) - 2, (4 << BITS) - 1]
    assert ids.needs_block
    assert ids.floor([(4 << BITS) - 2, (4 << BITS) - 1]) == 4 << BITS
    ids.add_block(9)
    assert ids.take() == 9 << BITS
    expected = [(4 << BITS) - 2, (4 << BITS) - 1, 9 << BITS, (9 << BITS) + 1]
    assert window_ids([3, 9], (4 << BITS) - 2, 4) == expected
    # A floor at the end of a block is the beginning of the tenure's next one.
    assert window_ids([3, 9], 4 << BITS, 2) == [9 << BITS, (9 << BITS) + 1]
    assert window_ids([3], 4 << BITS, 2) == []
    assert window_ids([3], 0, 2) == [3 << BITS, (3 << BITS) + 1]
    assert window_ids([], 0, 2) == []


def test_ids_go_on_in_the_next_block() -> None:
    async def main() -> None:
        world = World()
        async with world.tenure(1) as a, world.tenure(2) as b:
            (stream,) = await create(a)
            skip_ids(a, BLOCK_IDS - 1)
            object_ids = [await append(a, stream, 1) for _ in range(3)]
            assert object_ids == [(2 << BITS) - 1, 3 << BITS, (3 << BITS) + 1]
            assert await take_id(b) == 2 << BITS

    asyncio.run(main())


def test_a_block_whose_answer_was_lost_is_the_next_one_used() -> None:
    """A sweep counts the tenure's ids through all blocks that it owns."""

    async def main() -> None:
        kv = ScriptedKV(MemoryKVStore(SystemClock()))
        world = World(kv=kv)
        first = await world.open(put_window=8)
        (stream,) = await create(first)
        skip_ids(first, BLOCK_IDS - 2)
        kept = [await append(first, stream, 1) for _ in range(2)]
        kv.matches = lambda sent: any(
            isinstance(one, Put) and one.key.startswith(PREFIX + b"b/") for one in sent[1]
        )
        for step in ("dropped", "late", "lost"):
            kv.plan = [step]
            taking = asyncio.create_task(take_id(first))
            while kv.plan:  # noqa: ASYNC110 - any state may be waited for
                await asyncio.sleep(0)
            # Like a caller whose deadline passes.
            taking.cancel()
            await asyncio.gather(taking, return_exceptions=True)
        taken = [await take_id(first) for _ in range(2)]
        assert not any(await kv.land())
        await first.kill()
        async with world.tenure() as second:
            (orphans,) = await second.orphan_candidates()
            assert set(taken) <= set(orphans.object_ids)
            assert not set(kept) & set(orphans.object_ids)

    asyncio.run(main())


def test_retired_tenures_are_forgotten() -> None:
    async def main() -> None:
        world = World(config=MetadataConfig(retry_backoff_ms=1, orphan_resweep_ms=0))
        async with world.tenure() as metadata:
            (stream,) = await create(metadata)
            for number in range(3):
                left = await world.open(2 + number)
                orphan = await take_id(left)
                await left.close(drained=True)
                await metadata.catch_up()
                for _ in range(3):
                    for orphans in await metadata.orphan_candidates():
                        await metadata.orphans_deleted(orphans)
                    await append(metadata, stream, 1)
                    await metadata.checkpoint()
                await metadata.catch_up()
                assert await metadata.orphan_candidates() == []
                assert not metadata.is_swept(orphan)
            garbage = garbage_of(metadata)
            assert not garbage._listed
            assert not garbage._swept

    asyncio.run(main())


def test_a_dead_tenures_uncommitted_window_is_orphaned() -> None:
    async def main() -> None:
        world = World()
        first = await world.open(put_window=8)
        (stream,) = await create(first)
        lost = await new_object(first, [(stream, 1, 0, 1)])
        done = [await append(first, stream, 1) for _ in range(3)]
        released = await take_id(first)
        give_up_id(first, released)
        await first.kill()
        async with world.tenure() as second:
            (orphans,) = await second.orphan_candidates()
            assert orphans.tenure == first.tenure
            assert not orphans.is_final
            assert {lost.row.object_id, released} <= set(orphans.object_ids)
            assert not set(done) & set(orphans.object_ids)
            assert len(orphans.object_ids) == 8 - len(done)
            await second.orphans_deleted(orphans)
            assert await second.orphan_candidates() == []
        # Another process deletes it again: deleting is harmless, forgetting is not.
        async with world.tenure() as third:
            candidates = {o.tenure: o for o in await third.orphan_candidates()}
            assert candidates[first.tenure].object_ids == orphans.object_ids

    asyncio.run(main())


def test_a_dead_object_is_no_orphan() -> None:
    async def main() -> None:
        world = World()
        first = await world.open(put_window=8)
        (stream,) = await create(first)
        lost = await new_object(first, [(stream, 1, 0, 1)])
        died = await append(first, stream, 1)
        await first.commit(CommitEntry(destroys=[StreamEpoch(stream, 1)]))
        await first.kill()
        async with world.tenure() as second:
            await create(second)
            for _ in range(2):
                (orphans,) = await second.orphan_candidates()
                assert lost.row.object_id in orphans.object_ids
                assert died not in orphans.object_ids
                await second.checkpoint()
            assert [one.object_id for one in second.dead_objects()] == [died]

    asyncio.run(main())


def test_the_window_of_a_live_tenure_is_not_swept() -> None:
    async def main() -> None:
        world = World()
        async with world.tenure(1) as a, world.tenure(2) as b:
            (stream,) = await create(a)
            await new_object(a, [(stream, 1, 0, 1)])
            assert await b.orphan_candidates() == []
            assert await a.orphan_candidates() == []

    asyncio.run(main())


def test_objects_that_a_live_tenure_gave_up_are_deleted_twice() -> None:
    async def main() -> None:
        world = World()
        async with world.tenure(1, orphan_resweep_ms=0) as metadata:
            given_up = await take_id(metadata)
            give_up_id(metadata, given_up)
            (orphans,) = await metadata.orphan_candidates()
            assert orphans.object_ids == (given_up,)
            await metadata.orphans_deleted(orphans)
            # Its PUT arrives only now, below the floor, where no other sweep looks.
            (again,) = await metadata.orphan_candidates()
            assert again == orphans
            await metadata.orphans_deleted(again)
            assert await metadata.orphan_candidates() == []

    asyncio.run(main())


@pytest.mark.parametrize("change_ms", [0, 100 * LATE_MS, -100 * LATE_MS])
def test_the_late_delete_waits_for_its_time(change_ms: int) -> None:
    """Also where the wall clock is set meanwhile."""

    async def main() -> None:
        world = World()
        clock = world.clock = ManualClock(world.clock.now_ms())
        async with world.tenure(1) as metadata:
            give_up_id(metadata, await take_id(metadata))
            (orphans,) = await metadata.orphan_candidates()
            await metadata.orphans_deleted(orphans)
            clock.set_by(change_ms)
            clock.advance(LATE_MS - 1)
            assert await metadata.orphan_candidates() == []
            clock.advance(1)
            assert await metadata.orphan_candidates() == [orphans]

    asyncio.run(main())


def test_the_oldest_late_deletes_go_where_there_are_too_many() -> None:
    async def main() -> None:
        world = World()
        surplus = 8
        async with world.tenure(put_window=LATE_IDS_MAX + surplus) as metadata:
            for _ in range(LATE_IDS_MAX + surplus):
                give_up_id(metadata, await take_id(metadata))
            (orphans,) = await metadata.orphan_candidates()
            await metadata.orphans_deleted(orphans)
            (stored,) = (await world.kv.range(PREFIX + b"o/", PREFIX + b"o0")).kvs
            assert late_deletes.decode(stored.value) == orphans.object_ids[surplus:]
            assert [metadata.is_swept(one) for one in orphans.object_ids].count(True) == (
                LATE_IDS_MAX
            )

    asyncio.run(main())


def test_late_deletes_of_a_sealed_tenure_are_done() -> None:
    async def main() -> None:
        world = World()
        first = await world.open(put_window=2)
        (stream,) = await create(first)
        given_up = await take_id(first)
        give_up_id(first, given_up)
        (orphans,) = await first.orphan_candidates()
        await first.orphans_deleted(orphans)
        for _ in range(3):
            await append(first, stream, 1)
        assert fold_of(first).mark(first.tenure).floor > given_up
        await first.kill()
        # Its PUT arrives only now.
        second = await world.open(orphan_resweep_ms=0)
        (orphans,) = await second.orphan_candidates()
        assert given_up in orphans.object_ids
        await second.orphans_deleted(orphans)
        await second.take_over_previous(frozenset())
        await second.checkpoint()
        (orphans,) = await second.orphan_candidates()
        assert orphans.is_final
        assert given_up in orphans.object_ids
        await second.orphans_deleted(orphans)
        assert not (await world.kv.range(PREFIX + b"o/", PREFIX + b"o0")).kvs
        await second.close(drained=True)

    asyncio.run(main())


def test_an_ended_tenure_writes_no_more_late_deletes() -> None:
    async def main() -> None:
        world = World()
        first = await world.open()
        give_up_id(first, await take_id(first))
        (orphans,) = await first.orphan_candidates()
        async with world.tenure():
            await first.orphans_deleted(orphans)
            assert not (await world.kv.range(PREFIX + b"o/", PREFIX + b"o0")).kvs
        await first.kill()

    asyncio.run(main())


def test_a_tenure_is_retired_after_the_late_sweep() -> None:
    async def main() -> None:
        world = World()
        first = await world.open()
        await create(first)
        await first.close(drained=True)
        retired = (fence.key(PREFIX, first.tenure), head.key(PREFIX, first.tenure))
        second = await world.open(orphan_resweep_ms=0)
        # It still holds a stream: swept, not retired.
        (orphans,) = await second.orphan_candidates()
        assert not orphans.is_final
        await second.orphans_deleted(orphans)
        await second.take_over_previous(frozenset())
        assert await second.orphan_candidates() == []  # not yet checkpointed
        await second.checkpoint()
        (orphans,) = await second.orphan_candidates()
        assert orphans.is_final
        await second.orphans_deleted(orphans)
        for key in retired:
            assert await world.kv.get(key) is None
        start = id_block.block_prefix(PREFIX, id_block.OBJECTS)
        blocks = (await world.kv.range(start, prefix_end(start))).kvs
        assert {id_block.decode_owner(kv.value) for kv in blocks} == {second.tenure}
        await follower_of(second).reach(await world.kv.revision())
        assert first.tenure not in fold_of(second).marks
        await create(second)
        await second.checkpoint()
        checkpoint = follower_of(second).state.checkpoint
        assert checkpoint is not None
        assert set(checkpoint.tenures) == {second.tenure}
        await second.close(drained=True)
        third = await world.open()
        assert third.stream_count == 2
        await third.close(drained=True)

    asyncio.run(main())


def test_the_oldest_pin_counts() -> None:
    async def main() -> None:
        world = World()
        async with world.tenure() as metadata:
            assert await metadata.oldest_pin() is None
            for name, revision in ((b"a", 70), (b"b", 50)):
                value = pin.encode(pin.Pin(revision, "a reader"))
                await world.kv.txn([], [Put(pin.key(PREFIX, name), value)])
            assert await metadata.oldest_pin() == 50

    asyncio.run(main())


async def lease_keys(world: World) -> list[StoredKeyValue]:
    return list((await world.kv.range(PREFIX + b"l/", PREFIX + b"l0")).kvs)


async def lose_lease(world: World) -> int:
    (kv,) = await lease_keys(world)
    await world.kv.revoke_lease(kv.lease_id)
    assert not await lease_keys(world)
    return kv.lease_id


def test_a_lost_lease_is_replaced_while_the_tenure_lives() -> None:
    async def main() -> None:
        world = World()
        async with world.tenure() as metadata:
            lost = await lose_lease(world)
            await liveness_of(metadata).tick()
            (again,) = await lease_keys(world)
            assert again.lease_id != lost
        assert not await lease_keys(world)

    asyncio.run(main())


@pytest.mark.parametrize("fate", ["away", "dropped", "refused"])
def test_a_lease_whose_key_was_not_put_is_replaced_again(fate: str) -> None:
    """Without the key the tenure looks dead, although the lease itself is kept alive."""

    async def main() -> None:
        world = World()
        kv = ScriptedKV(world.kv)
        kv.matches = writes("l")
        async with world.tenure(kv=kv) as metadata:
            await lose_lease(world)
            kv.plan = [fate]
            await liveness_of(metadata).tick()
            assert not await lease_keys(world)
            await liveness_of(metadata).tick()
            assert len(await lease_keys(world)) == 1

    asyncio.run(main())


def test_a_lease_that_ends_before_its_key_is_put_ends_no_tenure() -> None:
    async def main() -> None:
        world = World()
        kv = SlowLeases(world.kv)
        async with world.tenure(kv=kv) as metadata:
            await lose_lease(world)
            kv.is_slow = True
            await liveness_of(metadata).tick()
            kv.is_slow = False
            await liveness_of(metadata).tick()
            assert len(await lease_keys(world)) == 1
            await create(metadata)

    asyncio.run(main())


def test_a_tenure_has_fewer_late_deletes_than_the_guard_stops_at() -> None:
    most = LATE_IDS_MAX + MetadataConfig().put_window
    assert most <= CollectorConfig().orphans_per_tenure_max
