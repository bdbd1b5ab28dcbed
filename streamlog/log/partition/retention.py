"""Which of a log's oldest segments are expired. Pure.

1. Start offset: the segment lies below the log start offset.
2. Bytes: the excess over `retention.bytes` covers the whole segment.
3. Ms: its newest record is older than `retention.ms`.

The last two are those of `cleanup.policy=delete`. Where a remote tier takes copies, they have the
limits of the local part (`local.retention.*`), and a segment that is not copied stays: the tier's
own limits say how long the copy does. Each rule takes a prefix of the segments that the
rules before it left; what a cleaning has emptied, and has no age, keeps none behind it. A segment
whose end is not durable stays, and so does an empty active segment.
Source: Kafka's UnifiedLog.deleteOldSegments.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from streamlog.log.api.abstract_log import AbstractLog, AbstractLogSegment
from streamlog.log.api.topic_config import TopicConfig

UNLIMITED = -1
BELOW_START = "start_offset"
"""The reason of the first rule, which asks no tier."""


class Expired(NamedTuple):
    """Segments that end at or before end_offset are expired, for the reason."""

    end_offset: int
    reason: str


def expired(
    log: AbstractLog, config: TopicConfig, now_ms: int, copied_end: int = 0
) -> list[Expired]:
    """In the order of their ends. `copied_end`: end (exclusive) of what the remote tier has."""
    left = [segment for segment in log.segments if _may_go(segment, log.high_watermark)]
    steps: list[Expired] = []
    start = log.log_start_offset
    rules: list[tuple[str, Callable[[AbstractLogSegment], bool]]] = [
        (BELOW_START, lambda segment: segment.end_offset <= start)
    ]
    has_limits = config.is_deleted_by_age
    limit_bytes, limit_ms = config.local_limits
    if has_limits and limit_bytes != UNLIMITED:
        rules.append(("bytes", _size_rule(log, limit_bytes, start)))
    if has_limits and limit_ms != UNLIMITED:
        rules.append(("ms", lambda segment: _is_old(segment, now_ms, limit_ms)))
    for reason, is_expired in rules:
        if config.is_copied and reason != BELOW_START:
            left = [segment for segment in left if segment.end_offset <= copied_end]
        count = _prefix(left, is_expired)
        if count:
            steps.append(Expired(left[count - 1].end_offset, reason))
            del left[:count]
    return steps


def is_roll_due(log: AbstractLog, config: TopicConfig, now_ms: int) -> bool:
    """Whether the active segment is past a limit of the local part, once `expired` was carried out.

    The remote tier takes closed segments alone: a log that nothing is appended to any more would
    keep its last records here without end.
    """
    active = log.segments[-1]
    has_limits = config.is_copied and config.is_deleted_by_age
    if not has_limits or len(log.segments) > 1 or not _may_go(active, log.high_watermark):
        return False
    limit_bytes, limit_ms = config.local_limits
    is_too_much = limit_bytes == 0
    return is_too_much or (limit_ms != UNLIMITED and _is_old(active, now_ms, limit_ms))


def _may_go(segment: AbstractLogSegment, high_watermark: int) -> bool:
    is_empty = segment.end_offset == segment.base_offset
    return segment.end_offset <= high_watermark and not (segment.is_active and is_empty)


def _size_rule(
    log: AbstractLog, retention_bytes: int, start: int
) -> Callable[[AbstractLogSegment], bool]:
    excess = -retention_bytes + sum(
        segment.size_bytes for segment in log.segments if segment.end_offset > start
    )

    def is_expired(segment: AbstractLogSegment) -> bool:
        nonlocal excess
        if excess < segment.size_bytes or excess <= 0:
            return False
        excess -= segment.size_bytes
        return True

    return is_expired


def _is_old(segment: AbstractLogSegment, now_ms: int, retention_ms: int) -> bool:
    newest = segment.largest_timestamp_ms
    if newest < 0:
        newest = segment.last_append_ms
    return newest >= 0 and now_ms - newest > retention_ms


def _prefix(
    segments: Sequence[AbstractLogSegment], is_expired: Callable[[AbstractLogSegment], bool]
) -> int:
    """How many of the first ones are expired; those of no bytes go with an expired one behind."""
    count = 0
    for number, segment in enumerate(segments, 1):
        if is_expired(segment):
            count = number
        elif segment.size_bytes:
            break
    return count
