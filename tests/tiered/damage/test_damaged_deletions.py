"""Damaged records in the metadata store and deletions: each holds up nothing but what it is of."""

from __future__ import annotations

import asyncio
from uuid import UUID

import pytest

from streamlog.errors import Corrupt
from streamlog.objectstore.memory import MemoryObjectStore
from streamlog.runtime.rand import SeededRandom
from streamlog.testing.clocks import ManualClock
from streamlog.testing.torn_folder import TornTree
from streamlog.tiered.api import (
    RemotePartitionDeleteMetadata,
    RemotePartitionDeleteState,
    TopicIdPartition,
)
from streamlog.tiered.metadata.kv_records import SEGMENTS, deletion_key, segment_key
from streamlog.tiered.storage.object_storage_manager import ObjectRemoteStorageManager
from tests.tiered.harness import filled_and_moved, tiered_log, values

DAY_MS = 86_400_000
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


@pytest.mark.parametrize("is_open", [True, False], ids=["open", "that cannot be opened"])
def test_a_topic_with_the_damaged_record_of_a_segment_can_be_deleted(is_open: bool) -> None:
    async def body() -> None:
        clock = ManualClock()
        store = MemoryObjectStore(clock)
        storage = ObjectRemoteStorageManager(store, "remote")
        async with tiered_log(TornTree(SeededRandom(3)), plugin=storage, clock=clock) as t:
            await filled_and_moved(t, 60)
            damaged = (await t.metadata.list_remote_log_segments(t.partition))[1]
            key = segment_key(damaged.remote_log_segment_id)
            stored = await t.kv.get_kv(key)
            assert stored is not None
            await t.kv.put_kv(key, stored.data[:-1] + b"?")
            await t.log.close()
            if not is_open:
                await t.folder.close()
                await t.manager.close()
                await t.open_node()
                with pytest.raises(Corrupt):
                    await t.open()
            await t.factory.remove(t.handle)
            async with asyncio.timeout(10):
                await t.manager.deletions_done()
            assert await t.kv.list_kv(SEGMENTS, b"") == []
            files = (await store.list("remote/")).objects
            name = damaged.remote_log_segment_id.id.hex
            assert files, "of the one that nobody could read"
            assert all(name in one.key for one in files)
            clock.advance(8 * DAY_MS)
            await t.manager.purge(lambda _: None)
            assert not (await store.list("remote/")).objects

    asyncio.run(body())
