"""The time index of a segment: 12 bytes an entry, big-endian: timestamp i64, relative offset i32.

It means: no record of the segment up to its first offset + relative offset has a later timestamp.
Timestamps and offsets rise from entry to entry. Entries are sparse (`index.interval.bytes`). In
Kafka's files the offset is the last one of the batch with that timestamp, and the last entry of a
closed segment has the largest timestamp of all. Source: Kafka's TimeIndex.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from struct import Struct
from typing import NamedTuple

from streamlog.errors import Corrupt
from streamlog.runtime.buffers import Buffer

ENTRY_BYTES = 12
_ENTRY = Struct(">qi")
_unpack_from = _ENTRY.unpack_from


class TimeEntry(NamedTuple):
    timestamp_ms: int
    relative_offset: int


NONE = TimeEntry(-1, -1)


def encode_entries(entries: Sequence[TimeEntry]) -> bytes:
    return b"".join(_ENTRY.pack(*entry) for entry in entries)


def decode_entries(data: Buffer) -> list[TimeEntry]:
    """Errors: Corrupt."""
    if len(data) % ENTRY_BYTES:
        raise Corrupt(f"time index entries of {len(data)} bytes are not whole")
    return [TimeEntry._make(fields) for fields in _ENTRY.iter_unpack(data)]


def entry_at_or_after(entries: Sequence[TimeEntry], timestamp_ms: int) -> int:
    """The index of the first entry at or after the timestamp; the length if there is none."""
    return bisect_left(entries, timestamp_ms, key=lambda entry: entry.timestamp_ms)


def last_entry(data: Buffer) -> TimeEntry:
    """NONE where there is no entry."""
    count = len(data) // ENTRY_BYTES
    return TimeEntry._make(_unpack_from(data, (count - 1) * ENTRY_BYTES)) if count else NONE


def floor_time(data: Buffer, timestamp_ms: int) -> TimeEntry | None:
    """The last entry at or before the timestamp, of packed entries."""
    count = len(data) // ENTRY_BYTES
    found = bisect_right(range(count), timestamp_ms, key=lambda at: _unpack_from(data, at * 12)[0])
    return TimeEntry._make(_unpack_from(data, (found - 1) * ENTRY_BYTES)) if found else None


def sound_times(data: Buffer, below_offset: int) -> int:
    """Bytes of the entries that rise and point below the relative offset."""
    count = len(data) // ENTRY_BYTES
    last = NONE
    for index in range(count):
        entry = TimeEntry._make(_unpack_from(data, index * ENTRY_BYTES))
        is_rising = entry.timestamp_ms > last.timestamp_ms
        if not is_rising or not last.relative_offset <= entry.relative_offset < below_offset:
            return index * ENTRY_BYTES
        last = entry
    return count * ENTRY_BYTES
