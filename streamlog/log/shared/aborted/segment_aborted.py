"""The aborted transactions whose markers lie in one segment of a shared log.

An entry is one record of the txn stream; entries are appended at checkpoints, like those of the
time index. Entries of one segment are in the order of their markers.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from streamlog.format.kafka_files.transaction_index import AbortedTxn


@dataclass(slots=True)
class SegmentAborted:
    """Entries [start, stored_end) of the txn stream, then `unstored`."""

    start: int
    stored_end: int
    stored_below: int
    """Markers of the stored entries lie below this offset of the log."""
    unstored: list[AbortedTxn] = field(default_factory=list, init=False)
    """The entries that are not durable yet."""
    taken: int = field(default=0, init=False)
    """How many of the oldest unstored entries are on their way to the stream."""

    @property
    def end(self) -> int:
        """The txn stream's offset behind the newest entry, stored or not."""
        return self.stored_end + len(self.unstored)

    def take(self) -> list[AbortedTxn]:
        """Takes the entries that were not taken before; the caller stores them in this order."""
        entries = self.unstored[self.taken :]
        self.taken = len(self.unstored)
        return entries

    def stored(self, count: int) -> None:
        """The oldest `count` unstored entries are durable."""
        if count:
            self.stored_below = self.unstored[count - 1].last_offset + 1
        del self.unstored[:count]
        self.taken -= count
        self.stored_end += count

    def found_stored(self, count: int) -> None:
        """As `stored`, for entries that nobody took: recovery has made them again."""
        self.taken += count
        self.stored(count)
