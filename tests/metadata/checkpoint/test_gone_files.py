"""Files of the checkpoint in use are gone: a look-up fails, or an alarm says why it waits."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from streamlog.errors import Corrupt, StoreUnavailable
from streamlog.kvstore.interface import Delete
from streamlog.metadata.keys import checkpoint
from streamlog.metadata.keys.space import prefix_of
from streamlog.objectstore.interface import ObjectStore
from streamlog.objectstore.keys import CHECKPOINT_PREFIX
from streamlog.runtime.buffers import Buffer
from streamlog.runtime.progress import ProgressConfig, ProgressWatch
from tests.metadata.world import World, append, create

MOST_S = 60


class PartlyAwayStore:
    """A store that reads the files in `readable` alone; None: all files."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self.readable: set[str] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def get(self, key: str, start: int = 0, length: int | None = None) -> Buffer:
        if self.readable is not None and key not in self.readable:
            raise StoreUnavailable("the store is away", operation="get")
        return await self._store.get(key, start, length)


class TickingClock:
    """A clock that advances by a second at each reading."""

    def __init__(self) -> None:
        self._seconds = 0.0

    def monotonic(self) -> float:
        self._seconds += 1
        return self._seconds

    def now_ms(self) -> int:
        return int(self._seconds * 1000)


async def checkpoint_files(world: World) -> list[str]:
    return [info.key for info in (await world.store.list(CHECKPOINT_PREFIX)).objects]


def test_metadata_that_was_emptied_under_a_node_is_reported() -> None:
    """Once, such a look-up waited without end for a newer checkpoint that no node wrote."""

    async def main() -> None:
        world = World()
        async with world.tenure() as metadata, asyncio.timeout(MOST_S):
            [stream_id] = await create(metadata)
            object_id = await append(metadata, stream_id, 3)
            await metadata.checkpoint()
            await world.store.delete(await checkpoint_files(world))
            await world.kv.txn([], [Delete(checkpoint.key(prefix_of("test")))])
            with pytest.raises(Corrupt, match="names no checkpoint any more"):
                await metadata.object(object_id)

    asyncio.run(main())


def test_a_newer_checkpoint_that_cannot_be_read_is_an_alarm() -> None:
    async def main() -> None:
        world = World()
        store: Any = PartlyAwayStore(world.store)
        watch = ProgressWatch(
            ProgressConfig(stalled_after_ms=5000), TickingClock(), CollectorRegistry()
        )
        async with (
            asyncio.timeout(MOST_S),
            world.tenure(1, store=store) as metadata,
            world.tenure(2) as other,
        ):
            metadata.watch_progress(watch)
            [stream_id] = await create(metadata)
            object_id = await append(metadata, stream_id, 3)
            await metadata.checkpoint()
            before = await checkpoint_files(world)
            store.readable = set(before)
            await create(other)
            while await checkpoint_files(world) == before:
                await other.checkpoint()
            await world.store.delete(before)
            asking = asyncio.ensure_future(metadata.object(object_id))
            while not [one for one in watch.alarms if one.name == "metadata_watch"]:
                await asyncio.sleep(0)
                assert not asking.done()
                watch.tick()
            [alarm] = [one for one in watch.alarms if one.name == "metadata_watch"]
            assert "newer checkpoint" in alarm.waits_for
            store.readable = None
            row = await asking
            assert row is not None
            assert row.object_id == object_id
            watch.tick()
            assert "metadata_watch" not in {one.name for one in watch.alarms}

    asyncio.run(main())
