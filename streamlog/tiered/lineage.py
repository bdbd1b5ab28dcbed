"""How a log and what the metadata has of its remote segments fit together when it is opened."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

from streamlog.errors import Corrupt
from streamlog.log.api.tiering import TierableLog
from streamlog.tiered.api.metadata_manager import RemoteLogMetadataManager
from streamlog.tiered.api.segments import RemoteLogSegmentMetadata, TopicIdPartition

logger = logging.getLogger(__name__)


async def highest_copied(
    log: TierableLog,
    partition: TopicIdPartition,
    finished: Sequence[RemoteLogSegmentMetadata],
    metadata: RemoteLogMetadataManager,
) -> int:
    """The last offset that was copied of the log's own epochs; -1: none was. Errors: Unavailable,
    Corrupt."""
    highest = -1
    for epoch, _ in reversed(log.leader_epochs):
        copied = await metadata.highest_offset_for_epoch(partition, epoch)
        if copied is not None:
            end = log.end_offset_for_epoch(epoch).end_offset
            highest = min(copied, end - 1) if end >= 0 else copied
            break
    # A manager may remember more than there is, and what is local may be all that is left: of a
    # tier that was turned off and on again.
    return min(highest, max((one.end_offset for one in finished), default=-1))


async def check_start(
    log: TierableLog, partition: TopicIdPartition, finished: Sequence[RemoteLogSegmentMetadata]
) -> None:
    """The log begins where its lineage does, in one tier or the other. Where no metadata names a
    segment of it, it keeps its start: a start never goes back, also when metadata is put back.

    Errors: Unavailable, Corrupt (local records that were copied are lost).
    """
    last = max((one.end_offset for one in finished), default=-1)
    if last >= log.log_end_offset:
        raise Corrupt(
            f"{log.topic_partition} ends at offset {log.log_end_offset} in the log folder, and "
            f"its remote tier has offsets up to {last}: the folder has lost records, and new "
            "ones would take their offsets. Put the newest folder back, or delete the topic",
            object_key=str(partition),
            start=log.log_end_offset,
            end=last + 1,
        )
    own = [one.start_offset for one in _found_by_readers(log, finished)]
    start = min([*own, log.local_log_start_offset])
    if own and log.log_start_offset < start:
        await log.raise_start(start)


def _found_by_readers(
    log: TierableLog, finished: Sequence[RemoteLogSegmentMetadata]
) -> list[RemoteLogSegmentMetadata]:
    """Others nobody finds: a reader asks by the log's own epochs."""
    epochs = {epoch for epoch, _ in log.leader_epochs}
    return [one for one in finished if not epochs.isdisjoint(one.epochs)]


def lost_offsets(
    log: TierableLog, finished: Sequence[RemoteLogSegmentMetadata]
) -> tuple[int, int] | None:
    """The first offsets (end exclusive) that are in neither tier; they are logged."""
    own = _found_by_readers(log, finished)
    lost = missing_offsets(own, log.log_start_offset, log.local_log_start_offset)
    if lost is not None:
        logger.error(
            "%s has offsets %d to %d in neither tier: no metadata names a remote segment of them. "
            "If metadata was lost, put it back and start the node again; to give them up, raise "
            "the log start to %d",
            log.topic_partition,
            lost[0],
            lost[1] - 1,
            lost[1],
        )
    return lost


def missing_offsets(
    segments: Iterable[RemoteLogSegmentMetadata], log_start_offset: int, local_log_start_offset: int
) -> tuple[int, int] | None:
    """The first range (end exclusive) between the two starts that no segment has.

    Where segments come and go meanwhile, the caller reads the local start before it lists them, and
    the log start behind that: a segment is named before the local one goes, and the log start is
    raised before its name goes.
    """
    covered = log_start_offset
    for one in sorted(segments, key=lambda one: one.start_offset):
        if covered < min(one.start_offset, local_log_start_offset):
            return covered, min(one.start_offset, local_log_start_offset)
        covered = max(covered, one.end_offset + 1)
    return (covered, local_log_start_offset) if covered < local_log_start_offset else None


def restore_epochs(log: TierableLog, finished: Sequence[RemoteLogSegmentMetadata]) -> None:
    """A log whose file of leader epochs was damaged knows those of its own batches alone, and would
    find nothing in the tier."""
    first_epoch, first_offset = (log.leader_epochs or ((1 << 31, 1 << 62),))[0]
    if first_offset <= log.log_start_offset:
        return
    older: dict[int, int] = {}
    for one in finished:
        for epoch in one.epochs:
            begin = one.segment_leader_epochs[epoch]
            if epoch <= first_epoch and begin < first_offset:
                older[epoch] = min(older.get(epoch, begin), begin)
    if older:
        log.restore_epochs(sorted(older.items()))
