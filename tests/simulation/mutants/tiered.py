"""Mutants of remote tiers: what is copied, when what goes, what readers get, and who may delete."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

from streamlog.errors import StreamlogError
from streamlog.log.api.tiering import AbortedInTier
from streamlog.testing.simulation.local.history import TIERED_PLAN
from streamlog.tiered import remote_log_manager
from streamlog.tiered.api.segments import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
)
from streamlog.tiered.copying import copier, expiration
from streamlog.tiered.copying.copier import Copier
from streamlog.tiered.copying.removal import SegmentRemoval
from streamlog.tiered.metadata import kv_manager
from streamlog.tiered.metadata.cache import RemoteLogMetadataCache
from streamlog.tiered.metadata.kv_manager import KVRemoteLogMetadataManager
from streamlog.tiered.metadata.kv_records import encode_segment, segment_key
from streamlog.tiered.reading.chunks import ChunkCache
from streamlog.tiered.reading.partition_tier import PartitionTier
from streamlog.tiered.remote_log_manager import RemoteLogManager
from streamlog.unified.read import tiers
from streamlog.unified.unified_log import UnifiedLog
from tests.simulation.mutants.mutant import Mutant, Patch

_FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED

# What is copied.


def _local_gone_unfinished(patch: Patch) -> None:
    patch.set(UnifiedLog, "copied_end_offset", property(lambda self: self.high_watermark))


def _announced_counts(patch: Patch) -> None:
    """What is announced counts as copied: its file may go before its copy is made."""

    async def add(self: Any, metadata: RemoteLogSegmentMetadata) -> None:
        await original(self, metadata)
        for led in managers:
            tier = led.tier
            if tier.partition == metadata.topic_id_partition:
                tier.highest_offset = max(tier.highest_offset, metadata.end_offset)

    async def attach(self: Any, log: Any, topic_id: Any) -> None:
        await attached(self, log, topic_id)
        managers[:] = self._led.values()

    managers: list[Any] = []
    original = patch.set(KVRemoteLogMetadataManager, "add_remote_log_segment_metadata", add)
    attached = patch.set(RemoteLogManager, "attach", attach)


def _failed_copy_finished(patch: Patch) -> None:
    async def stored(*arguments: Any) -> None:
        try:
            await original(*arguments)
        except StreamlogError:
            return

    original = patch.set(Copier, "_stored", stored)


def _closed(log: Any, highest_offset: int, end: int) -> list[Any]:
    return [
        one
        for one in log.segments
        if not one.is_active and highest_offset < one.end_offset - 1 < end
    ]


def _copied_past_stable(patch: Patch) -> None:
    patch.set(
        copier,
        "not_copied",
        lambda log, highest_offset: _closed(log, highest_offset, log.high_watermark - 1),
    )


def _end_claimed_beyond(patch: Patch) -> None:
    """The metadata says that a copy has the first record of the next segment, too."""

    def made(segment_id: Any, start: int, end: int, *others: Any, **named: Any) -> Any:
        return original(segment_id, start, end + 1, *others, **named)

    original = patch.set(copier, "RemoteLogSegmentMetadata", made)


def _remains_forgotten(patch: Patch) -> None:
    """What a copy that failed, or was cut off, left is looked for by nobody."""

    async def take_back(*_: Any) -> bool:
        return True

    async def attach(self: Any, log: Any, topic_id: Any) -> None:
        await attached(self, log, topic_id)
        self._led[log.topic_partition].has_left_overs = False

    async def copy(self: Any, led: Any) -> Any:
        led.has_left_overs = False
        return await copied(self, led)

    patch.set(Copier, "_take_back", take_back)
    attached = patch.set(RemoteLogManager, "attach", attach)
    copied = patch.set(RemoteLogManager, "_copy", copy)


def _active_copied(patch: Patch) -> None:
    """The active segment is copied, too, as far as it has come."""

    def of_all(log: Any, highest_offset: int) -> Any:
        return [
            one
            for one in log.segments
            if highest_offset < one.end_offset - 1
            and one.base_offset < one.end_offset
            and (one.is_active or one.end_offset <= log.last_stable_offset)
        ]

    @asynccontextmanager
    async def files(self: Any, segment: Any) -> AsyncIterator[Any]:
        await self._flush()
        epochs = [entry for entry in self._tail.epochs.entries if entry[1] < segment.end]
        async with tiers.held_files(
            self._folder.folder, segment, epochs, self._offload, tiers.nothing_lost
        ) as held:
            yield held

    patch.set(copier, "not_copied", of_all)
    patch.set(UnifiedLog, "segment_files", files)


class _WithoutEnd:
    """A segment that says its base is its end, for the snapshot's name."""

    def __init__(self, segment: Any) -> None:
        self._segment = segment
        self.end = segment.base_offset

    def __getattr__(self, name: str) -> Any:
        return getattr(self._segment, name)


