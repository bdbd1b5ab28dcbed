"""Which remote segments have expired. Pure.

1. Start offset: the segment lies below the log start offset.
2. Bytes: the whole log, both tiers, exceeds `retention.bytes` by the segment and more.
3. Ms: its newest record is older than `retention.ms`.

Only segments of the log's own leader epochs count, each record once: those of the tier up to the
highest offset that was copied, and behind it the local ones, whatever the tier has there. The first
that is still being copied, or lies behind that offset, ends the search. Segments below the log's
start whose epochs all lie below its first have lost their reader, whatever the others. Source:
Kafka's RemoteLogManager.RLMExpirationTask.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from streamlog.log.api.tiering import TierableLog
from streamlog.log.partition.retention import UNLIMITED
from streamlog.tiered.api.segments import RemoteLogSegmentMetadata, RemoteLogSegmentState

_FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
_STARTED = RemoteLogSegmentState.COPY_SEGMENT_STARTED
_DELETING = RemoteLogSegmentState.DELETE_SEGMENT_STARTED


class RemoteExpiry(NamedTuple):
    """`log_start_offset`: where the log has to begin before the segments go; -1: as it does."""

    segments: list[RemoteLogSegmentMetadata]
    log_start_offset: int


def in_lineage(log: TierableLog, segment: RemoteLogSegmentMetadata) -> bool:
    """Whether every epoch of the segment is the log's, at the same offsets."""
    entries = list(log.leader_epochs)
    if not entries:
        return False
    first_epoch, first_offset = entries[0]
    starts = dict(entries)
    ends = {epoch: entries[i + 1][1] for i, (epoch, _) in enumerate(entries[:-1])}
    for epoch in segment.epochs:
        begin = segment.segment_leader_epochs[epoch]
        end = segment.end_offset_of_epoch(epoch)
        if epoch < first_epoch:
            continue  # Records that were deleted; the log forgets their epochs.
        if epoch not in starts or (begin < starts[epoch] and begin >= first_offset):
            return False
        if epoch in ends and end >= ends[epoch]:
            return False
    return segment.epochs[-1] >= first_epoch


def expired_segments(
    log: TierableLog,
    segments: Sequence[RemoteLogSegmentMetadata],
    highest_offset: int,
    now_ms: int,
) -> RemoteExpiry:
    """`segments`: all of the partition, by start offset. Those whose deletion has begun are among
    the result."""
    config = log.topic_config
    expired = [one for one in segments if one.state is _DELETING]
    own = [one for one in segments if one.state is not _DELETING and in_lineage(log, one)]
    first_epoch = log.leader_epochs[0][0] if log.leader_epochs else 0
    expired += [
        one
        for one in segments
        if one.state is _FINISHED
        and one.epochs[-1] < first_epoch
        and one.end_offset < log.log_start_offset
    ]
    excess = -1
    if config.retention_bytes != UNLIMITED:
        remote = _bytes_once([one for one in own if one.start_offset <= highest_offset])
        local = sum(one.size_bytes for one in log.segments if one.end_offset - 1 > highest_offset)
        excess = remote + local - config.retention_bytes
    start, found_start = log.log_start_offset, -1
    for one in own:
        if one.state is _STARTED:
            break
        is_below = one.end_offset < start
        is_too_much = excess >= one.segment_size_bytes > 0
        is_old = (
            config.retention_ms != UNLIMITED
            and 0 <= one.max_timestamp_ms <= now_ms - config.retention_ms
        )
        counts = one.start_offset <= highest_offset
        if not (is_below or (counts and (is_too_much or is_old))):
            break
        excess -= one.segment_size_bytes
        expired.append(one)
        if one.end_offset + 1 > max(start, found_start):
            found_start = one.end_offset + 1
    return RemoteExpiry(expired, found_start)


def _bytes_once(segments: Sequence[RemoteLogSegmentMetadata]) -> int:
    """Bytes of their records, each record once, where two leaders copied the same ones: of a
    segment that others overlap the share of its offsets that none before it has."""
    found, end = 0, -1
    for one in segments:
        if one.state is not _FINISHED or one.end_offset <= end:
            continue
        offsets = one.end_offset - one.start_offset + 1
        found += (
            one.segment_size_bytes * (one.end_offset - max(end, one.start_offset - 1)) // offsets
        )
        end = one.end_offset
    return found
