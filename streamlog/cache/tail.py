"""The newest batches of each stream, kept in memory from the moment they are sequenced.

1. `StreamTail.push` at sequencing: the batch is *held*; nothing drops it.
2. `TailCache.committed` after its commit to the store: the batch may be dropped. The oldest batch
   of all streams is dropped first.
3. Committed batches are dropped while held and committed bytes together exceed the bound. So the
   cache shrinks while many appends are under way, and memory stays flat.

A stream's tail has no gap and ends at the stream's next offset.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Sequence

from streamlog.format.entry import StreamEntry

READ_BATCHES_MAX = 512
"""Batches of one read: about 1 ms of the event loop for all that is done with them."""
_COMPACT_AT = 64
"""Dropped slots at a list's head before the list is cut; keeps dropping O(1) on average."""


class StreamTail:
    """One stream's newest batches: offsets `first` (inclusive) to `end` (exclusive)."""

    __slots__ = ("_bases", "_cache", "_entries", "_head", "end")

    def __init__(self, cache: TailCache, end: int) -> None:
        self._cache = cache
        self._bases: list[int] = []
        self._entries: list[StreamEntry] = []
        self._head = 0
        self.end = end

    @property
    def first(self) -> int:
        """First offset in memory; `end` when there is none."""
        return self._bases[self._head] if self._head < len(self._bases) else self.end

    def push(self, entry: StreamEntry, size_bytes: int) -> None:
        """Adds the batch at `end`."""
        base = entry.base_offset
        self._bases.append(base)
        self._entries.append(entry)
        self.end = base + entry.record_count
        self._cache.hold(size_bytes)

    def push_run(self, entries: Sequence[StreamEntry], size_bytes: int) -> None:
        """Adds batches that follow one another, at least one, at `end`; their size together."""
        self._bases += [entry.base_offset for entry in entries]
        self._entries += entries
        self.end = entries[-1].end_offset
        self._cache.hold(size_bytes, len(entries))

    def read(
        self, start: int, end: int, max_bytes: int, batches_max: int = READ_BATCHES_MAX
    ) -> list[StreamEntry]:
        """Batches from the one that contains `start` (≥ first), until `end`, `max_bytes` or
        `batches_max`."""
        batches: list[StreamEntry] = []
        size = 0
        entries = self._entries
        first = bisect_right(self._bases, start, self._head) - 1
        for index in range(first, min(len(entries), first + batches_max)):
            entry = entries[index]
            if entry.base_offset >= end or (batches and size + entry.size_bytes > max_bytes):
                break
            batches.append(entry)
            size += entry.size_bytes
        return batches

    def drop(self, entry: StreamEntry) -> None:
        """Forgets the batch if it is the oldest one here."""
        head = self._head
        if head < len(self._entries) and self._entries[head] is entry:
            self._head = head = head + 1
            if head == len(self._entries):
                self._bases.clear()
                self._entries.clear()
                self._head = 0
            elif head >= _COMPACT_AT and head * 2 >= len(self._entries):
                del self._bases[:head]
                del self._entries[:head]
                self._head = 0
            else:
                # The slot must not keep the payload alive.
                self._entries[head - 1] = _DROPPED

    def clear(self) -> None:
        """Forgets all batches; for a stream that was lost or destroyed."""
        self._bases.clear()
        self._entries.clear()
        self._head = 0


_DROPPED = StreamEntry(0, 0, 0, 0, 0, (), b"", 0)


class TailCache:
    """The byte bound that all tails share; each batch counts with `batch_overhead_bytes` more."""

    def __init__(self, bound_bytes: int, batch_overhead_bytes: int = 0) -> None:
        self.bound_bytes = bound_bytes
        self.held_bytes = 0
        """Payload of held batches."""
        self.committed_bytes = 0
        """Payload of committed batches, which may be dropped."""
        self._held = 0
        self._overhead_bytes = batch_overhead_bytes
        self._committed: deque[tuple[StreamTail, StreamEntry, int]] = deque()

    def tail(self, next_offset: int) -> StreamTail:
        """An empty tail that ends at next_offset."""
        return StreamTail(self, next_offset)

    @property
    def held_batches(self) -> int:
        """Held batches, those without payload included."""
        return self._held

    @property
    def memory_bytes(self) -> int:
        """The size that the bound limits."""
        overhead = (self._held + len(self._committed)) * self._overhead_bytes
        return self.held_bytes + self.committed_bytes + overhead

    def hold(self, size_bytes: int, batches: int = 1) -> None:
        """Batches were sequenced."""
        self.held_bytes += size_bytes
        self._held += batches

    def committed(self, batches: Iterable[tuple[StreamTail, StreamEntry, int]]) -> None:
        """Tail, batch and bytes as pushed, of batches that were committed or never will be."""
        queue = self._committed
        size, count = 0, -len(queue)
        for batch in batches:
            queue.append(batch)
            size += batch[2]
        self._held -= count + len(queue)
        self.held_bytes -= size
        self.committed_bytes += size
        excess = self.memory_bytes - self.bound_bytes
        while queue and excess > 0:
            tail, entry, size_bytes = queue.popleft()
            tail.drop(entry)
            self.committed_bytes -= size_bytes
            excess -= size_bytes + self._overhead_bytes
