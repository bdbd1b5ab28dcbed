"""Looking for orphans while other nodes retire tenures and commit."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from streamlog.kvstore.interface import KVStore, RangeResult
from streamlog.metadata.interface import CommitEntry, StreamEpoch
from streamlog.metadata.keys import id_block
from streamlog.metadata.keys.space import prefix_of
from tests.metadata.world import CONFIG, World, append, create, new_object
from tests.support.metadata_insides import garbage_of
from tests.support.replacing import replace_method

BLOCKS = id_block.block_prefix(prefix_of("test"), id_block.OBJECTS)


class HeldBlocks:
    """A KV store whose reads of the id blocks wait until the test releases them."""

    def __init__(self, kv: KVStore) -> None:
        self._kv = kv
        self.is_holding = False
        self.reached, self.go = asyncio.Event(), asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kv, name)

    async def range(self, start: bytes, end: bytes, **options: Any) -> RangeResult:
        if self.is_holding and start == BLOCKS:
            self.reached.set()
            await self.go.wait()
        return await self._kv.range(start, end, **options)


def test_the_sweep_skips_a_tenure_that_another_node_retires_meanwhile() -> None:
    async def main() -> None:
        world = World()
        async with world.tenure(1) as first:
            (stream,) = await create(first)
            await append(first, stream, 1)
        held = HeldBlocks(world.kv)
        async with (
            world.tenure(2, orphan_resweep_ms=0) as other,
            world.tenure(3, kv=held, orphan_resweep_ms=0) as slow,
        ):
            await other.open_streams([(stream, None)])
            await other.checkpoint()
            await slow.catch_up()
            held.is_holding = True
            looking = asyncio.create_task(slow.orphan_candidates())
            await held.reached.wait()
            for orphans in await other.orphan_candidates():
                assert orphans.tenure == first.tenure
                assert orphans.is_final
                await other.orphans_deleted(orphans)
            await create(other)
            await slow.catch_up()
            held.go.set()
            assert await looking == []

    asyncio.run(main())


def test_an_object_found_dead_during_the_sweep_is_no_orphan() -> None:
    async def main() -> None:
        world = World(config=replace(CONFIG, put_window=4))
        first = await world.open()
        (stream,) = await create(first)
        await new_object(first, [])  # it holds the floor: what follows lies in the window
        late = await append(first, stream, 1)
        await first.kill()
        async with world.tenure(1) as metadata:
            lookup = garbage_of(metadata)._lookup
            look_up = lookup.object

            async def dies_first(object_id: int) -> object:
                if object_id == late:
                    await metadata.commit(CommitEntry(destroys=[StreamEpoch(stream, 2)]))
                    await metadata.checkpoint()
                return await look_up(object_id)

            replace_method(lookup, "object", dies_first)
            (orphans,) = await metadata.orphan_candidates()
            assert late not in orphans.object_ids
            assert late in {dead.object_id for dead in metadata.dead_objects()}

    asyncio.run(main())
