"""The time index of a shared log's segment: entries in the time stream, and those on their way.

An entry is one record of the time stream; entries are appended by the hundred, at checkpoints.
Between two entries a search reads the attributes of the data stream.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from streamlog.format.kafka_files.time_index import (
    TimeEntry,
    decode_entries,
    entry_at_or_after,
)
from streamlog.log.shared.state.time_index_builder import TimeIndexBuilder
from streamlog.model.stream import Stream
from streamlog.runtime.buffers import join


@dataclass(slots=True)
class SegmentTimeIndex(TimeIndexBuilder):
    """Entries [start, stored_end) of the time stream, then `unstored`."""

    start: int
    stored_end: int
    taken: int = field(default=0, init=False)
    """How many of the oldest unstored entries are on their way to the stream."""

    @property
    def end(self) -> int:
        """The time stream's offset behind the newest entry, stored or not."""
        return self.stored_end + len(self.unstored)

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
        index = entry_at_or_after(unstored, timestamp_ms)
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
            index = entry_at_or_after(entries, timestamp_ms)
            if index:
                below = entries[index - 1]
                low = end
            if index < len(entries):
                above = entries[index]
                high = first
        return below, above
