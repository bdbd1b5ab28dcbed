"""Segments of a unified log, and the index entries that Kafka would make for them.

A batch gets an offset index entry when more than `index.interval.bytes` lie before it since the
last one; the time index then gets the largest timestamp so far, with the last offset of the first
batch that has it. Entries of the active segment stay in memory, packed as in the file, until the
segment is sealed or the log closed. Source: Kafka's LogSegment.append, TimeIndex.maybeAppend.
"""

from __future__ import annotations

import asyncio
from threading import Lock

from streamlog.format.kafka_files import offset_index, time_index
from streamlog.format.kafka_files.names import INDEX, LOG, TIME_INDEX, file_name
from streamlog.format.kafka_files.transaction_index import AbortedTxn
from streamlog.log.api.abstract_log import AbstractLogSegment
from streamlog.log.partition.batch_metadata import LogBatchMetadata

HINTS_MAX = 32
"""Two at most of each read: a reader that comes again after 16 others finds its place by the index,
as a slow one beside a fast one does."""
_REMEMBERING = Lock()
"""One for all segments: it is held for a microsecond."""


class SegmentReplaced(Exception):
    """What was read may be half of an old segment and half of the one that comes in its place, or
    the segment is being removed: read again when `done` ends. It never leaves the log."""

    def __init__(self, done: asyncio.Future[None]) -> None:
        super().__init__()
        self.done = done


class UnifiedLogSegment(AbstractLogSegment):
    """Batches from base_offset (inclusive) to end_offset (exclusive), in one file."""

    __slots__ = (
        "_base_offset",
        "_indexed_time",
        "_largest_offset",
        "_positions",
        "aborted",
        "bytes_since_indexed",
        "end",
        "first_timestamp",
        "is_sealed",
        "largest",
        "largest_visible",
        "last_append",
        "offsets",
        "replaced",
        "size",
        "times",
    )

    def __init__(self, base_offset: int) -> None:
        self._base_offset = base_offset
        self.end = base_offset
        self.size = 0
        self.is_sealed = False
        self.first_timestamp = -1
        """Largest timestamp of the first batch that has one; segment.ms counts from it."""
        self.largest = -1
        self.largest_visible = -1
        """The largest timestamp of durable batches."""
        self.last_append = -1
        self.bytes_since_indexed = 0
        self.offsets: bytearray | None = bytearray()
        """Offset index; None: in the file alone."""
        self.times: bytearray | None = bytearray()
        """Time index; None: in the file alone."""
        self.aborted: list[AbortedTxn] | None = []
        """Aborted transactions whose markers lie here; None: in the file alone."""
        self.replaced: asyncio.Future[None] | None = None
        """Set from when a cleaned segment begins to take this one's place, or this one to be
        removed; it ends when that is done."""
        self._largest_offset = -1
        self._indexed_time = time_index.NONE
        self._positions: dict[int, int] = {}

    @property
    def base_offset(self) -> int:
        return self._base_offset

    @property
    def end_offset(self) -> int:
        return self.end

    @property
    def size_bytes(self) -> int:
        return self.size

    @property
    def largest_timestamp_ms(self) -> int:
        return self.largest

    @property
    def last_append_ms(self) -> int:
        return self.last_append

    @property
    def is_active(self) -> bool:
        return not self.is_sealed

    @property
    def log_name(self) -> str:
        return file_name(self._base_offset, LOG)

    @property
    def index_name(self) -> str:
        return file_name(self._base_offset, INDEX)

    @property
    def time_index_name(self) -> str:
        return file_name(self._base_offset, TIME_INDEX)

    def account(
        self, base_offset: int, span: int, metadata: LogBatchMetadata, interval_bytes: int
    ) -> None:
        """Accounts for a batch at the segment's end, sequenced or found in the file."""
        assert self.offsets is not None
        assert self.times is not None
        last_offset = base_offset + span - 1
        stamp, size = metadata.max_timestamp_ms, metadata.size_bytes
        if stamp > self.largest:
            self.largest, self._largest_offset = stamp, last_offset
        if self.bytes_since_indexed > interval_bytes:
            relative = last_offset - self._base_offset
            self.offsets += offset_index.pack_entry(relative, self.size)
            self.index_time()
            self.bytes_since_indexed = 0
        if self.first_timestamp < 0:
            self.first_timestamp = stamp
        self.bytes_since_indexed += size
        self.size += size
        self.end = last_offset + 1
        self.last_append = max(self.last_append, metadata.append_time_ms)

    def index_time(self) -> None:
        """Adds the largest timestamp to the time index, unless it is there: Kafka does so with each
        entry of the offset index, and when it rolls or closes a segment."""
        assert self.times is not None
        if self.largest > self._indexed_time.timestamp_ms:
            relative = self._largest_offset - self._base_offset
            self._indexed_time = time_index.TimeEntry(self.largest, relative)
            self.times += time_index.encode_entries([self._indexed_time])

    def restore(self, offsets: bytearray, times: bytearray) -> None:
        """Takes the index entries of a segment whose batches behind them are accounted next."""
        self.offsets, self.times = offsets, times
        self._indexed_time = time_index.last_entry(times)
        self.largest = self.largest_visible = self._indexed_time.timestamp_ms
        self._largest_offset = self._base_offset + max(self._indexed_time.relative_offset, 0)

    def seal(self) -> None:
        """The segment gets no more batches."""
        self.index_time()
        self.is_sealed = True

    def drop_indexes(self) -> None:
        """The files have the entries now."""
        self.offsets = self.times = self.aborted = None

    def check_current(self) -> None:
        """Errors: SegmentReplaced."""
        if self.replaced is not None:
            raise SegmentReplaced(self.replaced)

    # Where readers go on

    def remember(self, offset: int, position: int) -> None:
        """A batch begins there: a reader that follows the last one begins at it. Threads that read
        side by side call it."""
        positions = self._positions
        with _REMEMBERING:
            positions.pop(offset, None)
            positions[offset] = position
            if len(positions) > HINTS_MAX:
                del positions[next(iter(positions))]

    def forget(self, offset: int) -> None:
        """No batch begins where it is remembered to begin."""
        with _REMEMBERING:
            self._positions.pop(offset, None)

    def position_of(self, offset: int) -> int | None:
        """Where the batch that begins at the offset lies, if it is remembered."""
        return self._positions.get(offset)
