"""What the records of one metadata partition say, from its first record to one of them. Pure.

Live and on load, the state changes by `apply` alone, in the order of offsets: who replays the log
comes to the same state. A record that the state does not allow changes nothing, whoever reads it.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from streamlog.tiered.api import (
    RemoteLogSegmentMetadata,
    RemotePartitionDeleteMetadata,
    RemotePartitionDeleteState,
    TopicIdPartition,
)
from streamlog.tiered.api.segments import check_partition_transition, check_segment_transition
from streamlog.tiered.metadata.cache import RemoteLogMetadataCache
from streamlog.tiered.metadata.records import RemoteLogRecord


class RemoteMetadataState:
    """All partitions that have records in the metadata partition, whoever leads them."""

    def __init__(self) -> None:
        self._caches: dict[tuple[UUID, int], RemoteLogMetadataCache] = {}
        """By topic id and number: the purge does not know what a deleted topic was called."""
        self._deletions: dict[TopicIdPartition, RemotePartitionDeleteMetadata] = {}
        """Deletions that have begun and not ended."""

    def cache(self, partition: TopicIdPartition) -> RemoteLogMetadataCache:
        """To be read alone; an empty one where nothing is known."""
        known = self._caches.get(_key(partition))
        return RemoteLogMetadataCache() if known is None else known

    @property
    def deletions(self) -> Sequence[RemotePartitionDeleteMetadata]:
        return list(self._deletions.values())

    def check(self, record: RemoteLogRecord) -> None:
        """Refuses a record that `apply` would refuse now; of segments that are added, only those in
        a wrong state. Errors: Invalid, NotFound."""
        if isinstance(record, RemotePartitionDeleteMetadata):
            known = self._deletions.get(record.topic_id_partition)
            before = None if known is None else known.state
            check_partition_transition(record.topic_id_partition, before, record.state)
        elif isinstance(record, RemoteLogSegmentMetadata):
            check_segment_transition(record.remote_log_segment_id, None, record.state)
        else:
            self.cache(record.remote_log_segment_id.topic_id_partition).updated(record)

    def apply(self, record: RemoteLogRecord) -> None:
        """Errors: Invalid, NotFound; nothing has changed then."""
        if isinstance(record, RemotePartitionDeleteMetadata):
            self.check(record)
            self._apply_deletion(record)
        elif isinstance(record, RemoteLogSegmentMetadata):
            key = _key(record.topic_id_partition)
            self._caches.setdefault(key, RemoteLogMetadataCache()).add(record)
        else:
            self.cache(record.remote_log_segment_id.topic_id_partition).update(record)

    def _apply_deletion(self, metadata: RemotePartitionDeleteMetadata) -> None:
        partition = metadata.topic_id_partition
        if metadata.state is RemotePartitionDeleteState.DELETE_PARTITION_FINISHED:
            self._deletions.pop(partition, None)
            self._caches.pop(_key(partition), None)
        else:
            self._deletions[partition] = metadata


def _key(partition: TopicIdPartition) -> tuple[UUID, int]:
    return partition.topic_id, partition.partition
