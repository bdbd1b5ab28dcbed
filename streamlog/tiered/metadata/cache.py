"""The remote segments of one partition, by leader epoch and offset. Pure.

1. Readers see a segment from COPY_SEGMENT_FINISHED until DELETE_SEGMENT_STARTED, under each leader
   epoch that has batches in it.
2. Two leaders may have copied the same offsets. A segment that begins at or before others of the
   epoch and is finished later takes their place; they stay listed, for somebody has to delete them.
   One that lies within another leaves the rest of that readable (in Kafka it hides it).
3. A highest offset of an epoch never goes back: what was copied and expired needs no second copy.

Source: Kafka's RemoteLogMetadataCache, RemoteLogLeaderEpochState.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from dataclasses import replace

from streamlog.errors import Invalid, NotFound
from streamlog.tiered.api.segments import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
    check_segment_transition,
)

_STARTED = RemoteLogSegmentState.COPY_SEGMENT_STARTED
_FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
_DELETED = RemoteLogSegmentState.DELETE_SEGMENT_FINISHED


class _EpochSegments:
    """What readers see of one leader epoch."""

    __slots__ = ("_epoch", "_has_nested", "by_offset", "highest", "offsets")

    def __init__(self, epoch: int) -> None:
        self._epoch = epoch
        self._has_nested = False
        """Whether one may lie within another, which goes on behind it."""
        self.offsets: list[int] = []
        """First offsets, rising."""
        self.by_offset: dict[int, RemoteLogSegmentMetadata] = {}
        self.highest: int | None = None

    def put(self, segment: RemoteLogSegmentMetadata, end_offset: int) -> None:
        start = segment.start_offset
        while (
            self.offsets
            and self.offsets[-1] >= start
            and self.highest is not None
            and self.highest <= end_offset
        ):
            del self.by_offset[self.offsets.pop()]
        around = self._before(bisect_right(self.offsets, start))
        if around is None or around.end_offset_of_epoch(self._epoch) <= end_offset:
            self._show(segment)
        elif around.start_offset < start:
            self._has_nested = True
            self._show(segment)
        self.highest = end_offset if self.highest is None else max(self.highest, end_offset)

    def _show(self, segment: RemoteLogSegmentMetadata) -> None:
        if segment.start_offset not in self.by_offset:
            insort(self.offsets, segment.start_offset)
        self.by_offset[segment.start_offset] = segment

    def remove(self, segment: RemoteLogSegmentMetadata) -> None:
        """Does nothing where another segment has taken its place."""
        start = segment.start_offset
        known = self.by_offset.get(start)
        if known is not None and known.remote_log_segment_id == segment.remote_log_segment_id:
            del self.by_offset[start]
            del self.offsets[bisect_left(self.offsets, start)]

    def _before(self, number: int) -> RemoteLogSegmentMetadata | None:
        return self.by_offset[self.offsets[number - 1]] if number else None

    def number_of(self, offset: int) -> int | None:
        """Where in `offsets` the segment is that has the offset."""
        number = bisect_right(self.offsets, offset)
        while (found := self._before(number)) is not None:
            if offset <= found.end_offset_of_epoch(self._epoch):
                is_in_epoch = found.segment_leader_epochs[self._epoch] <= offset
                return number - 1 if is_in_epoch else None
            if not self._has_nested:
                break
            number -= 1
        return None


class RemoteLogMetadataCache:
    """Of one partition. A call that is refused changes nothing."""

    def __init__(self) -> None:
        self._segments: dict[object, RemoteLogSegmentMetadata] = {}
        self._epochs: dict[int, _EpochSegments] = {}

    def add(self, metadata: RemoteLogSegmentMetadata) -> None:
        """Errors: Invalid (the state is not COPY_SEGMENT_STARTED, or the id is known)."""
        check_segment_transition(metadata.remote_log_segment_id, None, metadata.state)
        known = self._segments.get(metadata.remote_log_segment_id)
        if known is not None and known != metadata:
            raise Invalid(f"the remote segment {metadata.remote_log_segment_id} is known already")
        self._segments[metadata.remote_log_segment_id] = metadata

    def update(self, update: RemoteLogSegmentMetadataUpdate) -> RemoteLogSegmentMetadata:
        """The segment as it is now. Errors: NotFound, Invalid (the table of states)."""
        updated = self.updated(update)
        self.put(updated)
        return updated

    def updated(self, update: RemoteLogSegmentMetadataUpdate) -> RemoteLogSegmentMetadata:
        """The segment as the update would make it. Errors: as of `update`."""
        known = self._segments.get(update.remote_log_segment_id)
        if known is None:
            raise NotFound(f"no remote segment {update.remote_log_segment_id} is known")
        return known.updated(update)

    def put(self, metadata: RemoteLogSegmentMetadata) -> None:
        """Takes the segment's newest state, whatever was known: for loading."""
        segment_id = metadata.remote_log_segment_id
        if metadata.state is _FINISHED:
            self._segments[segment_id] = metadata
            for epoch in metadata.epochs:
                known = self._epochs.setdefault(epoch, _EpochSegments(epoch))
                known.put(metadata, metadata.end_offset_of_epoch(epoch))
            return
        if metadata.state is _DELETED:
            self._segments.pop(segment_id, None)
        else:
            self._segments[segment_id] = metadata
        if metadata.state is not _STARTED:
            for epoch in metadata.epochs:
                if (state := self._epochs.get(epoch)) is not None:
                    state.remove(metadata)

    def state(self, segment_id: RemoteLogSegmentId) -> RemoteLogSegmentState | None:
        """None: the segment is not known."""
        known = self._segments.get(segment_id)
        return None if known is None else known.state

    def forget(self, segment_id: RemoteLogSegmentId) -> None:
        """Another writer has ended the segment's deletion."""
        known = self._segments.get(segment_id)
        if known is not None:
            self.put(replace(known, state=_DELETED))

    def segment(self, epoch: int, offset: int) -> RemoteLogSegmentMetadata | None:
        """The finished segment that has the offset under this epoch."""
        state = self._epochs.get(epoch)
        number = None if state is None else state.number_of(offset)
        if state is None or number is None:
            return None
        return state.by_offset[state.offsets[number]]

    def highest_offset(self, epoch: int) -> int | None:
        """Inclusive; of all that was finished under the epoch since this cache was made."""
        state = self._epochs.get(epoch)
        return None if state is None else state.highest

    def next_with_txn_index(self, epoch: int, offset: int) -> RemoteLogSegmentMetadata | None:
        """The first finished segment of the epoch, from the one with the offset on, in which a
        transaction may have been aborted."""
        state = self._epochs.get(epoch)
        if state is None:
            return None
        first = state.number_of(offset)
        if first is None:
            first = max(bisect_right(state.offsets, offset) - 1, 0)
        for start in state.offsets[first:]:
            found = state.by_offset[start]
            if found.end_offset >= offset and not found.is_txn_index_empty:
                return found
        return None

    def list(self, epoch: int | None = None) -> list[RemoteLogSegmentMetadata]:
        """By start offset; also segments that are being copied or deleted, or whose place others
        have taken."""
        found = [one for one in self._segments.values() if epoch is None or epoch in one.epochs]
        return sorted(found, key=lambda one: (one.start_offset, one.event_timestamp_ms))

    def finished(self) -> Iterator[RemoteLogSegmentMetadata]:
        """Those that readers see, each once, by start offset."""
        for one in self.list():
            if one.state is _FINISHED and any(
                self._epochs[epoch].by_offset.get(one.start_offset) == one for epoch in one.epochs
            ):
                yield one
