"""Look-ups and checkpoints while a record is folded, which takes several steps."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from streamlog.errors import StoreUnavailable
from streamlog.metadata.interface import CommitEntry
from streamlog.objectstore.interface import ObjectInfo
from streamlog.objectstore.memory import MemoryObjectStore
from streamlog.runtime.buffers import Buffer
from tests.metadata.world import World, append, create, new_object, ranges_of


def test_a_look_up_sees_all_of_a_record_or_none() -> None:
    async def main() -> None:
        world = World()
        async with world.tenure() as metadata:
            ids = await create(metadata, 1200)
            watched = (ids[0], ids[600], ids[-1])
            looks = 0

            async def commits() -> None:
                for number in range(5):
                    rows = [(s, 1, 3 * number, 3 * number + 3) for s in ids]
                    new = await new_object(metadata, rows)
                    await metadata.commit(CommitEntry(objects=[new]))

            committing = asyncio.create_task(commits())
            while not committing.done():
                for stream_id in watched:
                    located = await metadata.locate(stream_id, 0, 1 << 40)
                    assert [(one.start, one.end) for one in located] == [
                        (3 * n, 3 * n + 3) for n in range(len(located))
                    ]
                    looks += 1
                await asyncio.sleep(0)
            await committing
            assert looks > 30
            assert len(await metadata.locate(ids[0], 0, 1 << 40)) == 5

    asyncio.run(main())


class _FailingStore(MemoryObjectStore):
    """A PUT waits until `fail` is set, and fails."""

    fail: asyncio.Event | None = None

    async def put(
        self, key: str, parts: Sequence[Buffer], *, if_absent: bool = False
    ) -> ObjectInfo:
        if self.fail is not None:
            await self.fail.wait()
            raise StoreUnavailable("away", operation="put")
        return await super().put(key, parts, if_absent=if_absent)


@pytest.mark.parametrize("turns", range(1, 60, 3))
def test_a_checkpoint_that_fails_while_a_record_is_folded_loses_none_of_it(turns: int) -> None:
    async def main() -> None:
        world = World()
        world.store = store = _FailingStore(world.clock)
        async with world.tenure(checkpoint_interval_ms=1 << 30) as metadata:
            ids = await create(metadata, 4000)
            store.fail = asyncio.Event()
            checkpoint = asyncio.create_task(metadata.checkpoint())
            new = await new_object(metadata, [(s, 1, 0, 3) for s in ids])
            commit = asyncio.create_task(metadata.commit(CommitEntry(objects=[new])))
            for _ in range(turns):
                await asyncio.sleep(0)
            store.fail.set()
            with pytest.raises(StoreUnavailable):
                await checkpoint
            await commit
            store.fail = None
            for _ in range(2):
                for stream_id in (ids[0], ids[2000], ids[-1]):
                    assert await ranges_of(metadata, stream_id) == [(0, 3, new.row.object_id)]
                await metadata.checkpoint()

    asyncio.run(main())


def test_catching_up_folds_earlier_commits_of_other_nodes() -> None:
    async def main() -> None:
        world = World()
        async with world.tenure(1) as writer, world.tenure(2) as reader:
            (stream,) = await create(writer)
            for turn in range(20):
                await append(writer, stream, 1)
                assert await reader.catch_up() >= writer.revision
                assert len(await ranges_of(reader, stream)) == turn + 1

    asyncio.run(main())
