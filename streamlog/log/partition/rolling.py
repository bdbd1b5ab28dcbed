"""When a log begins a new segment: by size, event time, or 31 bits of offset. Pure.

Source: Kafka's LogSegment.shouldRoll.
"""

from __future__ import annotations

from typing import Protocol

from streamlog.log.api.topic_config import INT32_MAX, TopicConfig


class ActiveSegment(Protocol):
    """`first_timestamp`: the largest one of the first batch that has one; -1: none has."""

    size: int
    first_timestamp: int

    @property
    def base_offset(self) -> int: ...


def should_roll(
    active: ActiveSegment,
    last_offset: int,
    size_bytes: int,
    max_timestamp_ms: int,
    config: TopicConfig,
    jitter: float,
) -> bool:
    """Whether a batch that ends at last_offset (inclusive) needs a new segment.

    `jitter`, 0 to 1, takes its share of `segment.jitter.ms` from `segment.ms`.
    """
    if active.size == 0:
        return False
    if active.size + size_bytes > config.segment_bytes:
        return True
    if last_offset - active.base_offset > INT32_MAX:
        return True
    limit_ms = config.segment_ms - int(
        jitter * min(config.segment_jitter_ms, config.segment_ms - 1)
    )
    first = active.first_timestamp
    return first >= 0 and max_timestamp_ms >= 0 and max_timestamp_ms - first > limit_ms
