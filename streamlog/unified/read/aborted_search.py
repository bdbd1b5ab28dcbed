"""Aborted transactions that a fetch has to tell its reader, from memory or a `.txnindex` file.

The search goes from the segment of the fetch's first offset on, because an entry lies in the
segment of its marker, and ends at the first entry whose last stable offset is not below the
fetch's end. Source: Kafka's UnifiedLog.collectAbortedTransactions, TransactionIndex.
"""

from __future__ import annotations

from collections.abc import Sequence

from streamlog.errors import StoreUnavailable
from streamlog.format.kafka_files.names import TXN_INDEX, file_name
from streamlog.format.kafka_files.transaction_index import AbortedTxn, decode_aborted
from streamlog.runtime.disk.folders import typed_os_error
from streamlog.runtime.disk.growing import GrowingFolder
from streamlog.runtime.offload import Lane, Offload
from streamlog.unified.disk.files import read_if_there
from streamlog.unified.state.segment import UnifiedLogSegment


async def aborted_between(
    folder: GrowingFolder,
    segments: Sequence[UnifiedLogSegment],
    offset: int,
    end_offset: int,
    offload: Offload,
) -> list[AbortedTxn]:
    """Those that have a record, or their marker, in offset (inclusive) to end_offset (exclusive).

    By their first offsets. Errors: StoreUnavailable, Corrupt, UnsupportedVersion;
    SegmentReplaced.
    """
    found: list[AbortedTxn] = []
    if offset >= end_offset:
        return found
    for segment in tuple(segments):
        if segment.end <= offset:
            continue
        entries: Sequence[AbortedTxn] | None = segment.aborted
        if entries is None:
            entries = await offload.run(Lane.READ, stored_entries, folder, segment.base_offset)
            segment.check_current()
        if _take(entries, offset, end_offset, found):
            break
    return sorted(found, key=lambda entry: entry.first_offset)


def stored_entries(folder: GrowingFolder, base_offset: int) -> list[AbortedTxn]:
    """Of the segment's file; it blocks. Errors: as of `aborted_between`."""
    name = file_name(base_offset, TXN_INDEX)
    try:
        return decode_aborted(read_if_there(folder, name) or b"")
    except OSError as error:
        raise typed_os_error(error, name, "reading", StoreUnavailable) from error


def _take(
    entries: Sequence[AbortedTxn], offset: int, end_offset: int, found: list[AbortedTxn]
) -> bool:
    """Whether all that follow begin behind the end."""
    for entry in entries:
        if entry.last_offset >= offset and entry.first_offset < end_offset:
            found.append(entry)
        if entry.last_stable_offset >= end_offset:
            return True
    return False
