"""A metadata plug-in whose calls end: a manager of a third party may hang, or raise anything.

What is no StreamlogError becomes MetadataUnavailable, and is tried again by whoever asked. So does
a CancelledError that is the plug-in's own: it would end its caller's task, and nobody would know.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Collection, Sequence
from typing import TypeVar

from streamlog.errors import MetadataUnavailable, StreamlogError
from streamlog.runtime.concurrency.cancellation import is_being_cancelled
from streamlog.tiered.api.metadata_manager import RemoteLogMetadataManager
from streamlog.tiered.api.segments import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemotePartitionDeleteMetadata,
    TopicIdPartition,
)

T = TypeVar("T")


class BoundedMetadataManager(RemoteLogMetadataManager):
    """Each call of the plug-in has `timeout_ms`. A call that was given up may still take effect."""

    def __init__(self, plugin: RemoteLogMetadataManager, timeout_ms: int) -> None:
        self._plugin = plugin
        self._timeout_ms = timeout_ms

    async def _bounded(self, call: Awaitable[T]) -> T:
        name = type(self._plugin).__name__
        try:
            async with asyncio.timeout(self._timeout_ms / 1000):
                return await call
        except StreamlogError:
            raise
        except TimeoutError as error:
            raise MetadataUnavailable(
                f"{name} has not answered for {self._timeout_ms} ms: look at what it stands on"
            ) from error
        except (Exception, asyncio.CancelledError) as error:
            if is_being_cancelled():
                raise
            raise MetadataUnavailable(f"{name} failed by {error!r}; it is asked again") from error

    async def add_remote_log_segment_metadata(self, metadata: RemoteLogSegmentMetadata) -> None:
        await self._bounded(self._plugin.add_remote_log_segment_metadata(metadata))

    async def update_remote_log_segment_metadata(
        self, update: RemoteLogSegmentMetadataUpdate
    ) -> None:
        await self._bounded(self._plugin.update_remote_log_segment_metadata(update))

    async def remote_log_segment_metadata(
        self, partition: TopicIdPartition, epoch: int, offset: int
    ) -> RemoteLogSegmentMetadata | None:
        return await self._bounded(
            self._plugin.remote_log_segment_metadata(partition, epoch, offset)
        )

    async def highest_offset_for_epoch(self, partition: TopicIdPartition, epoch: int) -> int | None:
        return await self._bounded(self._plugin.highest_offset_for_epoch(partition, epoch))

    async def next_segment_with_txn_index(
        self, partition: TopicIdPartition, epoch: int, offset: int
    ) -> RemoteLogSegmentMetadata | None:
        return await self._bounded(
            self._plugin.next_segment_with_txn_index(partition, epoch, offset)
        )

    async def list_remote_log_segments(
        self, partition: TopicIdPartition, epoch: int | None = None
    ) -> Sequence[RemoteLogSegmentMetadata]:
        return await self._bounded(self._plugin.list_remote_log_segments(partition, epoch))

    async def put_remote_partition_delete_metadata(
        self, metadata: RemotePartitionDeleteMetadata
    ) -> None:
        await self._bounded(self._plugin.put_remote_partition_delete_metadata(metadata))

    async def deleted_partitions(self) -> Sequence[RemotePartitionDeleteMetadata]:
        return await self._bounded(self._plugin.deleted_partitions())

    def damage(self) -> str | None:
        return self._plugin.damage()

    async def on_partition_leadership_changes(
        self, leaders: Collection[TopicIdPartition], followers: Collection[TopicIdPartition]
    ) -> None:
        await self._bounded(self._plugin.on_partition_leadership_changes(leaders, followers))

    async def on_stop_partitions(self, partitions: Collection[TopicIdPartition]) -> None:
        await self._bounded(self._plugin.on_stop_partitions(partitions))

    async def close(self) -> None:
        await self._plugin.close()
