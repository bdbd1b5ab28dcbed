"""Copies the closed segments of a log to the remote storage, the oldest first.

1. A segment may go when all its records are below the last stable offset, so that no open
   transaction has a record there. The active one never goes.
   A topic may have a segment wait until it is old enough, or enough lies behind it (KIP-1241).
2. A copy is announced, made, and announced as finished; readers may then find it, and the node's
   own file may go. One that fails is deleted at once; where that fails too, a later run deletes it.
3. The quota is asked before each segment. A run that has copied one leaves when there is no room,
   so that other partitions have their turn; one that has copied none waits. Who runs it lets it
   begin again behind the others: if it came again at the next interval only, a node with few
   partitions would copy below its quota, since the window remembers no more than its own time.
   A wait may be long: a segment that was deleted meanwhile, or whose topic was turned off, is not
   copied, and not charged. Nor is one whose files the log refuses: they are asked for before the
   quota, and once more behind it, because a wait would keep deleted ones on the disk.

Source: Kafka's RemoteLogManager.RLMCopyTask.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from streamlog.errors import Conflict, InvalidConfig, StreamlogError
from streamlog.log.api.abstract_log import AbstractLogSegment
from streamlog.log.api.tiering import LocalSegmentFiles, TierableLog
from streamlog.runtime.clock import Clock
from streamlog.runtime.concurrency.cancellation import to_its_end
from streamlog.runtime.rand import Random
from streamlog.tiered.api.metadata_manager import RemoteLogMetadataManager
from streamlog.tiered.api.segments import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
    TopicIdPartition,
)
from streamlog.tiered.api.storage_manager import LogSegmentData, RemoteStorageManager
from streamlog.tiered.copying.pace import CopyPace
from streamlog.tiered.copying.removal import SegmentRemoval
from streamlog.tiered.reading.failures import RemoteFailures
from streamlog.tiered.reading.plugin_calls import PluginCalls

log = logging.getLogger(__name__)


class CopyQuota(Protocol):
    """Bytes that may be copied to the remote tier (KIP-956)."""

    async def before_segment(
        self, size_bytes: int, *, may_wait: bool, is_wanted: Callable[[], bool]
    ) -> bool:
        """Records the bytes and returns True when there is room, for which it waits if it may.

        Else, and where they are no longer wanted after a wait, it returns False, and has recorded
        nothing.
        """
        ...


@dataclass(frozen=True, slots=True)
class CopyParts:
    """What all copies of a node share. `timeout_ms`: of one copy."""

    storage: RemoteStorageManager
    metadata: RemoteLogMetadataManager
    removal: SegmentRemoval
    quota: CopyQuota
    calls: PluginCalls
    failures: RemoteFailures
    clock: Clock
    random: Random
    broker_id: int
    pace: CopyPace
    custom_metadata_bytes_max: int = 128
    timeout_ms: int = 600_000


class Copied(Protocol):
    """Hears what was copied, and whether a copy waits for the quota."""

    waits_for_quota: bool

    def copied(self, segment: RemoteLogSegmentMetadata) -> None: ...


def not_copied(log: TierableLog, highest_offset: int) -> list[AbstractLogSegment]:
    """Closed segments that are in this tier alone, the oldest first. Pure."""
    stable, start = log.last_stable_offset, log.log_start_offset
    found: list[AbstractLogSegment] = []
    for segment in log.segments:
        if segment.is_active or segment.end_offset > stable:
            break
        if segment.end_offset - 1 <= highest_offset or segment.end_offset <= start:
            continue
        if segment.end_offset > segment.base_offset:
            found.append(segment)
    return found


def candidates(log: TierableLog, highest_offset: int, now_ms: int) -> list[AbstractLogSegment]:
    """Those of them that may be copied by now: as many of the oldest as the lags let go. Pure."""
    found = not_copied(log, highest_offset)
    lag_bytes, lag_ms = log.topic_config.copy_lags
    if not found or not lag_bytes or not lag_ms:
        return found
    behind = sum(one.size_bytes for one in log.segments if one.base_offset >= found[0].base_offset)
    for index, segment in enumerate(found):
        behind -= segment.size_bytes
        age_ms = now_ms - segment.largest_timestamp_ms
        # A time that is still to come says nothing of the segment's age.
        is_old = lag_ms > 0 and (age_ms >= lag_ms or age_ms < 0)
        if not is_old and not 0 < lag_bytes <= behind:
            return found[:index]
    return found


def is_wanted(log: TierableLog, segment: AbstractLogSegment) -> bool:
    """Whether a candidate is one still: others may change the topic and the log meanwhile. Pure."""
    is_there = segment.end_offset > log.log_start_offset and segment in log.segments
    return is_there and log.topic_config.is_copied


def epochs_within(log: TierableLog, base_offset: int, end_offset: int) -> dict[int, int]:
    """Leader epochs of the range → the first offset of each in it."""
    entries = list(log.leader_epochs)
    found: dict[int, int] = {}
    for index, (epoch, first) in enumerate(entries):
        end = entries[index + 1][1] if index + 1 < len(entries) else end_offset
        if first < end_offset and end > base_offset:
            found[epoch] = max(first, base_offset)
    return found


class Copier:
    def __init__(self, parts: CopyParts) -> None:
        self._parts = parts

    def has_work(self, log: TierableLog, highest_offset: int) -> bool:
        return bool(self.waiting(log, highest_offset))

    def waiting(self, log: TierableLog, highest_offset: int) -> list[AbstractLogSegment]:
        """Segments that may be copied by now."""
        return candidates(log, highest_offset, self._parts.clock.now_ms())

    def lag(self, log: TierableLog, highest_offset: int) -> tuple[int, int]:
        """Segments that are not copied yet, and their bytes."""
        left = not_copied(log, highest_offset)
        return len(left), sum(segment.size_bytes for segment in left)

    async def run(
        self, partition: TopicIdPartition, log: TierableLog, highest_offset: int, hears: Copied
    ) -> bool:
        """Copies what is there. Returns False if it copied some and left the rest for lack of room.

        Errors: StoreUnavailable, Unavailable, InvalidConfig (a plug-in's custom metadata is too
        long).
        """
        parts = self._parts
        for done, segment in enumerate(self.waiting(log, highest_offset)):
            wanted = partial(is_wanted, log, segment)
            if not wanted():
                break
            quota, size_bytes = parts.quota, segment.size_bytes
            async with log.segment_files(segment):
                """The log does not refuse them."""
            if not wanted():
                break
            hears.waits_for_quota = True
            try:
                if not await quota.before_segment(size_bytes, may_wait=not done, is_wanted=wanted):
                    return not done
            finally:
                hears.waits_for_quota = False
            with parts.pace.copy(segment) as paced:
                async with AsyncExitStack() as held:
                    files = await held.enter_async_context(log.segment_files(segment))
                    files = paced.of(files)
                    hears.copied(await self._copy(partition, log, segment, files, held))
        return True

    async def _copy(
        self,
        partition: TopicIdPartition,
        log: TierableLog,
        segment: AbstractLogSegment,
        files: LocalSegmentFiles,
        held: AsyncExitStack,
    ) -> RemoteLogSegmentMetadata:
        """`held`: what has the files open."""
        parts = self._parts
        metadata = RemoteLogSegmentMetadata(
            RemoteLogSegmentId(partition, parts.random.uuid()),
            segment.base_offset,
            segment.end_offset - 1,
            segment.largest_timestamp_ms,
            parts.broker_id,
            parts.clock.now_ms(),
            files.log_segment.size_bytes,
            RemoteLogSegmentState.COPY_SEGMENT_STARTED,
            epochs_within(log, segment.base_offset, segment.end_offset),
            is_txn_index_empty=files.transaction_index is None,
        )
        # Writes run to their end: a log that is opened anew waits for what was done for this one,
        # and none may come behind what is read then.
        await to_its_end(parts.metadata.add_remote_log_segment_metadata(metadata))
        try:
            custom = await self._stored(metadata, LogSegmentData(*files), held)
            finished = RemoteLogSegmentMetadataUpdate(
                metadata.remote_log_segment_id,
                parts.clock.now_ms(),
                RemoteLogSegmentState.COPY_SEGMENT_FINISHED,
                parts.broker_id,
                custom,
            )
            await to_its_end(parts.metadata.update_remote_log_segment_metadata(finished))
        except StreamlogError:
            if await self._take_back(metadata):
                raise
        return metadata

    async def _stored(
        self, metadata: RemoteLogSegmentMetadata, data: LogSegmentData, held: AsyncExitStack
    ) -> bytes | None:
        parts, segment_id = self._parts, metadata.remote_log_segment_id
        doing = f"copying {segment_id}"
        try:
            custom = await parts.calls.run(
                doing,
                parts.timeout_ms,
                lambda: parts.storage.copy_log_segment_data(metadata, data),
                segment_id,
                held,
            )
        except Exception as error:
            # A plug-in may raise anything.
            parts.failures.failed(error)
            raise parts.failures.error(doing) from error
        parts.failures.succeeded()
        if custom is not None and len(custom) > parts.custom_metadata_bytes_max:
            raise InvalidConfig(
                f"the remote storage plug-in returned {len(custom)} bytes of custom metadata for "
                f"{metadata.remote_log_segment_id}, more than the "
                f"{parts.custom_metadata_bytes_max} of "
                "remote.log.metadata.custom.metadata.max.bytes: nothing more of this partition is "
                "copied until one of them changes"
            )
        return custom

    async def _take_back(self, metadata: RemoteLogSegmentMetadata) -> bool:
        """False: the copy is finished after all, and somebody may rely on it."""
        try:
            await self._parts.removal.remove(metadata)
        except Conflict as error:
            log.warning("%s", error)
            return False
        except StreamlogError as error:
            log.warning("a copy that failed is deleted later: %s", error)
        return True
