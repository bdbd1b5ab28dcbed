"""RemoteLogMetadataManager: the plug-in that knows which remote segments there are."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence

from streamlog.tiered.api.segments import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemotePartitionDeleteMetadata,
    TopicIdPartition,
)


class RemoteLogMetadataManager(ABC):
    """Strongly consistent: what a call wrote is seen by every later call, of this node at least.

    Calls come from one event loop, several at a time, and must not block it. Source: KIP-405.
    """

    def configure(self, configs: Mapping[str, str]) -> None:
        """Called once, before all else, with the settings of `rlmm.config.` less this prefix, and
        `broker.id`, `cluster.id`. Errors: InvalidConfig. The default takes none."""
        return

    @abstractmethod
    async def add_remote_log_segment_metadata(self, metadata: RemoteLogSegmentMetadata) -> None:
        """Durable on return. The state is COPY_SEGMENT_STARTED. Errors: Invalid, Unavailable."""

    @abstractmethod
    async def update_remote_log_segment_metadata(
        self, update: RemoteLogSegmentMetadataUpdate
    ) -> None:
        """Durable on return. Errors: Invalid (the table of states), NotFound (no such segment),
        Unavailable."""

    @abstractmethod
    async def remote_log_segment_metadata(
        self, partition: TopicIdPartition, epoch: int, offset: int
    ) -> RemoteLogSegmentMetadata | None:
        """The finished segment that has the offset under this leader epoch."""

    @abstractmethod
    async def highest_offset_for_epoch(self, partition: TopicIdPartition, epoch: int) -> int | None:
        """The last offset (inclusive) that was copied under this leader epoch."""

    @abstractmethod
    async def next_segment_with_txn_index(
        self, partition: TopicIdPartition, epoch: int, offset: int
    ) -> RemoteLogSegmentMetadata | None:
        """The first finished segment of the epoch at or behind the offset in which a transaction
        was aborted."""

    @abstractmethod
    async def list_remote_log_segments(
        self, partition: TopicIdPartition, epoch: int | None = None
    ) -> Sequence[RemoteLogSegmentMetadata]:
        """All segments of the partition, or those of one leader epoch, in every state but
        DELETE_SEGMENT_FINISHED, by start offset. The name of the topic may be empty: the id alone
        says which it is."""

    @abstractmethod
    async def put_remote_partition_delete_metadata(
        self, metadata: RemotePartitionDeleteMetadata
    ) -> None:
        """Durable on return. Errors: Invalid (the table of states), Unavailable."""

    @abstractmethod
    async def deleted_partitions(self) -> Sequence[RemotePartitionDeleteMetadata]:
        """Partitions whose deletion has begun and not ended, so that it goes on after a crash. One
        whose record is damaged may be left out, and told by `damage`."""

    def damage(self) -> str | None:
        """What the last call of `deleted_partitions` could not read, for the node's status. None:
        nothing; the default knows of none."""
        return None

    async def remote_log_size(self, partition: TopicIdPartition, epoch: int) -> int:
        """Bytes of the finished segments of an epoch."""
        found = await self.list_remote_log_segments(partition, epoch)
        return sum(one.segment_size_bytes for one in found if one.state == 1)

    @abstractmethod
    async def on_partition_leadership_changes(
        self, leaders: Collection[TopicIdPartition], followers: Collection[TopicIdPartition]
    ) -> None:
        """The node answers for these partitions from now on; their metadata is loaded on return.

        Errors: Unavailable.
        """

    @abstractmethod
    async def on_stop_partitions(self, partitions: Collection[TopicIdPartition]) -> None:
        """The node does not answer for these partitions any more."""

    async def close(self) -> None:
        """Frees what the plug-in holds. The default holds nothing."""
        return
