"""Makes the time index of one segment of a shared log from its batches. No I/O.

An entry has the offset of the batch that made it due; a reader searches behind it. Kafka's own
files, whose entries have the offset of the latest timestamp, are made in `unified`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from streamlog.format.kafka_files.time_index import NONE, TimeEntry


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
        if timestamp_ms > self.max_timestamp_ms:
            self.max_timestamp_ms = timestamp_ms
        self.bytes_since += size_bytes
        if (
            self.bytes_since > interval_bytes
            and self.max_timestamp_ms > self.last.timestamp_ms
            and relative_offset > self.last.relative_offset
        ):
            self.last = TimeEntry(self.max_timestamp_ms, relative_offset)
            self.unstored.append(self.last)
            self.bytes_since = 0
