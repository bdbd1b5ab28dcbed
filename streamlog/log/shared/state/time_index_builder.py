"""The time index of one segment, as any kind of log keeps it (Kafka's TimeIndex). No I/O.

Entry, 12 bytes, big-endian: timestamp i64, relative offset i32. It means: no record of the segment
up to base offset + relative offset has a later timestamp. Timestamps and offsets rise from entry to
entry. Entries are sparse (`index.interval.bytes`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from struct import Struct
from typing import NamedTuple

from streamlog.errors import Corrupt
from streamlog.runtime.buffers import Buffer

ENTRY_BYTES = 12
_ENTRY = Struct(">qi")


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


@dataclass(slots=True)
class TimeIndexBuilder:
    """Makes the entries of a segment from its batches.

    `last` is the newest entry. `max_timestamp_ms` and `bytes_since` lead to the next one.
    """

    unstored: list[TimeEntry] = field(default_factory=list, init=False)
    """The entries that are not durable yet."""
    last: TimeEntry = field(default=NONE, init=False)
    max_timestamp_ms: int = field(default=-1, init=False)
    bytes_since: int = field(default=0, init=False)

    def account(
        self, relative_offset: int, timestamp_ms: int, size_bytes: int, interval_bytes: int
    ) -> None:
        """Accounts for a batch that ends at the offset; adds an entry after enough bytes."""
        self.max_timestamp_ms = max(self.max_timestamp_ms, timestamp_ms)
        self.bytes_since += size_bytes
        if (
            self.bytes_since > interval_bytes
            and self.max_timestamp_ms > self.last.timestamp_ms
            and relative_offset > self.last.relative_offset
        ):
            self.last = TimeEntry(self.max_timestamp_ms, relative_offset)
            self.unstored.append(self.last)
            self.bytes_since = 0