def _snapshot_of_the_base(patch: Patch) -> None:
    """A copy has the producer snapshot of its own base, not of the next segment's."""

    def opened(folder: Any, segment: Any, *others: Any) -> Any:
        return original(folder, _WithoutEnd(segment), *others)

    original = patch.set(tiers, "_open_all", opened)


# What goes.


def _lineage_ignored(patch: Patch) -> None:
    """Segments of leaders whose records the log does not have count against its limits."""
    patch.set(expiration, "in_lineage", lambda log, segment: True)


def _start_after_deletion(patch: Patch) -> None:
    """The remote segments go first, and the log's start follows at the next round."""

    def unmoved(*arguments: Any) -> Any:
        return original(*arguments)._replace(log_start_offset=-1)

    original = patch.set(remote_log_manager, "expired_segments", unmoved)


def _anothers_clock(patch: Patch) -> None:
    """Segments expire by a wall clock that is ahead."""

    def ahead(log: Any, segments: Any, highest_offset: int, now_ms: int) -> Any:
        return original(log, segments, highest_offset, now_ms + 10_000)

    original = patch.set(remote_log_manager, "expired_segments", ahead)


def _remote_bytes_twice(patch: Patch) -> None:
    """What is in both tiers counts twice against retention.bytes."""

    class Twice:
        """A log all of whose local segments lie behind what was copied."""

        def __init__(self, log: Any, highest_offset: int) -> None:
            self.segments = [
                SimpleNamespace(size_bytes=one.size_bytes, end_offset=highest_offset + 2)
                for one in log.segments
            ]
            self.topic_config = log.topic_config
            self.leader_epochs = log.leader_epochs
            self.log_start_offset = log.log_start_offset

    def expired(log: Any, segments: Any, highest_offset: int, now_ms: int) -> Any:
        return original(Twice(log, highest_offset), segments, highest_offset, now_ms)

    original = patch.set(remote_log_manager, "expired_segments", expired)


def _deleted_before_announced(patch: Patch) -> None:
    """The objects go before the metadata says so."""

    async def remove(self: Any, segment: RemoteLogSegmentMetadata) -> None:
        await self._tried("deleting", lambda: self.storage.delete_log_segment_data(segment))
        await original(self, segment)

    original = patch.set(SegmentRemoval, "remove", remove)


def _stale_deletion_taken(patch: Patch) -> None:
    """A copy is deleted as one that failed, though the next leader knows it as finished."""
    patch.set(kv_manager, "_check_known", lambda *_: None)


def _deleted_is_finished_again(patch: Patch) -> None:
    """The stored state is not compared: the last writer wins."""

    async def update(self: Any, update: Any) -> None:
        cache = self._partitions.get(update.remote_log_segment_id.topic_id_partition)
        known = None if cache is None else cache._segments.get(update.remote_log_segment_id)
        if known is None or update.state is not _FINISHED:
            await original(self, update)
            return
        updated = known.updated(update)
        key = segment_key(update.remote_log_segment_id)
        await self._kv.put_kv(key, encode_segment(updated))
        cache.put(updated)

    original = patch.set(KVRemoteLogMetadataManager, "update_remote_log_segment_metadata", update)


# What readers get.


def _deleted_served(patch: Patch) -> None:
    """A segment stays visible once its deletion has begun."""

    def put(self: Any, metadata: RemoteLogSegmentMetadata) -> None:
        if metadata.state is RemoteLogSegmentState.DELETE_SEGMENT_STARTED:
            self._segments[metadata.remote_log_segment_id] = metadata
        elif metadata.state is RemoteLogSegmentState.DELETE_SEGMENT_FINISHED:
            self._segments.pop(metadata.remote_log_segment_id, None)
        else:
            original(self, metadata)

    original = patch.set(RemoteLogMetadataCache, "put", put)


def _another_chunk(patch: Patch) -> None:
    def first(self: Any, segment: Any, number: int, deadline: float) -> Any:
        return original(self, segment, min(number, 1), deadline)

    original = patch.set(ChunkCache, "get", first)


def _short_range_is_whole(patch: Patch) -> None:
    """Bytes that did not come are taken for zeros."""

    async def loaded(self: Any, segment: Any, key: Any) -> Any:
        load = self._load

        async def padded(one: Any, start: int, last: int) -> bytes:
            data = bytes(await load(one, start, last))
            return data + bytes(last - start + 1 - len(data))

        self._load = padded
        try:
            return await original(self, segment, key)
        finally:
            self._load = load

    original = patch.set(ChunkCache, "_loaded", loaded)


