"""ListOffsets: the first record at or after a timestamp, and the special offsets.

Segments are passed over by their largest timestamp; how one segment is searched depends on the kind
of log (TimestampSearch).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

from streamlog.errors import Invalid
from streamlog.log.api.abstract_log import (
    EARLIEST,
    EARLIEST_LOCAL,
    LATEST,
    LATEST_TIERED,
    MAX_TIMESTAMP,
    AbstractLogSegment,
    TimestampAndOffset,
)
from streamlog.log.partition.leader_epoch_cache import LeaderEpochCache

Segment = TypeVar("Segment", bound=AbstractLogSegment, contravariant=True)

NOT_FOUND = TimestampAndOffset(-1, -1, -1)


class TimestampSearch(Protocol[Segment]):
    """Searches among offsets start (inclusive) to end (exclusive) of one log."""

    @property
    def start_offset(self) -> int: ...
    @property
    def end_offset(self) -> int: ...

    async def largest(self, segments: Sequence[Segment]) -> int:
        """The largest timestamp; -1 where no record has one."""
        ...

    async def in_segment(self, segment: Segment, timestamp_ms: int) -> tuple[int, int] | None:
        """(offset, timestamp) of the first record at or after the timestamp."""
        ...


async def lookup(
    timestamp_ms: int,
    segments: Sequence[Segment],
    epochs: LeaderEpochCache,
    search: TimestampSearch[Segment],
) -> TimestampAndOffset:
    """Errors: Invalid, those of the search."""
    start_offset, end_offset = search.start_offset, search.end_offset
    if timestamp_ms in (EARLIEST, EARLIEST_LOCAL):
        return TimestampAndOffset(-1, start_offset, epochs.epoch_at(start_offset))
    if timestamp_ms == LATEST:
        return TimestampAndOffset(-1, end_offset, epochs.epoch_at(end_offset))
    if timestamp_ms == LATEST_TIERED:
        return NOT_FOUND
    if timestamp_ms == MAX_TIMESTAMP:
        timestamp_ms = await search.largest(segments)
        if timestamp_ms < 0:
            return NOT_FOUND
    if timestamp_ms < 0:
        raise Invalid(
            f"timestamp {timestamp_ms} is neither a time nor one of -1 (latest), -2 (earliest), "
            "-3 (largest timestamp), -4 (earliest local), -5 (latest tiered)"
        )
    for segment in segments:
        if segment.base_offset >= end_offset:
            break
        if segment.largest_timestamp_ms < timestamp_ms or segment.end_offset <= start_offset:
            continue
        record = await search.in_segment(segment, timestamp_ms)
        if record is not None:
            offset, stamp = record
            return TimestampAndOffset(stamp, offset, epochs.epoch_at(offset))
    return NOT_FOUND
