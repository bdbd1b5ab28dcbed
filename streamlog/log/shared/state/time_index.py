"""The time index of one segment: entries in the time stream, and those on their way there.

Entry, 12 bytes, big-endian: timestamp i64, relative offset i32. It means: no record of the segment
up to base offset + relative offset has a later timestamp. Timestamps and offsets rise from entry to
entry. An entry is one record of the time stream; entries are appended by the hundred, at
checkpoints.

Entries are sparse (`index.interval.bytes`); between two entries a search reads the attributes of
the data stream.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from struct import Struct
from typing import NamedTuple

from streamlog.errors import Corrupt
from streamlog.model.stream import Stream
from streamlog.runtime.buffers import Buffer, join

ENTRY_BYTES = 12
_ENTRY = Struct(">qi")


class TimeEntry(NamedTuple):
    timestamp_ms: int
    relative_offset: int


def encode_entries(entries: Sequence[TimeEntry]) -> bytes:
    return b"".join(_ENTRY.pack(*entry) for entry in entries)


def decode_entries(data: Buffer) -> list[TimeEntry]:
    """Errors: Corrupt."""
    if len(data) % ENTRY_BYTES:
        raise Corrupt(f"time index entries of {len(data)} bytes are not whole")
    return [TimeEntry._make(fields) for fields in _ENTRY.iter_unpack(data)]


NONE = TimeEntry(-1, -1)


@dataclass(slots=True)
class SegmentTimeIndex:
    """Entries [start, stored_end) of the time stream, then `unstored`.

    `last` is the newest entry. `max_timestamp_ms` and `bytes_since` lead to the next one.
    """

    start: int
    stored_end: int
    unstored: list[TimeEntry] = field(default_factory=list)
    taken: int = 0
    """How many of the oldest unstored entries are on their way to the stream."""
    last: TimeEntry = NONE
    max_timestamp_ms: int = -1
    bytes_since: int = 0

    @property
    def end(self) -> int:
        """The time stream's offset behind the newest entry, stored or not."""
        return self.stored_end + len(self.unstored)

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

    def take(self) -> list[TimeEntry]:
        """Takes the entries that were not taken before; the caller stores them in this order."""
        entries = self.unstored[self.taken :]
        self.taken = len(self.unstored)
        return entries

    def stored(self, count: int) -> None:
        """The oldest `count` unstored entries are durable."""
        del self.unstored[:count]
        self.taken -= count
        self.stored_end += count

    async def around(
        self, stream: Stream, timestamp_ms: int
    ) -> tuple[TimeEntry | None, TimeEntry | None]:
        """The last entry before the timestamp and the first one at or after it.

        O(log n) fetches: each reads one stored batch of entries.
        """
        unstored = list(self.unstored)
        below, above = await self._around_stored(stream, timestamp_ms)
        if above is not None:
            return below, above
        index = bisect_left(unstored, timestamp_ms, key=lambda entry: entry.timestamp_ms)
        if index:
            below = unstored[index - 1]
        return below, unstored[index] if index < len(unstored) else None

    async def _around_stored(
        self, stream: Stream, timestamp_ms: int
    ) -> tuple[TimeEntry | None, TimeEntry | None]:
        below: TimeEntry | None = None
        above: TimeEntry | None = None
        low, high = self.start, self.stored_end
        while low < high:
            middle = (low + high) // 2
            (batch,) = (await stream.fetch(middle, middle + 1, 1)).batches
            first, end = max(low, batch.base_offset), min(high, batch.end_offset)
            entries = decode_entries(join(batch.parts))[
                first - batch.base_offset : end - batch.base_offset
            ]
            index = bisect_left(entries, timestamp_ms, key=lambda entry: entry.timestamp_ms)
            if index:
                below = entries[index - 1]
                low = end
            if index < len(entries):
                above = entries[index]
                high = first
        return below, above
