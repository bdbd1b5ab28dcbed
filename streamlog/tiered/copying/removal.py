"""Deletes remote segments: announced, removed, announced as done. Whoever finds one half-way goes
on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace

from streamlog.errors import NotFound, StoreUnavailable, StreamlogError
from streamlog.runtime.clock import Clock
from streamlog.runtime.concurrency.cancellation import to_its_end
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
from streamlog.tiered.reading.plugin_calls import CallKey, PluginCalls


@dataclass(frozen=True, slots=True)
class SegmentRemoval:
    """`forget` drops what this node keeps of a segment. `timeout_ms`: of one deletion."""

    storage: RemoteStorageManager
    metadata: RemoteLogMetadataManager
    forget: Callable[[RemoteLogSegmentMetadata], Awaitable[None]]
    calls: PluginCalls
    failures: RemoteFailures
    clock: Clock
    broker_id: int
    timeout_ms: int = 60_000

    async def remove(self, segment: RemoteLogSegmentMetadata) -> bool:
        """True: it is gone. False: a call that does not end may still write it, so its deletion is
        announced alone, and left to a later call, as by an error.

        Errors: StoreUnavailable, those of the metadata.
        """
        segment_id = segment.remote_log_segment_id
        segment = await self._begun(segment)
        await self.forget(segment)
        if self.calls.is_under_way(segment_id):
            return False
        await self._tried(
            f"deleting {segment_id}",
            segment_id,
            lambda: self.storage.delete_log_segment_data(segment),
        )
        # The other task of the partition may have deleted it at the same time.
        with suppress(NotFound):
            await self._announce(segment, RemoteLogSegmentState.DELETE_SEGMENT_FINISHED)
        return True

    async def _tried(self, doing: str, key: CallKey, work: Callable[[], Awaitable[None]]) -> None:
        """Errors: StoreUnavailable."""
        try:
            await self.calls.run(doing, self.timeout_ms, work, key)
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
                removed += await self.remove(segment)
            except StreamlogError as error:
                first = first or error
        if first is not None:
            raise first
        return removed

    async def begin_all(
        self, segments: Iterable[RemoteLogSegmentMetadata]
    ) -> list[RemoteLogSegmentMetadata]:
        """Announces the deletion of one after the other; returns them as they are then. Errors:
        those of the metadata, with the first of which it ends."""
        return [await self._begun(one) for one in segments]

    async def _begun(self, segment: RemoteLogSegmentMetadata) -> RemoteLogSegmentMetadata:
        state = RemoteLogSegmentState.DELETE_SEGMENT_STARTED
        if segment.state is not state:
            await self._announce(segment, state)
        return replace(segment, state=state)

    async def remove_partition(
        self, partition: TopicIdPartition, state: RemotePartitionDeleteState
    ) -> None:
        """All of a partition whose deletion was announced before. Errors: as of `remove_all`;
        StoreUnavailable, also where a call that does not end may still write there."""
        if state is RemotePartitionDeleteState.DELETE_PARTITION_MARKED:
            await self.announce(partition, RemotePartitionDeleteState.DELETE_PARTITION_STARTED)
        await self.remove_all(await self.metadata.list_remote_log_segments(partition))
        if self.calls.has_left(partition):
            raise StoreUnavailable(
                f"a call of the remote storage for {partition} does not end, and may still write"
            )
        await self._tried(
            f"deleting what is left of {partition}",
            partition,
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
        """It runs to its end: as the writes of a copy."""
        update = RemoteLogSegmentMetadataUpdate(
            segment.remote_log_segment_id, self.clock.now_ms(), state, self.broker_id
        )
        await to_its_end(self.metadata.update_remote_log_segment_metadata(update))
