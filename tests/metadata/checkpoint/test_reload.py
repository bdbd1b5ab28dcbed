"""A tenure whose watch fell behind loads the metadata again and reports the streams it lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

from streamlog.errors import MetadataUnavailable
from streamlog.kvstore.interface import KVStore, WatchBatch
from streamlog.metadata.interface import CommitEntry, StreamEpoch
from tests.metadata.world import World, append, create


class GatedWatches:
    """A KV store whose watches bring nothing until `open` is set, and then break."""

    def __init__(self, kv: KVStore) -> None:
        self._kv = kv
        self.open = asyncio.Event()
        self.open.set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kv, name)

    async def watch(
        self, start: bytes, end: bytes, *, from_revision: int
    ) -> AsyncIterator[WatchBatch]:
        async for batch in self._kv.watch(start, end, from_revision=from_revision):
            if not self.open.is_set():
                await self.open.wait()
                raise MetadataUnavailable("the watch broke")
            yield batch


def test_streams_destroyed_elsewhere_before_a_reload_are_reported_lost() -> None:
    async def main() -> None:
        world = World()
        gated = GatedWatches(world.kv)
        a = await world.open(1, kv=cast(KVStore, gated))
        kept, taken, destroyed = await create(a, 3)
        for stream in (kept, taken, destroyed):
            await append(a, stream, 1)
        lost: dict[int, int] = {}
        a.on_stream_lost(lost.__setitem__)
        async with world.tenure(2) as b:
            await asyncio.gather(a.catch_up(), b.catch_up())
            gated.open.clear()
            (row, _) = await b.take_streams([(destroyed, None), (taken, None)])
            await b.commit(CommitEntry(destroys=[StreamEpoch(destroyed, row.epoch)]))
            await b.checkpoint()
            await append(b, taken, 1)
            await b.checkpoint()
            # Compacts all revisions from which the old watch could continue.
            await world.kv.compact(await world.kv.revision())
            gated.open.set()
            await asyncio.wait_for(a.catch_up(), 30)
            assert lost.keys() == {taken, destroyed}
            assert lost[destroyed] > 1
            assert a.stream(destroyed) is None
            assert a.stream(kept) is not None
            await a.close(drained=True)

    asyncio.run(main())
