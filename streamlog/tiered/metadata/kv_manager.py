"""KVRemoteLogMetadataManager: remote segments as entries of the KV store.

An entry changes by compare-and-set, so that two nodes that both take themselves for the leader
write one history. This node keeps the partitions that it answers for in memory, and takes a change
into account when it is stored: its own calls see their own writes.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence

from streamlog.errors import Conflict, Corrupt, Invalid, NotFound, ValueConflict
from streamlog.model.kv import KeyValue, KVClient
from streamlog.runtime.concurrency.keyed_lock import KeyedLock
from streamlog.tiered.api.metadata_manager import RemoteLogMetadataManager
from streamlog.tiered.api.segments import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
    RemotePartitionDeleteMetadata,
    RemotePartitionDeleteState,
    TopicIdPartition,
    check_partition_transition,
)
from streamlog.tiered.metadata.cache import RemoteLogMetadataCache
from streamlog.tiered.metadata.kv_records import (
    DELETIONS,
    SEGMENTS,
    decode_deletion,
    decode_segment,
    deletion_key,
    encode_deletion,
    encode_segment,
    partition_prefix,
    segment_key,
)

log = logging.getLogger(__name__)

PAGE = 1000


class KVRemoteLogMetadataManager(RemoteLogMetadataManager):
    def __init__(self, kv: KVClient) -> None:
        self._kv = kv
        self._partitions: dict[TopicIdPartition, RemoteLogMetadataCache] = {}
        self._damage: Corrupt | None = None
        self._turns = KeyedLock[TopicIdPartition]()
        """Changes of a partition are written one after another, and none while its cache is
        replaced: the new one would lack it for ever."""

    async def add_remote_log_segment_metadata(self, metadata: RemoteLogSegmentMetadata) -> None:
        """As RemoteLogMetadataManager.add_remote_log_segment_metadata."""
        partition = metadata.topic_id_partition
        async with self._turns.holding(partition):
            cache = await self._loaded(partition)
            if metadata.state is not RemoteLogSegmentState.COPY_SEGMENT_STARTED:
                raise Invalid(
                    f"the remote segment {metadata.remote_log_segment_id} begins as "
                    f"COPY_SEGMENT_STARTED, not as {metadata.state.name}"
                )
            data = encode_segment(metadata)
            key = segment_key(metadata.remote_log_segment_id)
            try:
                stored = await self._kv.put_kv_if_absent(key, data)
            except BaseException:
                # It may be stored: who looks what is left has to see it.
                self._partitions.pop(partition, None)
                raise
            if stored.data != data:
                raise Invalid(f"the remote segment {metadata.remote_log_segment_id} is known")
            cache.put(metadata)

    async def update_remote_log_segment_metadata(
        self, update: RemoteLogSegmentMetadataUpdate
    ) -> None:
        """As RemoteLogMetadataManager.update_remote_log_segment_metadata. Errors: also Conflict (a
        copy that this node takes for unfinished is finished: the next leader may rely on it)."""
        segment_id = update.remote_log_segment_id
        key = segment_key(segment_id)
        partition = segment_id.topic_id_partition
        async with self._turns.holding(partition):
            cache = await self._loaded(partition)
            while True:
                value = await self._kv.get_kv(key)
                if value is None:
                    # It was deleted, by a call whose answer was lost or by another node.
                    cache.forget(segment_id)
                    raise NotFound(f"no remote segment {segment_id} is known")
                stored = decode_segment(key.name, value.data)
                _check_known(cache, stored, update)
                updated = stored.updated(update)
                try:
                    if update.state is RemoteLogSegmentState.DELETE_SEGMENT_FINISHED:
                        await self._kv.del_kv(key, value.revision)
                    else:
                        data = encode_segment(updated)
                        await self._kv.compare_and_set_kv(key, data, value.revision)
                except ValueConflict:
                    continue  # Another node was faster: its change may refuse this one.
                cache.put(updated)
                return

    async def remote_log_segment_metadata(
        self, partition: TopicIdPartition, epoch: int, offset: int
    ) -> RemoteLogSegmentMetadata | None:
        return (await self._cache(partition)).segment(epoch, offset)

    async def highest_offset_for_epoch(self, partition: TopicIdPartition, epoch: int) -> int | None:
        return (await self._cache(partition)).highest_offset(epoch)

    async def next_segment_with_txn_index(
        self, partition: TopicIdPartition, epoch: int, offset: int
    ) -> RemoteLogSegmentMetadata | None:
        return (await self._cache(partition)).next_with_txn_index(epoch, offset)

    async def list_remote_log_segments(
        self, partition: TopicIdPartition, epoch: int | None = None
    ) -> Sequence[RemoteLogSegmentMetadata]:
        return (await self._cache(partition)).list(epoch)

    async def put_remote_partition_delete_metadata(
        self, metadata: RemotePartitionDeleteMetadata
    ) -> None:
        """As RemoteLogMetadataManager.put_remote_partition_delete_metadata."""
        partition, state = metadata.topic_id_partition, metadata.state
        key = deletion_key(partition)
        async with self._turns.holding(partition):
            while True:
                value = await self._kv.get_kv(key)
                known = None if value is None else decode_deletion(key.name, value.data).state
                check_partition_transition(partition, known, state)
                revision = 0 if value is None else value.revision
                try:
                    if state is RemotePartitionDeleteState.DELETE_PARTITION_FINISHED:
                        # First what the deletion is remembered for.
                        await self._forget(partition)
                        await self._kv.del_kv(key, revision)
                    else:
                        data = encode_deletion(metadata)
                        await self._kv.compare_and_set_kv(key, data, revision)
                        # What is damaged by now is passed over when it is read anew.
                        self._partitions.pop(partition, None)
                except ValueConflict:
                    continue
                return

    async def deleted_partitions(self) -> Sequence[RemotePartitionDeleteMetadata]:
        """As RemoteLogMetadataManager.deleted_partitions, less those whose records are damaged."""
        found: list[RemotePartitionDeleteMetadata] = []
        damage: Corrupt | None = None
        for one in await self._all(DELETIONS, b""):
            try:
                found.append(decode_deletion(one.key.name, one.value.data))
            except Corrupt as error:
                # A node has to start, and the others to go on.
                log.error("a deletion in the remote tier waits: %s", error)
                damage = damage or error
        self._damage = damage
        return found

    def damage(self) -> str | None:
        return None if self._damage is None else str(self._damage)

    async def on_partition_leadership_changes(
        self, leaders: Collection[TopicIdPartition], followers: Collection[TopicIdPartition]
    ) -> None:
        """As RemoteLogMetadataManager.on_partition_leadership_changes. What is in memory of these
        partitions is read anew: another node may have changed it."""
        for partition in (*leaders, *followers):
            async with self._turns.holding(partition):
                self._partitions.pop(partition, None)
                await self._loaded(partition)

    async def on_stop_partitions(self, partitions: Collection[TopicIdPartition]) -> None:
        for partition in partitions:
            async with self._turns.holding(partition):
                self._partitions.pop(partition, None)

    async def _forget(self, partition: TopicIdPartition) -> None:
        """Removes all segments of a partition whose deletion has ended."""
        for entry in await self._all(SEGMENTS, partition_prefix(partition)):
            await self._kv.del_kv(entry.key)
        self._partitions.pop(partition, None)

    async def _cache(self, partition: TopicIdPartition) -> RemoteLogMetadataCache:
        """For a reader. What is in memory needs no turn; a load beside a change or another load
        could put back what it had read before them."""
        loaded = self._partitions.get(partition)
        if loaded is None:
            async with self._turns.holding(partition):
                loaded = await self._loaded(partition)
        return loaded

    async def _loaded(self, partition: TopicIdPartition) -> RemoteLogMetadataCache:
        """The caller has the partition's turn."""
        loaded = self._partitions.get(partition)
        if loaded is None:
            cache = RemoteLogMetadataCache()
            entries = await self._all(SEGMENTS, partition_prefix(partition))
            # In the order in which they were written: one that was finished later comes first.
            for entry in sorted(entries, key=lambda one: one.value.revision):
                try:
                    cache.put(decode_segment(entry.key.name, entry.value.data))
                except Corrupt as error:
                    # The record of a partition that is deleted goes with it, and keeps none of the
                    # others. Its files are of no segment then: the purge has them.
                    if await self._kv.get_kv(deletion_key(partition)) is None:
                        raise
                    log.warning("a record is passed over in a deletion: %s", error)
            loaded = self._partitions[partition] = cache
        return loaded

    async def _all(self, namespace: str, prefix: bytes) -> list[KeyValue]:
        found: list[KeyValue] = []
        after: bytes | None = None
        while page := await self._kv.list_kv(namespace, prefix, after=after, limit=PAGE):
            found += page
            after = page[-1].key.name
        return found


def _check_known(
    cache: RemoteLogMetadataCache,
    stored: RemoteLogSegmentMetadata,
    update: RemoteLogSegmentMetadataUpdate,
) -> None:
    """Errors: Conflict, after which the cache knows what is stored."""
    known = cache.state(stored.remote_log_segment_id)
    is_unfinished = known is RemoteLogSegmentState.COPY_SEGMENT_STARTED
    is_finished = stored.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED
    is_deleted = update.state is RemoteLogSegmentState.DELETE_SEGMENT_STARTED
    if is_unfinished and is_finished and is_deleted:
        cache.put(stored)
        raise Conflict(
            f"the remote segment {stored.remote_log_segment_id} was to be deleted as a copy that "
            "failed, and is finished: the answer to that was lost"
        )
