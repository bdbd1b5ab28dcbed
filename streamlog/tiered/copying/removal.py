"""Deletes remote segments: announced, removed, announced as done. Whoever finds one half-way goes
on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass

from streamlog.errors import NotFound, StreamlogError
from streamlog.runtime.clock import Clock
from streamlog.tiered.api.metadata_manager import RemoteLogMetadataManager
from streamlog.tiered.api.segments import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
    RemotePartitionDeleteMetadata,
    RemotePartitionDeleteState,
    TopicIdPartition,
)
from streamlog.tiered.api.storage_manager import RemoteStorageManager
from streamlog.tiered.reading.failures import RemoteFailures


@dataclass(frozen=True, slots=True)
class SegmentRemoval:
    """`forget` drops what this node keeps of a segment. `timeout_ms`: of one deletion."""

    storage: RemoteStorageManager
    metadata: RemoteLogMetadataManager
    forget: Callable[[RemoteLogSegmentMetadata], Awaitable[None]]
    failures: RemoteFailures
    clock: Clock
    broker_id: int
    timeout_ms: int = 60_000

    async def remove(self, segment: RemoteLogSegmentMetadata) -> None:
        """Gone on return. An error leaves it to a later call. Errors: StoreUnavailable, those of
        the metadata."""
        if segment.state is not RemoteLogSegmentState.DELETE_SEGMENT_STARTED:
            await self._announce(segment, RemoteLogSegmentState.DELETE_SEGMENT_STARTED)
        await self.forget(segment)
        await self._tried(
            f"deleting {segment.remote_log_segment_id}",
            lambda: self.storage.delete_log_segment_data(segment),
        )
        # The other task of the partition may have deleted it at the same time.
        with suppress(NotFound):
            await self._announce(segment, RemoteLogSegmentState.DELETE_SEGMENT_FINISHED)

    async def _tried(self, doing: str, work: Callable[[], Awaitable[None]]) -> None:
        """Errors: StoreUnavailable."""
        try:
            with self.failures.watched(doing, self.timeout_ms):
                async with asyncio.timeout(self.timeout_ms / 1000):
                    await work()
        except Exception as error:
            # A plug-in may raise anything.
            self.failures.failed(error)
            raise self.failures.error(doing) from error
        self.failures.succeeded()

    async def remove_all(self, segments: Iterable[RemoteLogSegmentMetadata]) -> int:
        """Tries each; returns how many are gone. Errors: the first, when all were tried."""
        first: StreamlogError | None = None
        removed = 0
        for segment in segments:
            try:
                await self.remove(segment)
                removed += 1
            except StreamlogError as error:
                first = first or error
        if first is not None:
            raise first
        return removed

    async def remove_partition(
        self, partition: TopicIdPartition, state: RemotePartitionDeleteState
    ) -> None:
        """All of a partition whose deletion was announced before. Errors: as of `remove_all`."""
        if state is RemotePartitionDeleteState.DELETE_PARTITION_MARKED:
            await self.announce(partition, RemotePartitionDeleteState.DELETE_PARTITION_STARTED)
        await self.remove_all(await self.metadata.list_remote_log_segments(partition))
        await self._tried(
            f"deleting what is left of {partition}",
            lambda: self.storage.delete_partition_data(partition),
        )
        await self.announce(partition, RemotePartitionDeleteState.DELETE_PARTITION_FINISHED)
        await self.metadata.on_stop_partitions([partition])

    async def announce(
        self, partition: TopicIdPartition, state: RemotePartitionDeleteState
    ) -> None:
        """Durable on return. Errors: those of the metadata."""
        await self.metadata.put_remote_partition_delete_metadata(
            RemotePartitionDeleteMetadata(partition, state, self.clock.now_ms(), self.broker_id)
        )

    async def _announce(
        self, segment: RemoteLogSegmentMetadata, state: RemoteLogSegmentState
    ) -> None:
        await self.metadata.update_remote_log_segment_metadata(
            RemoteLogSegmentMetadataUpdate(
                segment.remote_log_segment_id, self.clock.now_ms(), state, self.broker_id
            )
        )
