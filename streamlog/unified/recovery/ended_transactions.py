"""Which transactions of a producer snapshot have ended although no marker says so.

A cleaning removes the marker of a transaction of which no batch is left, or leaves its header
alone. A replay from a snapshot of before, in which the transaction is open, does not meet its end,
and the transaction would hold the last stable offset back for good. A Kafka does not replay so far
back: its snapshots are those of the newest segments. Here they may be damaged.

1. Cleanings go up to the last stable offset: a transaction that began before the clean end, and not
   before a log start where that end may have begun anew, has ended. To hold back what has ended is
   a smaller evil than to show what has not, so that its first batch has to be missing as well, in a
   segment whose batches are sound up to there.
2. A marker that is behind the snapshot ends the transaction in the replay: batches of it may be
   left, and only so the replay tells of all of them that they were aborted.
3. Without a marker there is none of its batches left, and those behind the snapshot are of later
   transactions.

It blocks: call it through Offload.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence

from streamlog.codec.batch import BatchHeader
from streamlog.log.partition.producer_state_entry import ProducerStateEntry
from streamlog.runtime.disk.growing import GrowingFolder
from streamlog.unified.recovery.aborted_check import batch_with, begins_transaction
from streamlog.unified.recovery.scan import batches
from streamlog.unified.recovery.snapshots import FoundSnapshot
from streamlog.unified.state.segment import UnifiedLogSegment

log = logging.getLogger(__name__)


def without_ended(
    folder: GrowingFolder,
    segments: Sequence[UnifiedLogSegment],
    found: FoundSnapshot,
    log_start_offset: int,
    clean_end_offset: int,
) -> list[ProducerStateEntry]:
    """The snapshot's producers, without the transactions that have ended. Errors: OSError."""
    start = max(log_start_offset, segments[0].base_offset)
    old = [
        entry
        for entry in found.entries
        if entry.txn_first_offset >= 0 and max(entry.txn_first_offset, start) < clean_end_offset
    ]
    ended = {entry.producer_id for entry in old if entry.txn_first_offset < start}
    ended |= _missing(folder, segments, [one for one in old if one.txn_first_offset >= start])
    if ended:
        ended -= _with_markers(folder, segments, found.offset)
    for entry in found.entries:
        if entry.producer_id in ended:
            log.warning(
                "%s: the transaction that producer %d began at offset %d counts as ended: a "
                "cleaning up to offset %d has removed its first batch and its marker",
                folder,
                entry.producer_id,
                entry.txn_first_offset,
                clean_end_offset,
            )
    return [
        entry._replace(txn_first_offset=-1) if entry.producer_id in ended else entry
        for entry in found.entries
    ]


def _missing(
    folder: GrowingFolder,
    segments: Sequence[UnifiedLogSegment],
    entries: Sequence[ProducerStateEntry],
) -> set[int]:
    """Producers of the transactions whose first batch is certainly not there. An index has no CRC,
    so that one is asked for a yes alone; the others of a segment cost one scan of it."""
    missing: set[int] = set()
    asked = sorted(
        (entry for entry in entries if not _is_indexed(folder, segments, entry)),
        key=lambda entry: entry.txn_first_offset,
    )
    for segment in segments:
        inside = [one for one in asked if one.txn_first_offset < segment.end]
        del asked[: len(inside)]
        if inside:
            missing |= _missing_in(folder, segment, inside)
    return missing


def _is_indexed(
    folder: GrowingFolder, segments: Sequence[UnifiedLogSegment], entry: ProducerStateEntry
) -> bool:
    likely = batch_with(folder, segments, entry.txn_first_offset)
    return likely is not None and _begins(likely[0], entry)


def _missing_in(
    folder: GrowingFolder, segment: UnifiedLogSegment, entries: Sequence[ProducerStateEntry]
) -> set[int]:
    """`entries` in the order of their first batches, all of which would be in the segment."""
    missing: set[int] = set()
    left = deque(entries)
    file, end = folder.open(segment.log_name), 0
    try:
        for batch in batches(file, 0, segment.base_offset, verify=True):
            while left and batch.header.last_offset >= left[0].txn_first_offset:
                entry = left.popleft()
                if not _begins(batch.header, entry):
                    missing.add(entry.producer_id)
            if not left:
                return missing
            end = batch.position + batch.header.size_bytes
    finally:
        file.close()
    if end == segment.size:
        missing.update(entry.producer_id for entry in left)
    return missing


def _begins(header: BatchHeader, entry: ProducerStateEntry) -> bool:
    return begins_transaction(header, entry.producer_id, entry.txn_first_offset)


def _with_markers(
    folder: GrowingFolder, segments: Sequence[UnifiedLogSegment], start: int
) -> set[int]:
    """Producers of the markers from the offset on that a cleaning has not emptied."""
    producers: set[int] = set()
    for segment in segments:
        if segment.end <= start:
            continue
        file = folder.open(segment.log_name)
        try:
            for batch in batches(file, 0, segment.base_offset, verify=False):
                header = batch.header
                if header.is_control and header.record_count and header.base_offset >= start:
                    producers.add(header.producer_id)
        finally:
            file.close()
    return producers
