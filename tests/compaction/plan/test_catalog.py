"""A look returns all objects that are not fully compacted, without reading the others again."""

from __future__ import annotations

import asyncio

import pytest

from streamlog.compaction.plan.catalog import TOLD_MAX, Catalog
from streamlog.compaction.plan.config import MIB, CompactionConfig
from streamlog.compaction.plan.planner import DEAD, tier_of
from streamlog.metadata.compaction_interface import Replacement
from streamlog.metadata.interface import CommitEntry, NewObject, ObjectRow, RangeRow, StreamEpoch
from streamlog.metadata.session import MetadataSession
from tests.metadata.compacting import History
from tests.metadata.counting_store import CountingStore
from tests.metadata.world import InlineOffload, World, append, create
from tests.support.metadata_filler import RECORDS_PER_RANGE, fill_metadata
from tests.support.object_ids import take_id, take_ids

CONFIG = CompactionConfig()
OBJECTS = 20_000


def catalog_of(metadata: MetadataSession, world: World) -> Catalog:
    return Catalog(metadata, world.store, InlineOffload(), CONFIG)


async def told(catalog: Catalog, without: frozenset[int] = frozenset()) -> list[int]:
    return [one.row.object_id for one in await catalog.look(without)]


def test_fully_compacted_objects_are_looked_at_once() -> None:
    async def main() -> None:
        world = World()
        store = CountingStore(world.store)
        await fill_metadata(
            world.kv,
            world.store,
            cluster_id="test",
            node_id=1,
            objects=OBJECTS,
            object_bytes=64 * MIB,
        )
        async with world.tenure(store=store) as metadata:
            catalog = catalog_of(metadata, world)
            assert await told(catalog) == []
            read = sum(size for _, size in store.gets)
            assert read > 37 * OBJECTS
            (stream,) = await create(metadata)
            fresh = [await append(metadata, stream, 1)]
            store.gets.clear()
            assert await told(catalog) == fresh
            assert store.gets == []
            await metadata.checkpoint()
            fresh.append(await append(metadata, stream, 1))
            store.gets.clear()
            assert await told(catalog) == fresh
            assert await told(catalog) == fresh
            assert len(store.gets) == 1
            assert sum(size for _, size in store.gets) < 200

    asyncio.run(main())


def test_a_look_returns_the_oldest_objects_of_a_large_backlog_first() -> None:
    async def main() -> None:
        world = World()
        store = CountingStore(world.store)
        filled = await fill_metadata(
            world.kv, world.store, cluster_id="test", node_id=1, objects=OBJECTS
        )
        async with world.tenure(store=store) as metadata:
            catalog = catalog_of(metadata, world)
            first = await told(catalog)
            assert first == [*filled.objects[:TOLD_MAX]]
            (tier,) = catalog.backlog
            assert catalog.backlog[tier] == OBJECTS
            second = await told(catalog, frozenset(first))
            assert second == [*filled.objects[TOLD_MAX : 2 * TOLD_MAX]]
            assert catalog.backlog[tier] == OBJECTS - TOLD_MAX
            assert await told(catalog) == first
            await _replace_oldest(metadata, filled.streams, filled.objects)
            await metadata.checkpoint()
            # All streams lost their oldest ranges, with them a quarter of the streams' objects.
            gone = len(filled.streams) // 4
            store.gets.clear()
            assert (await told(catalog))[:TOLD_MAX] == [*filled.objects[gone : gone + TOLD_MAX]]
            assert sum(size for _, size in store.gets) < 10 * OBJECTS
            assert catalog.backlog[tier] == OBJECTS - gone

    async def _replace_oldest(metadata: MetadataSession, streams: range, objects: range) -> None:
        """The objects of each stream's first range become one large object."""
        compactor = await metadata.open_compaction_tenure(ids_max=1)
        point = await metadata.compaction_point()
        (object_id,) = await take_ids(compactor, 1)
        rows = [RangeRow(stream, 1, 0, RECORDS_PER_RANGE) for stream in streams]
        output = NewObject(ObjectRow(object_id, 1 << 40, 1, 1, 1), rows)
        await compactor.commit(Replacement(point, objects[: len(streams) // 4], [output]))

    asyncio.run(main())


def test_deaths_in_a_fully_compacted_object_count_also_over_a_new_base() -> None:
    async def main() -> None:
        world = World()
        async with world.tenure(delta_bytes_min=0) as metadata:
            streams = await create(metadata, 10)
            object_id = await take_id(metadata)
            new = NewObject(
                ObjectRow(object_id, 64 * MIB, 1, 1, 1), [RangeRow(s, 1, 0, 5) for s in streams]
            )
            await metadata.commit(CommitEntry(objects=[new]))
            catalog = catalog_of(metadata, world)
            assert await told(catalog) == []
            for stream in streams[:6]:
                await metadata.commit(CommitEntry(destroys=[StreamEpoch(stream, 1)]))
                await metadata.checkpoint()
                candidates = await catalog.look()
                is_dead = stream >= streams[4]
                assert [tier_of(one, CONFIG) for one in candidates] == [DEAD] * is_dead
                assert metadata.object_files().base

    asyncio.run(main())


class Listed(History):
    """Each node has a catalog; all its objects are small."""

    catalogs: dict[int, tuple[MetadataSession, Catalog]]
    looks = 0

    async def check_one(self) -> None:
        await super().check_one()
        number = self.rng.randrange(2)
        node = self.nodes[number]
        cached = self.__dict__.setdefault("catalogs", {}).get(number)
        if cached is None or cached[0] is not node:
            self.catalogs[number] = node, catalog_of(node, self.world)
        _, catalog = self.catalogs[number]
        files = None
        while files != node.object_files():  # else the other node's checkpoint came in between
            candidates = await catalog.look()
            files = node.object_files()
            live = {one.row.object_id: one for one in await node.live_objects(limit=1 << 20)}
        assert sorted(one.row.object_id for one in candidates) == sorted(live)
        for one in candidates:
            assert one.row == live[one.row.object_id].row
            assert one.parts * (1 - one.dead_share) == pytest.approx(
                live[one.row.object_id].live_ranges
            )
        assert sum(catalog.backlog.values()) == len(candidates)
        self.looks += 1


@pytest.mark.parametrize("first", range(0, 60, 20))
def test_looks_over_random_histories_return_the_live_objects(first: int) -> None:
    looks = 0

    async def main(seed: int) -> None:
        nonlocal looks
        history = Listed(seed)
        await history.run(120)
        looks += history.looks
        await history.stop()

    for seed in range(first, first + 20):
        try:
            asyncio.run(main(seed))
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error!r}") from error
    assert looks > 500
