"""Look-ups while a record is being folded, which takes several turns of the loop."""

from __future__ import annotations

import asyncio

from streamlog.metadata.interface import CommitEntry
from tests.metadata.world import World, create, new_object


def test_a_look_up_meets_a_record_whole_or_not_at_all() -> None:
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
                    found = await metadata.locate(stream_id, 0, 1 << 40)
                    assert [(one.start, one.end) for one in found] == [
                        (3 * n, 3 * n + 3) for n in range(len(found))
                    ]
                    looks += 1
                await asyncio.sleep(0)
            await committing
            assert looks > 30
            assert len(await metadata.locate(ids[0], 0, 1 << 40)) == 5

    asyncio.run(main())
