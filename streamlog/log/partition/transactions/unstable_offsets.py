"""Where the transactions begin that hold the last stable offset back. Pure.

A transaction holds it from its first batch on until its marker is durable. It costs one entry,
however many batches it has and however long it stays open.

Source: Kafka's ProducerStateManager (ongoingTxns, unreplicatedTxns).
"""

from __future__ import annotations

from collections import deque

NO_OFFSET = (1 << 63) - 1
"""Greater than every offset."""


class UnstableOffsets:
    def __init__(self) -> None:
        self.first = NO_OFFSET
        """The lowest of all first offsets; NO_OFFSET without transactions."""
        self._first_offsets: dict[int, None] = {}
        """Rising: a transaction begins at the end of the log."""
        self._ending: deque[tuple[int, int]] = deque()
        """(end of the marker, first offset), in the order of the markers."""

    def __len__(self) -> int:
        return len(self._first_offsets)

    def begin(self, first_offset: int) -> None:
        """A transaction begins, behind all others."""
        self._first_offsets[first_offset] = None
        self.first = min(self.first, first_offset)

    def end(self, first_offset: int, marker_end: int) -> None:
        """The transaction's marker has been sequenced: it counts until `durable` passes its end."""
        self._ending.append((marker_end, first_offset))

    def durable(self, end_offset: int) -> None:
        """All data before the offset is durable."""
        ending = self._ending
        if not ending or ending[0][0] > end_offset:
            return
        while ending and ending[0][0] <= end_offset:
            del self._first_offsets[ending.popleft()[1]]
        self.first = next(iter(self._first_offsets), NO_OFFSET)