def _aborted_of_tier_not_told(patch: Patch) -> None:
    async def none(*_: Any) -> AbortedInTier:
        return AbortedInTier([], True)

    patch.set(PartitionTier, "aborted_between", none)


def _aborted_of_tier_alone(patch: Patch) -> None:
    async def complete(*arguments: Any) -> AbortedInTier:
        found: AbortedInTier = await original(*arguments)
        return found._replace(is_complete=True)

    original = patch.set(PartitionTier, "aborted_between", complete)


def _another_lineage(patch: Patch) -> None:
    """A segment is looked up under the newest leader epoch, whatever the offset's is."""

    async def segment_at(self: Any, offset: int) -> Any:
        epoch = self._log.leader_epochs[-1][0]
        return await self._reads.metadata.remote_log_segment_metadata(self.partition, epoch, offset)

    patch.set(PartitionTier, "_segment_at", segment_at)


def _begins_at_the_local_part(patch: Patch) -> None:
    async def load(self: Any, led: Any) -> None:
        await original(self, led)
        await led.log.raise_start(led.log.local_log_start_offset)

    original = patch.set(RemoteLogManager, "_load", load)


def _mutant(
    name: str, broken: str, install: Any, *, found_by: str = "", is_quick: bool | None = None
) -> Mutant:
    """`is_quick`: None, where histories find it, and the first of them do."""
    is_quick = not found_by if is_quick is None else is_quick
    return Mutant(f"tier: {name}", broken, "disk", install, is_quick, found_by, TIERED_PLAN)


TIERED_MUTANTS = (
    _mutant(
        "local gone unfinished",
        "local segments go that are in no tier",
        _local_gone_unfinished,
    ),
    _mutant("announced counts", "a copy counts as made when it is announced", _announced_counts),
    _mutant("failed copy finished", "a copy that failed is finished", _failed_copy_finished),
    _mutant(
        "copied past the stable end",
        "closed segments are copied up to the high watermark",
        _copied_past_stable,
    ),
    _mutant(
        "end claimed beyond",
        "a copy is taken for one that has the next segment's first record",
        _end_claimed_beyond,
    ),
    _mutant(
        "remains forgotten",
        "nobody looks for what copies that failed or were cut off left",
        _remains_forgotten,
    ),
    _mutant(
        "start after deletion",
        "remote segments go before the log's start passes them",
        _start_after_deletion,
    ),
    _mutant("another's clock", "segments expire by a clock that is ahead", _anothers_clock),
    _mutant(
        "bytes count twice",
        "what is in both tiers counts twice against retention.bytes",
        _remote_bytes_twice,
    ),
    _mutant(
        "deleted before announced",
        "objects go before the metadata says so",
        _deleted_before_announced,
    ),
    _mutant(
        "stale deletion taken",
        "a node deletes a copy as failed that the next leader knows as finished",
        _stale_deletion_taken,
        found_by="tests/tiered/metadata/test_kv_manager.py",
    ),
    _mutant(
        "last writer wins",
        "a copy is finished whatever became of its segment meanwhile",
        _deleted_is_finished_again,
        found_by="tests/tiered/metadata/test_kv_manager.py",
    ),
    _mutant("active copied", "the active segment is copied as far as it has come", _active_copied),
    _mutant(
        "snapshot of the base",
        "a copy has the producer snapshot of its own base",
        _snapshot_of_the_base,
    ),
    _mutant(
        "lineage ignored",
        "segments of other lineages count against the log's limits",
        _lineage_ignored,
        found_by="tests/tiered/test_tiers.py::"
        "test_segments_of_another_lineage_count_against_no_limit",
    ),
    _mutant(
        "deleted served",
        "readers see a segment whose deletion has begun",
        _deleted_served,
        found_by="tests/tiered/metadata/test_kv_manager.py",
    ),
    _mutant("another chunk", "a reader gets another part of the segment", _another_chunk),
    _mutant(
        "short range is whole",
        "bytes of a range that did not come are taken for zeros",
        _short_range_is_whole,
        is_quick=False,
    ),
    _mutant(
        "aborted of the tier not told",
        "fetches tell no aborted transactions of remote segments",
        _aborted_of_tier_not_told,
    ),
    _mutant(
        "aborted of the tier alone",
        "fetches tell the aborted transactions of remote segments alone",
        _aborted_of_tier_alone,
    ),
    _mutant(
        "another lineage",
        "a segment is looked up under the newest leader epoch",
        _another_lineage,
    ),
    _mutant(
        "begins at the local part",
        "an open takes the local part's start for the log's",
        _begins_at_the_local_part,
    ),
)
