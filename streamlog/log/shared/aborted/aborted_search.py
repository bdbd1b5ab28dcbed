"""Finds the aborted transactions that a fetch has to tell its reader.

1. Segments are searched from the one with the fetch's first offset on, because an entry lies in the
   segment of its marker. One without entries costs nothing.
2. A reader that is past all stored entries is answered from memory. Else the txn stream is searched
   by bisection for the first marker at or after the fetch's offset; what was read of it is kept, a
   few pages, so that the next fetch of the same reader finds its entries there.
3. The search ends at the first entry whose last stable offset is not below the end of what the
   fetch returns: later entries begin there or behind it.

Source: Kafka's UnifiedLog.collectAbortedTransactions, TransactionIndex.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import NamedTuple, Protocol

from streamlog.format.kafka_files.transaction_index import (
    ENTRY_BYTES,
    AbortedTxn,
    decode_aborted,
)
from streamlog.model.batch import FetchContext, StreamSlice
from streamlog.model.stream import Stream
from streamlog.runtime.buffers import Buffer, join

PAGE_BYTES = 64 << 10
PAGES_KEPT = 4


class AbortedOfSegment(Protocol):
    """Entries [start, stored_end) of the txn stream, with markers below an offset of the log; then
    `unstored`."""

    @property
    def start(self) -> int: ...
    @property
    def stored_end(self) -> int: ...
    @property
    def stored_below(self) -> int: ...
    @property
    def unstored(self) -> Sequence[AbortedTxn]: ...
    @property
    def end(self) -> int: ...


class SegmentWithAborted(Protocol):
    @property
    def base_offset(self) -> int: ...
    @property
    def txn(self) -> StreamSlice: ...
    @property
    def aborted(self) -> AbortedOfSegment: ...


class _Page(NamedTuple):
    """Consecutive entries of a stream, packed: the first is its record `start`."""

    stream_id: int
    start: int
    data: Buffer

    @property
    def end(self) -> int:
        return self.start + len(self.data) // ENTRY_BYTES

    def entries(self, start: int, end: int) -> list[AbortedTxn]:
        """Those of the stream's records start (inclusive) to end (exclusive)."""
        low, high = start - self.start, min(end, self.end) - self.start
        return decode_aborted(memoryview(self.data)[low * ENTRY_BYTES : high * ENTRY_BYTES])

    def marker_at(self, position: int) -> int:
        """Last offset of the entry that is the stream's record `position`."""
        return self.entries(position, position + 1)[0].last_offset

    def first_from(self, offset: int, start: int, end: int) -> int:
        """The first record in the range, and on this page, whose marker is not below the offset;
        where the range ends on this page if there is none."""
        low, high = max(start, self.start), min(end, self.end)
        return low + bisect_left(range(low, high), offset, key=self.marker_at)


class AbortedSearch:
    """Of one log. `streams` by id."""

    def __init__(self, streams: Mapping[int, Stream]) -> None:
        self._streams = streams
        self._pages: list[_Page] = []
        """The most recently used last."""

    async def overlapping(
        self,
        segments: Sequence[SegmentWithAborted],
        offset: int,
        end_offset: int,
        deadline: float | None,
    ) -> Sequence[AbortedTxn]:
        """Those that have a record, or their marker, in offset (inclusive) to end_offset
        (exclusive), by their first offsets.

        `segments` are the log's, and may lose the first ones meanwhile. Errors: those of
        Stream.fetch, Corrupt, UnsupportedVersion.
        """
        if offset >= end_offset:
            return ()
        found: list[AbortedTxn] = []
        for segment in _with_entries(segments, offset):
            if await self._collect(segment, offset, end_offset, deadline, found):
                break
        found.sort(key=_first_offset)
        return found

    async def _collect(
        self,
        segment: SegmentWithAborted,
        offset: int,
        end_offset: int,
        deadline: float | None,
        found: list[AbortedTxn],
    ) -> bool:
        """Adds the segment's entries to `found`; whether no later segment has any."""
        aborted = segment.aborted
        position, stored_end = aborted.start, aborted.stored_end
        unstored: Sequence[AbortedTxn] = aborted.unstored
        if position < stored_end and offset < aborted.stored_below:
            # They may become stored while the stream is read.
            unstored = tuple(unstored)
            stream = self._streams[segment.txn.stream_id]
            context = FetchContext(deadline=deadline, is_catch_up=True)
            position = await self._first_from(stream, position, stored_end, offset, context)
            while position < stored_end:
                page = await self._page(stream, position, stored_end, context)
                if _take(page.entries(position, stored_end), end_offset, found):
                    return True
                position = page.end
        first = bisect_left(unstored, offset, key=_marker)
        return _take(islice(unstored, first, None), end_offset, found)

    async def _first_from(
        self, stream: Stream, start: int, end: int, offset: int, context: FetchContext
    ) -> int:
        """The first record of the stream in the range whose marker is not below the offset."""
        for page in reversed(self._pages):
            if page.stream_id != stream.stream_id or page.end <= start or page.start >= end:
                continue
            position = page.first_from(offset, start, end)
            # It is the first of all only where the page also has one before it, or none is.
            is_after = position > page.start or position == start
            is_before = position < page.end or position == end
            if is_after and is_before:
                return position
        low, high = start, end
        while low < high:
            page = await self._page(stream, (low + high) // 2, end, context)
            position = page.first_from(offset, low, high)
            if position >= min(high, page.end):
                low = position
            elif position > max(low, page.start):
                return position
            else:
                high = position
        return low

    async def _page(self, stream: Stream, position: int, end: int, context: FetchContext) -> _Page:
        """A page with the stream's record at the position."""
        for index, page in enumerate(self._pages):
            if page.stream_id == stream.stream_id and page.start <= position < page.end:
                self._pages.append(self._pages.pop(index))
                return page
        batches = (await stream.fetch(position, end, PAGE_BYTES, context)).batches
        data = b"".join(join(batch.parts) for batch in batches)
        page = _Page(stream.stream_id, batches[0].base_offset, data)
        self._pages.append(page)
        del self._pages[:-PAGES_KEPT]
        return page


def _with_entries(
    segments: Sequence[SegmentWithAborted], offset: int
) -> Sequence[SegmentWithAborted]:
    """Segments from that of the offset on; none where they have no entry."""
    index = _index_of(segments, offset)
    first, last = segments[index], segments[-1]
    if first.txn.stream_id == last.txn.stream_id and first.aborted.start == last.aborted.end:
        return ()
    return [
        segment
        for segment in islice(segments, index, None)
        if segment.aborted.end > segment.aborted.start
    ]


def _index_of(segments: Sequence[SegmentWithAborted], offset: int) -> int:
    """Of the segment with the offset; of the first, where that is gone."""
    last = len(segments) - 1
    if segments[last].base_offset <= offset:
        return last
    after = bisect_right(segments, offset, key=lambda segment: segment.base_offset)
    return max(after - 1, 0)


def _take(entries: Iterable[AbortedTxn], end_offset: int, found: list[AbortedTxn]) -> bool:
    """Adds those that begin before the end; whether all that follow begin behind it."""
    for entry in entries:
        if entry.first_offset < end_offset:
            found.append(entry)
        if entry.last_stable_offset >= end_offset:
            return True
    return False


def _marker(entry: AbortedTxn) -> int:
    return entry.last_offset


def _first_offset(entry: AbortedTxn) -> int:
    return entry.first_offset
