"""Whether a closed segment's file ends where the segment does. It blocks: call it through
Offload."""

from __future__ import annotations

from streamlog.format.kafka_files import offset_index
from streamlog.runtime.disk.growing import GrowingFile, GrowingFolder
from streamlog.unified.recovery.scan import batches, header_at
from streamlog.unified.state.segment import UnifiedLogSegment


def lost_from(folder: GrowingFolder, segment: UnifiedLogSegment) -> int | None:
    """The first offset that the file lacks at its end; None: it lacks none.

    An open takes the file's size, and the next segment's beginning, for the segment's end: a file
    that lost its end while the log was closed shows it by its last batch alone. What lies behind
    the last entry of the offset index is looked through. Errors: OSError.
    """
    index = folder.open_to_read(segment.index_name)
    try:
        entry = index.read(max(0, index.size() - offset_index.ENTRY_BYTES), index.size())
    finally:
        index.close()
    file = folder.open_to_read(segment.log_name)
    try:
        position, end = _indexed(segment, file, entry) if entry else (0, segment.base_offset)
        for batch in batches(file, position, end, verify=False):
            position = batch.position + batch.header.size_bytes
            end = batch.header.next_offset
        is_whole = position == file.size() and end >= segment.end
    finally:
        file.close()
    return None if is_whole else end


def _indexed(segment: UnifiedLogSegment, file: GrowingFile, entry: bytes) -> tuple[int, int]:
    """Position and base offset of the batch that the entry names; the file's first where it names
    none."""
    named = offset_index.entry_at(entry, 0)
    header = header_at(file, named.position)
    if header is None or header.next_offset != segment.base_offset + named.offset + 1:
        return 0, segment.base_offset
    return named.position, header.base_offset
