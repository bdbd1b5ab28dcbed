"""Whether aborted transactions, as a segment's file tells them, are what its batches say.

A transaction index has no CRC, and a wrong entry shows aborted records to readers of committed
ones, or hides committed ones. So each entry is compared with two batches: the ABORT marker where it
ends, and the producer's first batch, unless that was cleaned or deleted. What nobody notices: whole
entries that are missing at the end, as in Kafka, and an entry that begins with a later batch of its
transaction. It blocks: call it through Offload.
"""

from __future__ import annotations

from collections.abc import Sequence

from streamlog.codec.batch import BatchHeader
from streamlog.codec.control import ControlType, decode_end_marker
from streamlog.errors import StreamlogError
from streamlog.format.kafka_files import offset_index
from streamlog.format.kafka_files.transaction_index import AbortedTxn
from streamlog.runtime.disk.growing import GrowingFolder
from streamlog.unified.disk.files import read_if_there
from streamlog.unified.recovery.scan import header_with
from streamlog.unified.state.segment import UnifiedLogSegment


def is_sound(entries: Sequence[AbortedTxn], base_offset: int, end_offset: int, floor: int) -> bool:
    """Whether the entries can be those of a segment with these offsets. `floor`: the last stable
    offset of the entry before them. It never goes back, and no transaction begins below it; one
    that began later and ended sooner than another has a last stable offset below its beginning."""
    last = base_offset - 1
    for entry in entries:
        if (
            entry.producer_id < 0
            or not last < entry.last_offset < end_offset
            or not floor <= entry.first_offset <= entry.last_offset
            or not floor <= entry.last_stable_offset <= entry.last_offset + 1
        ):
            return False
        last, floor = entry.last_offset, entry.last_stable_offset
    return True


class AbortedCheck:
    """`segments` in order; their files are read as far as an entry asks for it."""

    def __init__(self, folder: GrowingFolder, segments: Sequence[UnifiedLogSegment]) -> None:
        self._folder = folder
        self._segments = segments

    def is_true(self, entry: AbortedTxn) -> bool:
        """Errors: OSError."""
        marker = batch_with(self._folder, self._segments, entry.last_offset)
        if marker is None or marker[0].producer_id != entry.producer_id:
            return False
        try:
            found = decode_end_marker(marker[1]) if marker[0].is_control else None
        except StreamlogError:
            return False
        if found is None or found.control_type is not ControlType.ABORT:
            return False
        first = batch_with(self._folder, self._segments, entry.first_offset)
        if first is None or first[0].base_offset > entry.first_offset:
            return True
        return begins_transaction(first[0], entry.producer_id, entry.first_offset)


def begins_transaction(header: BatchHeader, producer_id: int, first_offset: int) -> bool:
    """Whether the batch can be the first one of that transaction."""
    return (
        header.base_offset == first_offset
        and header.producer_id == producer_id
        and header.is_transactional
        and not header.is_control
    )


def batch_with(
    folder: GrowingFolder, segments: Sequence[UnifiedLogSegment], offset: int
) -> tuple[BatchHeader, bytes] | None:
    """The first batch that ends at or behind the offset, in the segment with the offset. Errors:
    OSError."""
    segment = next((one for one in segments if offset < one.end), None)
    if segment is None or offset < segment.base_offset:
        return None
    entries = segment.offsets
    if entries is None:
        entries = bytearray(read_if_there(folder, segment.index_name) or b"")
    entry = offset_index.floor_entry(entries, offset - segment.base_offset)
    file = folder.open(segment.log_name)
    try:
        return header_with(file, 0 if entry is None else entry.position, offset)
    finally:
        file.close()
