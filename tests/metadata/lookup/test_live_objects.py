"""Live objects page by page, and the live parts of an object's rows."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from streamlog.format.rows import Rows
from streamlog.metadata.compaction_interface import Replacement
from streamlog.metadata.interface import CommitEntry, NewObject, ObjectRow, RangeRow, TrimEntry
from streamlog.metadata.session import MetadataSession
from tests.metadata.counting_store import CountingStore
from tests.metadata.world import World, append, create, new_object
from tests.support.metadata_filler import fill_metadata
from tests.support.object_ids import take_ids

OBJECTS = 20_000
BLOCK = 16 << 10


async def parts(
    metadata: MetadataSession, object_id: int, own: Sequence[RangeRow]
) -> list[RangeRow]:
    """The live parts, asked for alone or together with another object's."""
    both = await metadata.live_parts({object_id: Rows(own), 1 << 60: Rows(own)})
    assert both.keys() == {object_id, 1 << 60}
    assert not len(both[1 << 60])
    return list(both[object_id])


def test_a_page_reads_a_few_blocks_whatever_the_number_of_objects() -> None:
    async def main() -> None:
        world = World()
        store = CountingStore(world.store)
        filled = await fill_metadata(
            world.kv, world.store, cluster_id="test", node_id=1, objects=OBJECTS
        )
        async with world.tenure(store=store) as metadata:
            (stream,) = await create(metadata)
            newest = [await append(metadata, stream, 1) for _ in range(3)]
            listed: list[int] = []
            while True:
                store.gets.clear()
                page = await metadata.live_objects(after=listed[-1] if listed else 0, limit=1000)
                assert sum(size for _, size in store.gets) <= 5 * BLOCK
                if not page:
                    break
                assert len(page) <= 1000
                listed += [one.row.object_id for one in page]
                assert {one.live_ranges for one in page} <= {1, 4}
            assert listed == [*filled.objects, *newest]

    asyncio.run(main())


def test_parts_of_neighbouring_streams_share_their_blocks() -> None:
    async def main() -> None:
        world = World()
        store = CountingStore(world.store)
        async with world.tenure(store=store) as metadata:
            streams = await create(metadata, 2000)
            rows = [(s, 1, 0, 5) for s in streams]
            new = await new_object(metadata, rows)
            await metadata.commit(CommitEntry(objects=[new]))
            await metadata.checkpoint()
            store.gets.clear()
            assert await parts(metadata, new.row.object_id, new.ranges) == new.ranges
            assert len(store.gets) <= 2000 * 40 // BLOCK + 2

    asyncio.run(main())


def test_live_parts_are_rows_without_trimmed_and_compacted_offsets() -> None:
    async def main() -> None:
        async with World().tenure() as metadata:
            (a, b) = await create(metadata, 2)
            wide = await new_object(metadata, [(a, 1, 0, 10), (b, 1, 0, 10)])
            await metadata.commit(CommitEntry(objects=[wide]))
            later = await append(metadata, a, 10)
            own = [RangeRow(a, 1, 0, 4), RangeRow(a, 3, 4, 10), RangeRow(b, 1, 0, 10)]
            compactor = await metadata.open_compaction_tenure(ids_max=2)
            point = await metadata.compaction_point()
            (object_id,) = await take_ids(compactor, 1)
            output = NewObject(ObjectRow(object_id, 1, 1, 1, 1), [RangeRow(a, 1, 0, 20)])
            await metadata.commit(CommitEntry(trims=[TrimEntry(a, 1, 2), TrimEntry(b, 1, 7)]))
            expected = [RangeRow(a, 1, 2, 4), RangeRow(a, 3, 4, 10), RangeRow(b, 1, 7, 10)]
            assert await parts(metadata, wide.row.object_id, own) == expected
            await compactor.commit(Replacement(point, [wide.row.object_id, later], [output]))
            for _ in range(2):
                assert await parts(metadata, wide.row.object_id, own) == expected[2:]
                assert await parts(metadata, later, [RangeRow(a, 1, 10, 20)]) == []
                live = await parts(metadata, object_id, [RangeRow(a, 1, 0, 20)])
                assert live == [RangeRow(a, 1, 2, 20)]
                assert await parts(metadata, later, [RangeRow(999, 1, 0, 20)]) == []
                await metadata.checkpoint()

    asyncio.run(main())
