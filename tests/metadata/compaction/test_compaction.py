"""A compactor's tenure: its commits, its refusals, and its ids."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest

from streamlog.errors import Closed, Conflict, Invalid, TenureFenced
from streamlog.kvstore.interface import prefix_end
from streamlog.metadata.compaction_interface import (
    CompactionMetadata,
    CompactionPoint,
    CompactionTenure,
    Replacement,
)
from streamlog.metadata.interface import (
    CommitEntry,
    NewObject,
    ObjectRow,
    RangeRow,
    StreamEpoch,
    Tenure,
    TrimEntry,
)
from streamlog.metadata.keys import counter, fence
from streamlog.metadata.keys.space import prefix_of
from streamlog.metadata.session import MetadataSession
from tests.metadata.scripted_kv import ScriptedKV
from tests.metadata.world import World, append, create, ranges_of
from tests.support.metadata_insides import fold_of, follower_of, garbage_of
from tests.support.object_ids import give_up_ids, take_ids

PREFIX = prefix_of("test")
Row = tuple[int, int, int]


@dataclass
class Site:
    """A stream with 8 objects of 5 offsets each."""

    world: World
    kv: ScriptedKV
    metadata: MetadataSession
    compactor: CompactionTenure
    stream: int
    objects: list[int]

    async def output(self, *rows: Row, tenure: CompactionTenure | None = None) -> NewObject:
        (object_id,) = await take_ids(tenure or self.compactor, 1)
        return made(object_id, rows)

    async def commit(self, inputs: Sequence[int], *rows: Row) -> int:
        """Replaces inputs (numbers of objects) by one output; its id."""
        point = await self.metadata.compaction_point()
        new = await self.output(*rows)
        await self.compactor.commit(Replacement(point, [self.objects[i] for i in inputs], [new]))
        return new.row.object_id

    async def ranges(self) -> list[Row]:
        return await ranges_of(self.metadata, self.stream)


def made(object_id: int, rows: Sequence[Row]) -> NewObject:
    return NewObject(ObjectRow(object_id, 10, 5, 5, 7), [RangeRow(s, 1, a, b) for s, a, b in rows])


@asynccontextmanager
async def site(*, ids_max: int = 4) -> AsyncIterator[Site]:
    world = World()
    kv = ScriptedKV(world.kv)
    metadata = await world.open(kv=kv)
    (stream,) = await create(metadata)
    objects = [await append(metadata, stream, 5) for _ in range(8)]
    compactor = await metadata.open_compaction_tenure(ids_max=ids_max)
    kv.sent.clear()
    try:
        yield Site(world, kv, metadata, compactor, stream, objects)
    finally:
        await metadata.close(drained=True)


def test_a_compaction_is_three_compares_and_three_puts() -> None:
    async def main() -> None:
        async with site() as s:
            as_asked: CompactionMetadata = s.metadata
            assert (await as_asked.compaction_point()).counter == 0
            new = await s.commit([0, 1, 2], (s.stream, 0, 15))
            ((compares, then),) = s.kv.sent
            assert (len(compares), len(then)) == (3, 3)
            assert (await s.ranges())[:2] == [(0, 15, new), (15, 20, s.objects[3])]
            kv = await s.world.kv.get(counter.key(PREFIX))
            assert kv is not None
            assert counter.decode(kv.value) == 1
            assert (await s.metadata.compaction_point()).counter == 1
            row = await s.metadata.object(new)
            assert row is not None
            await s.metadata.checkpoint()
            assert [d.object_id for d in s.metadata.dead_objects()] == s.objects[:3]
            assert (await s.ranges())[0] == (0, 15, new)

    asyncio.run(main())


@pytest.mark.parametrize(
    "plan", [["lost"], ["dropped", "away"], ["late"], ["lost", "lost", "dropped"], ["late", "late"]]
)
def test_an_unknown_outcome_is_resolved_by_sending_the_same_bytes(plan: list[str]) -> None:
    async def main() -> None:
        async with site() as s:
            s.kv.plan = list(plan)
            new = await s.commit([0, 1], (s.stream, 0, 10))
            assert len({str(sent) for sent in s.kv.sent}) == 1
            assert not any(await s.kv.land())
            assert (await s.ranges())[0] == (0, 10, new)
            assert fold_of(s.metadata).compactions.counter == 1
            await s.commit([2, 3], (s.stream, 10, 20))

    asyncio.run(main())


def test_an_overtaken_compaction_of_other_inputs_is_committed_all_the_same() -> None:
    async def main() -> None:
        async with site() as s, s.world.tenure(2) as other:
            rival = await other.open_compaction_tenure(ids_max=4)
            # Its first copy is in flight when the rival commits; it must not be applied afterwards.
            s.kv.plan = ["late", "hold"]
            own = asyncio.create_task(s.commit([0, 1], (s.stream, 0, 10)))
            await s.kv.held.wait()
            point = await other.compaction_point()
            new = await s.output((s.stream, 10, 20), tenure=rival)
            await rival.commit(Replacement(point, s.objects[2:4], [new]))
            s.kv.released.set()
            first = await own
            assert not any(await s.kv.land())
            expected = [(0, 10, first), (10, 20, new.row.object_id)]
            assert (await s.ranges())[:2] == expected
            await other.catch_up()
            assert (await ranges_of(other, s.stream))[:2] == expected

    asyncio.run(main())


def test_a_compaction_whose_input_was_replaced_is_refused_and_its_outputs_are_swept() -> None:
    async def main() -> None:
        async with site() as s, s.world.tenure(2) as other:
            rival = await other.open_compaction_tenure(ids_max=4)
            point = await s.metadata.compaction_point()
            own = await s.output((s.stream, 0, 10))
            theirs = await s.output((s.stream, 5, 15), tenure=rival)
            await rival.commit(Replacement(point, s.objects[1:3], [theirs]))
            # The fold shows it already, or only the refusal does.
            with pytest.raises(Conflict):
                await s.compactor.commit(Replacement(point, s.objects[:2], [own]))
            expected = [(0, 5, s.objects[0]), (5, 15, theirs.row.object_id)]
            assert (await s.ranges())[:2] == expected
            (orphans,) = await s.metadata.orphan_candidates()
            assert orphans.tenure == s.compactor.tenure
            assert orphans.object_ids == (own.row.object_id,)
            await s.metadata.orphans_deleted(orphans)
            assert await s.metadata.orphan_candidates() == []
            await s.commit([3, 4], (s.stream, 15, 25))

    asyncio.run(main())


def test_a_plan_older_than_own_compactions_of_other_inputs_is_committed() -> None:
    async def main() -> None:
        async with site() as s:
            point = await s.metadata.compaction_point()
            late = await s.output((s.stream, 20, 30))
            again = await s.output((s.stream, 0, 20))
            first = await s.commit([0, 1], (s.stream, 0, 10))
            await s.compactor.commit(Replacement(point, s.objects[4:6], [late]))
            inputs = [first, *s.objects[2:4]]
            await s.compactor.commit(Replacement(point, inputs, [again]))
            ids = [again.row.object_id, late.row.object_id]
            assert (await s.ranges())[:2] == [(0, 20, ids[0]), (20, 30, ids[1])]

    asyncio.run(main())


def test_trims_and_destructions_in_between_conflict_with_nothing() -> None:
    async def main() -> None:
        async with site() as s:
            (gone,) = await create(s.metadata)
            lost = await append(s.metadata, gone, 5)
            point = await s.metadata.compaction_point()
            (object_id,) = await take_ids(s.compactor, 1)
            new = made(object_id, [(s.stream, 0, 15), (gone, 0, 5)])
            await s.metadata.commit(
                CommitEntry(trims=[TrimEntry(s.stream, 1, 12)], destroys=[StreamEpoch(gone, 1)])
            )
            await s.compactor.commit(Replacement(point, [*s.objects[:3], lost], [new]))
            assert (await s.ranges())[0] == (12, 15, new.row.object_id)
            await s.metadata.checkpoint()
            dead = {one.object_id for one in s.metadata.dead_objects()}
            assert dead == {*s.objects[:3], lost}

    asyncio.run(main())


@pytest.mark.parametrize(
    ("inputs", "rows"),
    [
        ([0, 1], [(0, 8)]),
        ([0, 1], [(1, 10)]),
        ([0], [(0, 10)]),
        ([0, 1], [(0, 10), (5, 10)]),
        ([0, 1], [(5, 10), (0, 5)]),
        ([6, 7], [(30, 41)]),
        ([0], [(0, 0)]),
        ([], [(0, 5)]),
    ],
)
@pytest.mark.parametrize("is_checkpointed", [False, True])
def test_a_replacement_of_partial_ranges_is_refused(
    inputs: list[int], rows: list[tuple[int, int]], is_checkpointed: bool
) -> None:
    async def main() -> None:
        async with site() as s:
            if is_checkpointed:
                await s.metadata.checkpoint()
            before = await s.ranges()
            s.kv.sent.clear()
            with pytest.raises(Invalid):
                await s.commit(inputs, *[(s.stream, start, end) for start, end in rows])
            assert not s.kv.sent
            assert await s.ranges() == before
            (orphans,) = await s.metadata.orphan_candidates()
            assert len(orphans.object_ids) == 1

    asyncio.run(main())


def test_outputs_are_the_tenures_own_ids() -> None:
    async def main() -> None:
        async with site() as s:
            point = await s.metadata.compaction_point()
            rows = [(s.stream, 0, 5)]
            done = await s.output(*rows)
            await s.compactor.commit(Replacement(point, s.objects[:1], [done]))
            for wrong in (done.row.object_id, 5):
                with pytest.raises(Invalid, match="not this tenure's"):
                    await s.compactor.commit(
                        Replacement(point, s.objects[1:2], [made(wrong, [(s.stream, 5, 10)])])
                    )
            assert (await s.ranges())[0] == (0, 5, done.row.object_id)

    asyncio.run(main())


def test_an_entry_too_large_for_a_record_is_refused() -> None:
    async def main() -> None:
        world = World()
        async with world.tenure(object_streams_max=10) as metadata:
            streams = await create(metadata, 11)
            objects = [await append(metadata, stream, 5) for stream in streams]
            compactor = await metadata.open_compaction_tenure(ids_max=2)
            point = await metadata.compaction_point()
            for count in (11, 10):
                (object_id,) = await take_ids(compactor, 1)
                new = made(object_id, [(stream, 0, 5) for stream in streams[:count]])
                replacement = Replacement(point, objects[:count], [new])
                if count > 10:
                    with pytest.raises(Invalid, match="replace less"):
                        await compactor.commit(replacement)
                    for orphans in await metadata.orphan_candidates():
                        await metadata.orphans_deleted(orphans)
                else:
                    await compactor.commit(replacement)

    asyncio.run(main())


def test_the_window_opens_when_ids_are_committed_or_swept() -> None:
    async def main() -> None:
        async with site(ids_max=3) as s:
            with pytest.raises(Invalid, match="window holds 3"):
                await take_ids(s.compactor, 4)
            ids = await take_ids(s.compactor, 3)
            more = asyncio.create_task(take_ids(s.compactor, 2))
            await asyncio.sleep(0)
            assert not more.done()
            point = await s.metadata.compaction_point()
            news = [made(ids[0], [(s.stream, 0, 5)])]
            await s.compactor.commit(Replacement(point, s.objects[:1], news))
            await asyncio.sleep(0)
            assert not more.done()  # the first id alone is free
            give_up_ids(s.compactor, ids[1:])
            (orphans,) = await s.metadata.orphan_candidates()
            assert orphans.object_ids == tuple(ids[1:])
            # After the sweep a record raises the floor before new ids are taken.
            await s.metadata.orphans_deleted(orphans)
            taken = await more
            assert taken == [ids[2] + 1, ids[2] + 2]
            assert fold_of(s.metadata).mark(s.compactor.tenure).floor == taken[0]

    asyncio.run(main())


def test_a_closed_compactors_window_is_swept() -> None:
    async def main() -> None:
        async with site(ids_max=3) as s:
            tenure = s.compactor.tenure
            ids = await take_ids(s.compactor, 3)
            give_up_ids(s.compactor, ids[:1])
            (released,) = await s.metadata.orphan_candidates()
            assert released.object_ids == (ids[0],)
            await s.compactor.close()
            await s.metadata.catch_up()
            # The few ids that were given up are not the whole window that a crash leaves.
            await s.metadata.orphans_deleted(released)
            (orphans,) = await s.metadata.orphan_candidates()
            assert (orphans.tenure, set(orphans.object_ids)) == (tenure, set(ids))
            await s.metadata.orphans_deleted(orphans)
            assert await s.metadata.orphan_candidates() == []
            with pytest.raises(TenureFenced):
                await take_ids(s.compactor, 1)

    asyncio.run(main())


async def fences(world: World) -> dict[Tenure, bool]:
    start = PREFIX + b"f/"
    kvs = (await world.kv.range(start, prefix_end(start))).kvs
    return {
        Tenure(*(int.from_bytes(kv.key[-8 + i : -4 + i or None], "big") for i in (0, 4))): (
            fence.decode(kv.value).is_live
        )
        for kv in kvs
    }


def test_a_new_compactor_seals_the_one_before() -> None:
    async def main() -> None:
        async with site() as s:
            point = await s.metadata.compaction_point()
            new = await s.output((s.stream, 0, 5))
            again = await s.metadata.open_compaction_tenure(ids_max=4)
            assert again.tenure == Tenure(s.metadata.tenure.node_id | 1 << 31, 2)
            with pytest.raises(TenureFenced):
                await s.compactor.commit(Replacement(point, s.objects[:1], [new]))
            assert len(await s.ranges()) == 8
            fresh = await s.output((s.stream, 0, 5), tenure=again)
            await again.commit(Replacement(point, s.objects[:1], [fresh]))

    asyncio.run(main())


def test_a_seal_ends_a_compactors_wait_for_ids() -> None:
    async def main() -> None:
        async with site(ids_max=1) as s:
            await take_ids(s.compactor, 1)
            waiting = asyncio.create_task(take_ids(s.compactor, 1))
            await asyncio.sleep(0)
            await s.metadata.seal(s.compactor.tenure, even_if_alive=True)
            with pytest.raises(TenureFenced):
                await waiting

    asyncio.run(main())


def test_the_next_start_of_the_node_seals_a_compactor_that_crashed() -> None:
    async def main() -> None:
        world = World()
        first = await world.open(1)
        compactor = await first.open_compaction_tenure(ids_max=4)
        (object_id,) = await take_ids(compactor, 1)
        await first.kill()
        with pytest.raises((Closed, TenureFenced)):
            await take_ids(compactor, 1)
        async with world.tenure(2):
            assert (await fences(world))[compactor.tenure]  # no other node does
        async with world.tenure(1) as again:
            sealed = asyncio.Event()
            follower_of(again).on_sealed(sealed.set, compactor.tenure)
            if not follower_of(again).has_sealed(compactor.tenure):
                await sealed.wait()
            candidates = {one.tenure: one.object_ids for one in await again.orphan_candidates()}
            assert object_id in candidates[compactor.tenure]

    asyncio.run(main())


def test_a_sealed_nodes_compactor_opens_no_more() -> None:
    async def main() -> None:
        world = World()
        first = await world.open(1)
        second = await world.open(1)
        compactor = await second.open_compaction_tenure(ids_max=4)
        with pytest.raises(TenureFenced):
            await first.open_compaction_tenure(ids_max=4)
        assert (await fences(world))[compactor.tenure]
        await take_ids(compactor, 1)
        await first.close(drained=True)
        await second.close(drained=True)

    asyncio.run(main())


def test_closing_the_node_seals_its_compactor() -> None:
    async def main() -> None:
        async with site() as s:
            world, tenure = s.world, s.compactor.tenure
        assert not (await fences(world))[tenure]
        replacement = Replacement(CompactionPoint(0, 0), [1], [made(2, [(3, 0, 1)])])
        with pytest.raises((Closed, TenureFenced)):
            await s.compactor.commit(replacement)

    asyncio.run(main())


def test_a_cancelled_commit_still_runs_to_its_end() -> None:
    async def main() -> None:
        async with site() as s:
            s.kv.plan = ["hold"]
            task = asyncio.create_task(s.commit([0, 1], (s.stream, 0, 10)))
            await s.kv.held.wait()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            s.kv.released.set()
            new = await s.commit([2, 3], (s.stream, 10, 20))
            ranges = await s.ranges()
            assert ranges[0][:2] == (0, 10)
            assert ranges[1] == (10, 20, new)

    asyncio.run(main())


def test_node_ids_of_compactors_are_refused_for_nodes() -> None:
    async def main() -> None:
        for node_id in (1 << 31, -1):
            with pytest.raises(Invalid, match="node id"):
                await World().open(node_id)

    asyncio.run(main())


def test_a_retired_compactor_is_forgotten() -> None:
    async def main() -> None:
        async with site() as s:
            await s.commit([0, 1], (s.stream, 0, 10))
            tenure = s.compactor.tenure
            await s.compactor.close()
            await s.metadata.catch_up()
            await s.metadata.checkpoint()
            garbage_of(s.metadata)._config = s.world.config.__class__(orphan_resweep_ms=0)
            for _ in range(2):
                for orphans in await s.metadata.orphan_candidates():
                    await s.metadata.orphans_deleted(orphans)
            assert tenure not in await fences(s.world)
            assert (await s.metadata.compaction_point()).counter == 1

    asyncio.run(main())


def test_metrics_show_compactions_and_patches() -> None:
    async def main() -> None:
        async with site() as s:

            def sample(name: str) -> float | None:
                return s.world.registry.get_sample_value(f"streamlog_metadata_{name}")

            await s.commit([0, 1], (s.stream, 0, 10))
            await s.commit([4, 5], (s.stream, 20, 30))
            assert sample("compactions_folded_total") == 2
            assert sample("compactions") == 2
            assert sample("patches") == 2
            await s.metadata.checkpoint()
            assert sample("patches") == 0
            assert sample("compactions") == 2

    asyncio.run(main())
