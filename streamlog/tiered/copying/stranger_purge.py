"""Deletes files of the remote storage that no metadata names: the one place that lists it.

A copy that is cut off is deleted by the next one, which finds it announced. What is left then is
rare: a write that arrived after its deletion, or files of metadata that was lost.

1. The storage is listed once, partition by partition, of which one is in memory at a time; files
   that are younger than `age_ms` are passed over.
2. The metadata is asked when a partition is listed: a copy is announced before its first byte is
   written, so whatever a copy under way wrote is named by now. Partitions that this node does not
   answer for are read anew, and so are those that have strangers.
3. Where more segments are strangers than such accidents explain, nothing is deleted: the metadata
   is likely to be the wrong one, and the files are all that is left of the records. So it is with
   one partition of a topic that exists, of which so many are, or whose metadata has a gap: nobody
   copies or deletes a segment in the middle of others, or between them and the local ones.
4. Where the log of a partition is not open here nobody can tell whether the metadata lacks the
   newest segments: its strangers are left to the node that opens it. One that no node can open is
   likely to have lost its local part, too.
5. Topics that this node does not know are passed over where the storage may hold segments of other
   clusters (`has_own_place`).
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Protocol, TypeVar
from uuid import UUID

from streamlog.errors import Corrupt, UnsupportedVersion
from streamlog.log.api.tiering import TierableLog
from streamlog.runtime.clock import Clock
from streamlog.tiered.api.metadata_manager import RemoteLogMetadataManager
from streamlog.tiered.api.segments import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    TopicIdPartition,
)
from streamlog.tiered.api.storage_manager import RemoteStorageManager, StoredFile
from streamlog.tiered.lineage import lost_offsets, missing_offsets
from streamlog.tiered.metrics import RemoteLogMetrics
from streamlog.tiered.reading.plugin_calls import PluginCalls

logger = logging.getLogger(__name__)

SEGMENTS_UNSUSPICIOUS = 3
"""So many strangers are purged whatever their share is."""
DELETED_AT_ONCE = 1000
LISTED_AT_ONCE = 100
FILES_MAX = 100_000
"""Of strangers that one purge deletes: the rest goes with the next ones."""
CALL_S = 60
"""How long the plug-in may take for so many files of the listing, a deletion or a clean-up."""
T = TypeVar("T")
_FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED

TopicNames = Callable[[UUID], str | None]
"""The name of a topic that has the id, also of one whose remote data is being deleted."""


class Led(Protocol):
    """Partitions that this node answers for now: it opens logs while the storage is listed."""

    def log_of(self, partition: TopicIdPartition) -> TierableLog | None: ...

    def is_loaded(self, partition: TopicIdPartition) -> bool:
        """Whether the metadata plug-in has loaded it for its log."""
        ...

    def is_led(self, partition: TopicIdPartition) -> bool:
        """Also where its log is being opened or ended: whoever does so tells the plug-in."""
        ...


@dataclass(frozen=True, slots=True)
class PurgeConfig:
    """`interval_ms` 0: never. `share_max`: which part of all segments may be strangers."""

    interval_ms: int = 86_400_000
    age_ms: int = 604_800_000
    share_max: float = 0.5


@dataclass(slots=True)
class Strangers:
    """What a listing found. Files are those of strangers."""

    files: list[StoredFile] = field(default_factory=list)
    stranger_segments: int = 0
    segments: int = 0
    """All that have files in the storage."""
    suspicious: list[TopicIdPartition] = field(default_factory=list)
    """Partitions whose own strangers are passed over, or whose metadata cannot be read."""


@dataclass(frozen=True, slots=True)
class StrangerPurge:
    storage: RemoteStorageManager
    metadata: RemoteLogMetadataManager
    calls: PluginCalls
    metrics: RemoteLogMetrics
    clock: Clock
    config: PurgeConfig

    async def run(self, names: TopicNames, led: Led) -> str | None:
        """Deletes what is no part of any segment; why nothing was deleted, if that is suspicious.

        Errors: what the plug-ins raise.
        """
        found = await self.look(names, led)
        if found is None:
            return None
        if self._is_suspicious(found.stranger_segments, found.segments):
            return (
                f"{found.stranger_segments} of {found.segments} segments in the remote storage are "
                "named by no metadata, which is more than copies that ended early explain; none is "
                "deleted. If the metadata was lost, put it back"
            )
        for first in range(0, len(found.files), DELETED_AT_ONCE):
            files = found.files[first : first + DELETED_AT_ONCE]
            names_of = [one.name for one in files]
            await self._delete(names_of)
            self.metrics.purged(len(files), sum(one.size_bytes for one in files))
        if found.files:
            logger.warning("%d files of no segment were purged from the tier", len(found.files))
        if found.suspicious:
            return (
                f"{len(found.suspicious)} partitions (the first: {found.suspicious[0]}) have "
                "segments in the remote storage that their metadata should name; none of these is "
                "deleted. If metadata was lost or damaged, put it back"
            )
        return None

    def _is_suspicious(self, strangers: int, segments: int) -> bool:
        return strangers > max(SEGMENTS_UNSUSPICIOUS, self.config.share_max * segments)

    async def _delete(self, names: Sequence[str]) -> None:
        """Errors: TimeoutError; what the plug-in raises."""
        doing = "purging files of no segment"
        await self._bounded(doing, lambda: self.storage.delete_stored_files(names))

    async def clean_up(
        self, partition: TopicIdPartition, log: TierableLog
    ) -> tuple[int, int] | None:
        """Has the plug-in remove what is older than everything that is known of the partition.

        Where nothing is known, or offsets of the log are in no segment, it removes nothing: a
        plug-in may remove whole segments by their age, and these may be what the metadata lost.
        Nothing may be copied meanwhile: a copy of old records would be older than what is known.
        Returns the first of such offsets (end exclusive).

        Errors: what the plug-ins raise; TimeoutError.
        """
        # Another node may lead the partition, and this one not know it yet.
        await self.metadata.on_partition_leadership_changes([partition], [])
        known = await self.metadata.list_remote_log_segments(partition)
        lost = lost_offsets(log, [one for one in known if one.state is _FINISHED])
        if not known or lost is not None:
            return lost
        until = self.clock.now_ms() - self.config.age_ms
        for one in known:
            until = min(until, one.max_timestamp_ms, one.event_timestamp_ms)
        files = await self._bounded(
            f"cleaning up {partition}", lambda: self.storage.delete_left_overs(partition, until)
        )
        self.metrics.purged(files, 0)
        return None

    async def _bounded(self, doing: str, call: Callable[[], Awaitable[T]]) -> T:
        """Errors: TimeoutError; what the call raises."""
        try:
            return await self.calls.run(doing, CALL_S * 1000, call)
        except TimeoutError as error:
            raise TimeoutError(f"{doing} has not ended within {CALL_S} s") from error

    async def look(self, names: TopicNames, led: Led) -> Strangers | None:
        """Deletes nothing. None: the storage cannot be listed."""
        listing = self.storage.stored_files()
        if listing is None:
            return None
        before_ms = self.clock.now_ms() - self.config.age_ms
        found = Strangers()
        seen: set[tuple[UUID, int]] = set()
        split: dict[tuple[UUID, int], TopicIdPartition] = {}
        kept: dict[tuple[UUID, int], list[StoredFile]] = {}
        room = FILES_MAX
        async for key, segments in self._partitions(listing):
            topic_id, number = key
            if not self.storage.has_own_place and names(topic_id) is None:
                continue
            found.segments += len(segments)
            partition = TopicIdPartition(topic_id, names(topic_id) or "", number)
            if key in seen:
                # Its share of strangers cannot be told.
                split.setdefault(key, partition)
                room += len(kept.pop(key, []))
                continue
            seen.add(key)
            try:
                strangers = await self._look_at(partition, segments, before_ms, led)
            except (Corrupt, UnsupportedVersion) as error:
                logger.warning("nothing of %s is purged: %s", partition, error)
                strangers = None
            if strangers is None:
                found.suspicious.append(partition)
                continue
            found.stranger_segments += len(strangers)
            kept[key] = list(islice(chain.from_iterable(strangers), room))
            room -= len(kept[key])
        found.files += chain.from_iterable(kept.values())
        if split:
            logger.warning(
                "the storage lists %d partitions (the first: %s) in several pieces: not purged",
                len(split),
                next(iter(split.values())),
            )
        return found

    async def _partitions(
        self, listing: AsyncIterator[StoredFile]
    ) -> AsyncIterator[tuple[tuple[UUID, int], dict[UUID, list[StoredFile]]]]:
        """The files of each segment of each partition in turn."""
        key: tuple[UUID, int] | None = None
        segments: dict[UUID, list[StoredFile]] = {}
        while page := await self._bounded("listing the remote storage", lambda: _page(listing)):
            for one in page:
                if key is not None and key != (one.topic_id, one.partition):
                    yield key, segments
                    segments = {}
                key = one.topic_id, one.partition
                segments.setdefault(one.segment_id, []).append(one)
        if key is not None:
            yield key, segments

    async def _look_at(
        self,
        partition: TopicIdPartition,
        segments: Mapping[UUID, Sequence[StoredFile]],
        before_ms: int,
        led: Led,
    ) -> list[list[StoredFile]] | None:
        """The files of each stranger that this node may delete; None: there are strangers, and they
        are suspicious.

        Errors: those of the metadata.
        """
        log = led.log_of(partition)
        named = await self._named(partition, led)
        strangers, has_gap = _strangers(segments, named, before_ms), _has_gap(named)
        if strangers and log is not None:
            local_start = log.local_log_start_offset
            # Another node may lead the partition, and this one not know it yet.
            await self.metadata.on_partition_leadership_changes([partition], [])
            named = await self._named(partition, led)
            strangers = _strangers(segments, named, before_ms)
            missing = missing_offsets(named.values(), log.log_start_offset, local_start)
            has_gap = _has_gap(named) or missing is not None
        is_many = self._is_suspicious(len(strangers), len(segments))
        if not partition.topic or not strangers:
            return strangers
        if is_many or has_gap:
            return None
        return [] if log is None else strangers

    async def _named(
        self, partition: TopicIdPartition, led: Led
    ) -> Mapping[UUID, RemoteLogSegmentMetadata]:
        """Segments that the metadata has now, by start offset."""
        if not led.is_loaded(partition):
            await self.metadata.on_partition_leadership_changes([], [partition])
        try:
            listed = await self.metadata.list_remote_log_segments(partition)
        finally:
            if not led.is_led(partition):
                await self.metadata.on_stop_partitions([partition])
        return {one.remote_log_segment_id.id: one for one in listed}


async def _page(listing: AsyncIterator[StoredFile]) -> list[StoredFile]:
    found: list[StoredFile] = []
    while len(found) < LISTED_AT_ONCE and (one := await anext(listing, None)) is not None:
        found.append(one)
    return found


def _has_gap(named: Mapping[UUID, RemoteLogSegmentMetadata]) -> bool:
    """Whether offsets between two segments are in none."""
    end: int | None = None
    for one in named.values():
        if end is not None and one.start_offset > end + 1:
            return True
        end = one.end_offset if end is None else max(end, one.end_offset)
    return False


def _strangers(
    segments: Mapping[UUID, Sequence[StoredFile]], named: Collection[UUID], before_ms: int
) -> list[list[StoredFile]]:
    """The files of each segment that is old and not named."""
    found = (_old(files, before_ms) for one, files in segments.items() if one not in named)
    return [files for files in found if files]


def _old(files: Sequence[StoredFile], before_ms: int) -> list[StoredFile]:
    """All of them or none: a segment with a younger file may still be on its way."""
    return list(files) if all(one.modified_ms < before_ms for one in files) else []
