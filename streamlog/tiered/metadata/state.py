"""What the records of one metadata partition say, from its first record to one of them. Pure.

Live and on load, the state changes by `apply` alone, in the order of offsets: who replays the log
comes to the same state. A record that the state does not allow changes nothing, whoever reads it.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from streamlog.errors import Invalid, NotFound
from streamlog.tiered.api import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
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
        self._caches: dict[TopicIdPartition, RemoteLogMetadataCache] = {}
        self._segments: dict[TopicIdPartition, dict[UUID, RemoteLogSegmentState]] = {}
        """States by segment, as the caches have them: a cache is asked by offsets alone."""
        self._deletions: dict[TopicIdPartition, RemotePartitionDeleteMetadata] = {}
        """Deletions that have begun and not ended."""

    def cache(self, partition: TopicIdPartition) -> RemoteLogMetadataCache:
        """To be read alone; an empty one where nothing is known."""
        known = self._caches.get(partition)
        return RemoteLogMetadataCache() if known is None else known

    @property
    def deletions(self) -> Sequence[RemotePartitionDeleteMetadata]:
        return list(self._deletions.values())

    def check(self, record: RemoteLogRecord) -> None:
        """Whether the record would be taken next. Errors: Invalid, NotFound."""
        if isinstance(record, RemotePartitionDeleteMetadata):
            known = self._deletions.get(record.topic_id_partition)
            before = None if known is None else known.state
            check_partition_transition(record.topic_id_partition, before, record.state)
            return
        partition, segment = record.remote_log_segment_id
        state = self._segments.get(partition, {}).get(segment)
        if isinstance(record, RemoteLogSegmentMetadata):
            if record.state is not RemoteLogSegmentState.COPY_SEGMENT_STARTED:
                raise Invalid(
                    f"the remote segment {record.remote_log_segment_id} is added in state "
                    f"{record.state.name}, but its copy begins with COPY_SEGMENT_STARTED"
                )
        elif state is None:
            raise NotFound(f"the remote segment {record.remote_log_segment_id} is not known")
        check_segment_transition(record.remote_log_segment_id, state, record.state)

    def apply(self, record: RemoteLogRecord) -> None:
        """Errors: Invalid, NotFound; nothing has changed then."""
        self.check(record)
        if isinstance(record, RemotePartitionDeleteMetadata):
            self._apply_deletion(record)
        elif isinstance(record, RemoteLogSegmentMetadata):
            partition, segment = record.remote_log_segment_id
            self._caches.setdefault(partition, RemoteLogMetadataCache()).add(record)
            self._segments.setdefault(partition, {})[segment] = record.state
        else:
            self._apply_update(record)

    def _apply_update(self, update: RemoteLogSegmentMetadataUpdate) -> None:
        partition, segment = update.remote_log_segment_id
        self._caches[partition].update(update)
        if update.state is RemoteLogSegmentState.DELETE_SEGMENT_FINISHED:
            del self._segments[partition][segment]
        else:
            self._segments[partition][segment] = update.state

    def _apply_deletion(self, metadata: RemotePartitionDeleteMetadata) -> None:
        partition = metadata.topic_id_partition
        if metadata.state is RemotePartitionDeleteState.DELETE_PARTITION_FINISHED:
            for known in (self._caches, self._segments, self._deletions):
                known.pop(partition, None)
        else:
            self._deletions[partition] = metadata
