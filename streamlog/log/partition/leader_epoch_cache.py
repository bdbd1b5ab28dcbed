"""Which leader epoch begins at which offset (Kafka's LeaderEpochFileCache). Pure.

Entries rise in epoch and in start offset. Source: KIP-101, KIP-279.
"""

from __future__ import annotations

from bisect import bisect_right

from streamlog.log.api.abstract_log import EpochEndOffset

UNDEFINED = EpochEndOffset(-1, -1)


class LeaderEpochCache:
    def __init__(self) -> None:
        self.entries: list[tuple[int, int]] = []
        """(epoch, start offset)."""

    @property
    def latest(self) -> int:
        """-1 where there is none."""
        return self.entries[-1][0] if self.entries else -1

    def assign(self, epoch: int, start_offset: int) -> bool:
        """Begins `epoch` at start_offset; entries with a higher or equal epoch or offset go.

        False, and nothing changes, if this epoch has begun already at or before the offset.
        """
        if self.entries and self.entries[-1][0] == epoch and self.entries[-1][1] <= start_offset:
            return False
        while self.entries and (
            self.entries[-1][0] >= epoch or self.entries[-1][1] >= start_offset
        ):
            self.entries.pop()
        self.entries.append((epoch, start_offset))
        return True

    def end_offset_for(self, epoch: int, log_end_offset: int) -> EpochEndOffset:
        """The largest epoch in the cache that is ≤ `epoch`, and where it ends.

        Above the latest: undefined. The latest: the log's end. Below the first: (epoch, start of
        the first).
        """
        if not self.entries or epoch > self.latest or epoch < 0:
            return UNDEFINED
        if epoch == self.latest:
            return EpochEndOffset(epoch, log_end_offset)
        following = bisect_right(self.entries, epoch, key=lambda entry: entry[0])
        largest = self.entries[following - 1][0] if following else epoch
        return EpochEndOffset(largest, self.entries[following][1])

    def epoch_at(self, offset: int) -> int:
        """The epoch of the record at `offset`; -1 if the cache does not have it."""
        following = bisect_right(self.entries, offset, key=lambda entry: entry[1])
        return self.entries[following - 1][0] if following else -1

    def raise_start(self, log_start_offset: int) -> None:
        """Forgets epochs that end at or before the start; the epoch around it begins there."""
        following = bisect_right(self.entries, log_start_offset, key=lambda entry: entry[1])
        if following:
            self.entries[:following] = [(self.entries[following - 1][0], log_start_offset)]

    def truncate_end(self, end_offset: int) -> bool:
        """Forgets epochs that begin at or past the end; True if an epoch began past it."""
        is_past = bool(self.entries) and self.entries[-1][1] > end_offset
        while self.entries and self.entries[-1][1] >= end_offset and is_past:
            self.entries.pop()
        return is_past
