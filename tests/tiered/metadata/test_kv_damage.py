"""Records of remote segments in the KV store that were damaged: found, named, never served."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator

import pytest

from streamlog.errors import Corrupt
from streamlog.testing.basic_kv import BasicKV
from streamlog.testing.tiers.metadata_conformance import FIRST, SECOND, change, segment
from streamlog.tiered.api import (
    RemoteLogMetadataManager,
    RemoteLogSegmentState,
    RemotePartitionDeleteMetadata,
    RemotePartitionDeleteState,
)
from streamlog.tiered.metadata.kv_manager import KVRemoteLogMetadataManager
from streamlog.tiered.metadata.kv_records import deletion_key, segment_key
from tests.support.damage import cut, one_bit_changed


@pytest.mark.parametrize("damage", [one_bit_changed, cut])
def test_a_segments_record_that_was_damaged_is_named_and_nothing_of_its_partition_served(
    damage: Callable[[bytes], Iterator[bytes]],
) -> None:
    async def body() -> None:
        kv = BasicKV()
        writer = KVRemoteLogMetadataManager(kv)
        one, neighbour = segment(1, (0, 9)), segment(2, (0, 9), partition=SECOND)
        for added in (one, neighbour):
            await writer.add_remote_log_segment_metadata(added)
            await writer.update_remote_log_segment_metadata(
                change(added, RemoteLogSegmentState.COPY_SEGMENT_FINISHED)
            )
        key = segment_key(one.remote_log_segment_id)
        stored = await kv.get_kv(key)
        assert stored is not None
        calls: list[Callable[[RemoteLogMetadataManager], Awaitable[object]]] = [
            lambda manager: manager.list_remote_log_segments(FIRST),
            lambda manager: manager.remote_log_segment_metadata(FIRST, 0, 5),
            lambda manager: manager.highest_offset_for_epoch(FIRST, 0),
            lambda manager: manager.on_partition_leadership_changes([FIRST], []),
            lambda manager: manager.update_remote_log_segment_metadata(
                change(one, RemoteLogSegmentState.DELETE_SEGMENT_STARTED)
            ),
        ]
        for data in damage(stored.data):
            await kv.put_kv(key, data)
            reader = KVRemoteLogMetadataManager(kv)
            for call in calls:
                with pytest.raises(Corrupt, match=str(one.remote_log_segment_id.id)) as raised:
                    await call(reader)
                assert f"{FIRST.topic_id}-{FIRST.partition}" in str(raised.value)
            assert len(await reader.list_remote_log_segments(SECOND)) == 1
        # A node that has the partition in memory does not write on what it cannot read.
        with pytest.raises(Corrupt):
            await calls[-1](writer)
        await kv.put_kv(key, stored.data)
        assert len(await KVRemoteLogMetadataManager(kv).list_remote_log_segments(FIRST)) == 1

    asyncio.run(body())


@pytest.mark.parametrize("damage", [one_bit_changed, cut])
def test_a_record_of_a_deletion_that_was_damaged_is_named_and_the_others_are_found(
    damage: Callable[[bytes], Iterator[bytes]],
) -> None:
    async def body() -> None:
        kv = BasicKV()
        manager = KVRemoteLogMetadataManager(kv)
        marked = RemotePartitionDeleteMetadata(
            FIRST, RemotePartitionDeleteState.DELETE_PARTITION_MARKED, 7, 1
        )
        await manager.put_remote_partition_delete_metadata(marked)
        stored = await kv.get_kv(deletion_key(FIRST))
        assert stored is not None
        other = marked._replace(topic_id_partition=SECOND)
        await manager.put_remote_partition_delete_metadata(other)
        started = marked._replace(state=RemotePartitionDeleteState.DELETE_PARTITION_STARTED)
        for data in damage(stored.data):
            await kv.put_kv(deletion_key(FIRST), data)
            assert await manager.deleted_partitions() == [other]
            assert f"{FIRST.topic_id}-{FIRST.partition}" in (manager.damage() or "")
            with pytest.raises(Corrupt, match=f"{FIRST.topic_id}-{FIRST.partition}"):
                await manager.put_remote_partition_delete_metadata(started)
        await kv.put_kv(deletion_key(FIRST), stored.data)
        assert set(await manager.deleted_partitions()) == {marked, other}
        assert manager.damage() is None

    asyncio.run(body())


def test_a_record_of_version_1_is_read_and_its_next_change_has_a_checksum() -> None:
    async def body() -> None:
        kv = BasicKV()
        one = segment(1, (0, 9))
        await KVRemoteLogMetadataManager(kv).add_remote_log_segment_metadata(one)
        key = segment_key(one.remote_log_segment_id)
        stored = await kv.get_kv(key)
        assert stored is not None
        await kv.put_kv(key, b"\x01" + stored.data[1:-4])
        manager = KVRemoteLogMetadataManager(kv)
        assert await manager.list_remote_log_segments(FIRST) == [one]
        await manager.update_remote_log_segment_metadata(
            change(one, RemoteLogSegmentState.COPY_SEGMENT_FINISHED)
        )
        written = await kv.get_kv(key)
        assert written is not None
        assert (written.data[0], len(written.data)) == (2, len(stored.data))

    asyncio.run(body())
