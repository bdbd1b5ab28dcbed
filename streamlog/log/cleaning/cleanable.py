"""Which offsets of a log can be cleaned, how dirty it is, and which log comes first.

The rules of Kafka's LogCleanerManager and LogToClean, as pure functions of a log's state.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from streamlog.log.api.abstract_log import AbstractLogSegment
from streamlog.log.api.cleaning import CleanableLog
from streamlog.log.api.topic_config import TopicConfig

GROUP_OFFSETS_MAX = (1 << 31) - 1
"""A segment's offsets are deltas of 31 bits from its base."""


class LogToClean(NamedTuple):
    """Cleaning begins at the log's start and learns keys in [first_dirty, first_uncleanable)."""

    log: CleanableLog
    first_dirty_offset: int
    first_uncleanable_offset: int
    clean_bytes: int
    cleanable_bytes: int
    is_overdue: bool
    """A record has waited for longer than `max.compaction.lag.ms`."""

    @property
    def dirty_ratio(self) -> float:
        total = self.clean_bytes + self.cleanable_bytes
        return self.cleanable_bytes / total if total else 0.0


def log_to_clean(log: CleanableLog, config: TopicConfig, now_ms: int) -> LogToClean:
    first_dirty = log.clean_end_offset
    if not log.log_start_offset <= first_dirty <= log.log_end_offset:
        first_dirty = log.log_start_offset
    inactive = [segment for segment in log.segments if not segment.is_active]
    dirty = [segment for segment in inactive if segment.end_offset > first_dirty]
    active = [segment.base_offset for segment in log.segments if segment.is_active]
    bounds = [log.last_stable_offset, log.log_end_offset, *active]
    lag_ms = config.min_compaction_lag_ms
    if lag_ms > 0:
        young = (one for one in dirty if one.largest_timestamp_ms > now_ms - lag_ms)
        bounds += [segment.base_offset for segment in young][:1]
    first_uncleanable = max(first_dirty, min(bounds))
    clean = sum(one.size_bytes for one in inactive if one.end_offset <= first_dirty)
    cleanable = sum(one.size_bytes for one in dirty if one.base_offset < first_uncleanable)
    stamps = [stamp for one in dirty if (stamp := log.first_batch_timestamp_ms(one)) > 0]
    is_overdue = bool(stamps) and min(stamps) < now_ms - config.max_compaction_lag_ms
    return LogToClean(log, first_dirty, first_uncleanable, clean, cleanable, is_overdue)


def dirtiest(logs: Sequence[tuple[LogToClean, TopicConfig]]) -> LogToClean | None:
    """The one to clean now, None where none is dirty enough and none is overdue."""
    candidates = [
        log
        for log, config in logs
        if log.first_uncleanable_offset > log.first_dirty_offset
        and log.cleanable_bytes > 0
        and (log.is_overdue or log.dirty_ratio > config.min_cleanable_dirty_ratio)
    ]
    return max(candidates, key=lambda log: log.dirty_ratio, default=None)


def group_by_size(
    segments: Sequence[AbstractLogSegment], segment_bytes: int
) -> list[list[AbstractLogSegment]]:
    """Neighbours that fit into one segment, so that small remains do not stay apart for ever."""
    groups: list[list[AbstractLogSegment]] = []
    size = 0
    for segment in segments:
        if (
            groups
            and size + segment.size_bytes <= segment_bytes
            and segment.end_offset - groups[-1][0].base_offset <= GROUP_OFFSETS_MAX
        ):
            groups[-1].append(segment)
            size += segment.size_bytes
        else:
            groups.append([segment])
            size = segment.size_bytes
    return groups
