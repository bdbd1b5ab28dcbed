"""Segments of a shared log: a record of the meta stream maps each onto slices of streams."""

from __future__ import annotations

from streamlog.log.api.abstract_log import AbstractLogSegment
from streamlog.log.partition.batch_metadata import LogBatchMetadata
from streamlog.log.shared.aborted.segment_aborted import SegmentAborted
from streamlog.log.shared.meta.codec import SegmentOpened, SegmentSealed
from streamlog.log.shared.state.segment_time_index import SegmentTimeIndex
from streamlog.model.batch import StreamSlice
from streamlog.model.stream import Stream

NO_TIMESTAMP = -1


class LogEnd:
    """Where a log ends: behind the last batch of its data stream, provisional batches included."""

    __slots__ = ("_data", "_shift")

    def __init__(self, data: Stream, shift: int) -> None:
        self._data = data
        self._shift = shift

    @property
    def offset(self) -> int:
        return self._data.next_offset - self._shift


class SharedLogSegment(AbstractLogSegment):
    """Offset o of the log is offset o + data_shift of stream data_stream_id."""

    __slots__ = (
        "_base_offset",
        "_end_offset",
        "_log_end",
        "aborted",
        "created_ms",
        "data",
        "first_timestamp",
        "largest",
        "largest_visible",
        "last_append",
        "size",
        "time",
        "time_index",
        "txn",
    )

    def __init__(self, opened: SegmentOpened, log_end: LogEnd) -> None:
        self._base_offset = opened.base_offset
        self._end_offset: int | None = None
        self._log_end = log_end
        self.created_ms = opened.created_ms
        self.data = opened.data
        self.time = opened.time
        self.txn = opened.txn
        self.time_index = SegmentTimeIndex(opened.time.start_offset, opened.time.start_offset)
        txn_start = opened.txn.start_offset
        self.aborted = SegmentAborted(txn_start, txn_start, opened.base_offset)
        self.size = 0
        self.first_timestamp = NO_TIMESTAMP
        """Largest timestamp of the first batch that has one; segment.ms counts from it."""
        self.largest = NO_TIMESTAMP
        self.largest_visible = NO_TIMESTAMP
        """The largest timestamp of durable batches."""
        self.last_append = NO_TIMESTAMP

    @classmethod
    def of_sealed(cls, sealed: SegmentSealed, log_end: LogEnd) -> SharedLogSegment:
        opened = SegmentOpened(sealed.base_offset, 0, sealed.data, sealed.time, sealed.txn)
        segment = cls(opened, log_end)
        segment._end_offset = sealed.end_offset
        segment.time_index.stored_end = sealed.time.end_offset
        segment.aborted.stored_end = sealed.txn.end_offset
        segment.aborted.stored_below = sealed.end_offset
        segment.size = sealed.size_bytes
        segment.first_timestamp = sealed.first_timestamp_ms
        segment.largest = segment.largest_visible = sealed.largest_timestamp_ms
        segment.last_append = sealed.last_append_ms
        return segment

    @property
    def base_offset(self) -> int:
        return self._base_offset

    @property
    def end_offset(self) -> int:
        return self._log_end.offset if self._end_offset is None else self._end_offset

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
        return self._end_offset is None

    @property
    def data_shift(self) -> int:
        return self.data.start_offset - self._base_offset

    def account(
        self, base_offset: int, span: int, metadata: LogBatchMetadata, interval_bytes: int
    ) -> None:
        """Accounts for a batch that has been sequenced."""
        self.size += metadata.size_bytes
        self.last_append = metadata.append_time_ms
        if self.first_timestamp == NO_TIMESTAMP:
            self.first_timestamp = metadata.max_timestamp_ms
        if metadata.max_timestamp_ms > self.largest:
            self.largest = metadata.max_timestamp_ms
        self.time_index.account(
            base_offset + span - 1 - self._base_offset,
            metadata.max_timestamp_ms,
            metadata.size_bytes,
            interval_bytes,
        )

    def seal(self, end_offset: int) -> SegmentSealed:
        """Ends the segment; returns the record of it."""
        self._end_offset = end_offset
        shift = self.data_shift
        self.data = StreamSlice(self.data.stream_id, self.data.start_offset, end_offset + shift)
        self.time = StreamSlice(self.time.stream_id, self.time.start_offset, self.time_index.end)
        self.txn = StreamSlice(self.txn.stream_id, self.txn.start_offset, self.aborted.end)
        return SegmentSealed(
            self._base_offset,
            end_offset,
            self.size,
            self.first_timestamp,
            self.largest,
            self.last_append,
            self.data,
            self.time,
            self.txn,
        )
