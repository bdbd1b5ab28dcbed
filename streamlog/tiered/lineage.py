"""How a log and what the metadata has of its remote segments fit together when it is opened."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence

from streamlog.errors import Corrupt
from streamlog.log.api.tiering import TierableLog
from streamlog.tiered.api.segments import RemoteLogSegmentMetadata, TopicIdPartition

logger = logging.getLogger(__name__)


def highest_copied(log: TierableLog, finished: Sequence[RemoteLogSegmentMetadata]) -> int:
    """The last offset up to which the tier has all that is local; -1: it has nothing.

    It ends at the first gap: a local segment goes when it lies below, and one in a gap is all that
    there is of its records. What lies behind a gap is copied again; the new copies take the place
    of the old ones, which stay named and expire with them.
    """
    highest, covered = -1, log.local_log_start_offset
    for start, end in sorted(_ranges_of_readers(log, finished)):
        if start > covered:
            break
        highest, covered = max(highest, end), max(covered, end + 1)
    return highest


def _ranges_of_readers(
    log: TierableLog, finished: Sequence[RemoteLogSegmentMetadata]
) -> Iterator[tuple[int, int]]:
    """Offsets (end inclusive) that the segments have of the log's own epochs: a reader asks by the
    epoch that the log has for the offset."""
    firsts = dict(log.leader_epochs)
    for one in finished:
        for epoch in one.epochs:
            if epoch in firsts:
                start = max(firsts[epoch], one.segment_leader_epochs[epoch])
                last = log.end_offset_for_epoch(epoch).end_offset - 1
                end = min(last, one.end_offset_of_epoch(epoch))
                if start <= end:
                    yield start, end


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
