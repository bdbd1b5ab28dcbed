"""Which transactions of a producer snapshot have ended although no marker says so.

A cleaning removes the marker of a transaction of which no batch is left, or leaves its header
alone. A replay from a snapshot of before, in which the transaction is open, does not meet its end,
and the transaction would hold the last stable offset back for good. A Kafka does not replay so far
back: its snapshots are those of the newest segments. Here they may be damaged.

1. Cleanings go up to the last stable offset, so that the first batch of an open transaction is
   there. Where it is missing the transaction has ended. Where the log's beginning was deleted with
   it, a clean end behind both tells the same.
2. A marker that is behind the snapshot ends the transaction in the replay: batches of it may be
   left, and only so the replay tells of all of them that they were aborted.
3. Without a marker there is none of its batches left, and those behind the snapshot are of later
   transactions.

It blocks: call it through Offload.
"""

from __future__ import annotations

from collections.abc import Sequence

from streamlog.log.partition.producer_state_entry import ProducerStateEntry
from streamlog.runtime.disk.growing import GrowingFolder
from streamlog.unified.recovery.aborted_check import batch_with, begins_transaction
from streamlog.unified.recovery.scan import batches
from streamlog.unified.recovery.snapshots import FoundSnapshot
from streamlog.unified.state.segment import UnifiedLogSegment


def without_ended(
    folder: GrowingFolder,
    segments: Sequence[UnifiedLogSegment],
    found: FoundSnapshot,
    log_start_offset: int,
    clean_end_offset: int,
) -> list[ProducerStateEntry]:
    """The snapshot's producers, without the transactions that have ended. Errors: OSError."""
    start = max(log_start_offset, segments[0].base_offset)

    def is_cleaned(entry: ProducerStateEntry) -> bool:
        first_offset = entry.txn_first_offset
        if first_offset < start:
            return max(first_offset, log_start_offset) < clean_end_offset
        batch = batch_with(folder, segments, first_offset)
        return batch is None or not begins_transaction(batch[0], entry.producer_id, first_offset)

    ended = {
        entry.producer_id
        for entry in found.entries
        if entry.txn_first_offset >= 0 and is_cleaned(entry)
    }
    if ended:
        ended -= _with_markers(folder, segments, found.offset)
    return [
        entry._replace(txn_first_offset=-1) if entry.producer_id in ended else entry
        for entry in found.entries
    ]


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
