"""Damaged records of deletions in the remote tier hold up nothing but what they are of."""

from __future__ import annotations

import asyncio
from uuid import UUID

from streamlog.runtime.rand import SeededRandom
from streamlog.testing.torn_folder import TornTree
from streamlog.tiered.api import (
    RemotePartitionDeleteMetadata,
    RemotePartitionDeleteState,
    TopicIdPartition,
)
from streamlog.tiered.metadata.kv_records import deletion_key
from tests.tiered.harness import filled_and_moved, tiered_log, values

GONE, DAMAGED = (TopicIdPartition(UUID(int=number), "gone", 0) for number in (1, 2))


def test_a_node_starts_beside_the_damaged_record_of_a_deletion() -> None:
    async def body() -> None:
        async with tiered_log(TornTree(SeededRandom(3))) as t:
            wanted = await filled_and_moved(t, 60)
            for one in (DAMAGED, GONE):
                marked = RemotePartitionDeleteState.DELETE_PARTITION_MARKED
                await t.metadata.put_remote_partition_delete_metadata(
                    RemotePartitionDeleteMetadata(one, marked, 0, 1)
                )
            stored = await t.kv.get_kv(deletion_key(DAMAGED))
            assert stored is not None
            await t.kv.put_kv(deletion_key(DAMAGED), stored.data[:-1] + b"?")
            await t.reopened()
            (alarm,) = t.manager.alarms()
            assert f"{DAMAGED.topic_id}-0" in alarm
            assert await values(t.log) == wanted
            async with asyncio.timeout(10):
                await t.manager.deletions_done()
            assert await t.kv.get_kv(deletion_key(GONE)) is None
            await t.kv.put_kv(deletion_key(DAMAGED), stored.data)
            await t.reopened()
            async with asyncio.timeout(10):
                await t.manager.deletions_done()
            assert t.manager.alarms() == []
            assert await t.kv.get_kv(deletion_key(DAMAGED)) is None

    asyncio.run(body())
