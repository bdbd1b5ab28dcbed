"""A cleaned segment of a shared log on its way to take the place of old ones.

1. Batches go to a stream of their own, at the places that their offsets have in the segment: a
   batch takes the offsets of those that went before it, so that the stream has no gap, and a fetch
   of such an offset finds the next batch that is left, as in Kafka. Where none is left at the
   segment's end, or before the last stable offset, a header without records stands for them: else
   what is read up to that offset would have a batch of a transaction that is open.
2. Entries of the time index and of aborted transactions follow, when all data is durable.
3. One meta record switches the segments. Until then nobody knows of what was written; given up, it
   goes with the slices before it, once a later cleaning has replaced these.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeVar

from streamlog.codec.batch import (
    HEADER_BYTES,
    LENGTH_END,
    BatchHeader,
    pack_header,
    resealed,
    scan,
)
from streamlog.codec.control import ControlType, EndMarker, decode_end_marker
from streamlog.errors import Invalid, StreamlogError
from streamlog.format.kafka_files.time_index import ENTRY_BYTES, encode_entries
from streamlog.format.kafka_files.transaction_index import ENTRY_BYTES as ABORTED_BYTES
from streamlog.format.kafka_files.transaction_index import AbortedTxn
from streamlog.log.api.abstract_log import AbstractLogSegment
from streamlog.log.api.cleaning import SegmentReplacement
from streamlog.log.partition.batch_metadata import LogBatchMetadata, encode_batch_metadata
from streamlog.log.shared.aborted.aborted_batch import aborted_batch
from streamlog.log.shared.meta.codec import SegmentSealed
from streamlog.log.shared.state.segment import NO_TIMESTAMP, SharedLogSegment
from streamlog.log.shared.state.time_index_builder import TimeIndexBuilder
from streamlog.model.batch import AppendContext, AppendResult, Priority, RecordBatch, StreamSlice
from streamlog.model.stream import Stream
from streamlog.runtime.buffers import Buffer

PENDING_BYTES_MAX = 4 << 20
"""Bytes of batches that are not durable yet. More: a faster cleaning over a slow store, and more of
the room that appends of producers wait for."""
APPEND = AppendContext(priority=Priority.BACKGROUND)

Entry = TypeVar("Entry")


class SwitchesSegments(Protocol):
    """The log whose segments are replaced."""

    async def switch(self, old: Sequence[SharedLogSegment], new: SegmentSealed) -> None:
        """As SegmentReplacement.commit; the slices of `new` are durable."""
        ...

    def cleaning_ended(self, unanswered: Sequence[Awaitable[AppendResult]]) -> None:
        """The slices of the replacement are named, or given up: they need no protection. Some
        appends may have no answer yet."""
        ...

    def cleaning_failed(self, error: StreamlogError) -> None:
        """A stream refused a batch of the cleaning."""
        ...


class SharedReplacement(SegmentReplacement):
    """`streams`: data, time, txn, which nobody else appends to. `aborted`: transactions whose
    markers lie in the old segments. `leader_epoch`: of the old segments' last offset."""

    def __init__(
        self,
        owner: SwitchesSegments,
        streams: tuple[Stream, Stream, Stream],
        old: Sequence[SharedLogSegment],
        aborted: Sequence[AbortedTxn],
        *,
        leader_epoch: int,
        last_stable_offset: int,
        interval_bytes: int,
        entry_bytes_max: int,
    ) -> None:
        self._owner = owner
        self._data, self._time, self._txn = streams
        self._old = list(old)
        self._aborted = {entry.last_offset: entry for entry in aborted}
        self._kept_aborted: list[AbortedTxn] = []
        self._leader_epoch = leader_epoch
        self._last_stable_offset = last_stable_offset
        self._interval_bytes = interval_bytes
        self._entry_bytes_max = entry_bytes_max
        self._base, self._end = old[0].base_offset, old[-1].end_offset
        self._next = self._base
        """Log offset behind the last batch."""
        self._data_start: int | None = None
        self._unanswered: deque[tuple[Awaitable[AppendResult], int]] = deque()
        """Appends in order, with their sizes."""
        self._pending_bytes = 0
        self._size = 0
        self._first = self._largest = NO_TIMESTAMP
        self._times = TimeIndexBuilder()
        self._is_over = False

    async def append(self, batches: Buffer) -> None:
        self._check_going_on()
        for batch in scan(batches, verify_crc=False):
            header = batch.header
            if self._next < header.base_offset >= self._last_stable_offset:
                await self._put_none(header.base_offset, header.leader_epoch)
            is_marker = header.is_control and header.record_count
            marker = decode_end_marker(batch.view) if is_marker else None
            await self._put(header, batch.view, marker)

    async def _put(self, header: BatchHeader, data: Buffer, marker: EndMarker | None) -> None:
        end = header.base_offset + header.last_offset_delta + 1
        if not self._next <= header.base_offset < end <= self._end:
            raise Invalid(
                f"a batch of a cleaning has offsets {header.base_offset} to {end}, behind "
                f"{self._next} and before {self._end} it must lie"
            )
        stamp = header.max_timestamp_ms if header.record_count else NO_TIMESTAMP
        metadata = LogBatchMetadata.of(
            header,
            leader_epoch=header.leader_epoch,
            append_time_ms=stamp if header.is_log_append_time else NO_TIMESTAMP,
            max_timestamp_ms=stamp,
            marker=marker,
        )
        size = len(data)
        answer = self._data.append(
            RecordBatch(end - self._next, stamp, (data,), encode_batch_metadata(metadata)), APPEND
        )
        self._unanswered.append((answer, size))
        self._pending_bytes += size
        self._next = end
        self._size += size
        self._first = stamp if self._first == NO_TIMESTAMP else self._first
        self._largest = max(self._largest, stamp)
        self._times.account(end - 1 - self._base, stamp, size, self._interval_bytes)
        entry = self._aborted.get(header.base_offset)
        if entry is not None and marker is not None and marker.control_type is ControlType.ABORT:
            self._kept_aborted.append(entry)
        while self._pending_bytes > PENDING_BYTES_MAX:
            await self._answered()

    async def _answered(self) -> None:
        """Waits until the oldest append is durable."""
        answer, size = self._unanswered[0]
        try:
            base_offset = (await answer).base_offset
        except StreamlogError as error:
            self._owner.cleaning_failed(error)
            raise
        self._unanswered.popleft()
        self._pending_bytes -= size
        if self._data_start is None:
            self._data_start = base_offset

    async def commit(self) -> None:
        """As SegmentReplacement.commit."""
        self._check_going_on()
        if self._next < self._end:
            await self._put_none(self._end, self._leader_epoch)
        while self._unanswered:
            await self._answered()
        assert self._data_start is not None
        data_end = self._data_start + self._end - self._base
        new = SegmentSealed(
            self._base,
            self._end,
            self._size,
            self._first,
            self._largest,
            max(segment.last_append for segment in self._old),
            StreamSlice(self._data.stream_id, self._data_start, data_end),
            await self._stored(
                self._time,
                self._times.unstored,
                ENTRY_BYTES,
                lambda entries: RecordBatch(
                    len(entries), entries[0].timestamp_ms, (encode_entries(entries),)
                ),
            ),
            await self._stored(self._txn, self._kept_aborted, ABORTED_BYTES, aborted_batch),
        )
        await self._owner.switch(self._old, new)
        self._end_it()

    async def _put_none(self, end: int, leader_epoch: int) -> None:
        """A header without records from the last batch's end to `end`, as cleanings leave them."""
        header = BatchHeader(
            base_offset=self._next,
            length=HEADER_BYTES - LENGTH_END,
            leader_epoch=leader_epoch,
            magic=2,
            crc=0,
            attributes=0,
            last_offset_delta=end - self._next - 1,
            base_timestamp_ms=NO_TIMESTAMP,
            max_timestamp_ms=NO_TIMESTAMP,
            producer_id=-1,
            producer_epoch=-1,
            base_sequence=-1,
            record_count=0,
        )
        await self._put(header, bytes(resealed(bytearray(pack_header(header)))), None)

    async def _stored(
        self,
        stream: Stream,
        entries: Sequence[Entry],
        entry_bytes: int,
        batch_of: Callable[[Sequence[Entry]], RecordBatch],
    ) -> StreamSlice:
        start: int | None = None
        room = max(1, self._entry_bytes_max // entry_bytes)
        for low in range(0, len(entries), room):
            try:
                answer = await stream.append(batch_of(entries[low : low + room]), APPEND)
            except StreamlogError as error:
                self._owner.cleaning_failed(error)
                raise
            start = answer.base_offset if start is None else start
        if start is None:
            # Durable, unlike the end of what a cleaning that was given up may still append.
            start = stream.confirm_offset
        return StreamSlice(stream.stream_id, start, start + len(entries))

    async def abandon(self) -> None:
        if not self._is_over:
            self._end_it()

    def _end_it(self) -> None:
        self._is_over = True
        self._owner.cleaning_ended([answer for answer, _ in self._unanswered])

    def _check_going_on(self) -> None:
        if self._is_over:
            raise Invalid("the replacement was committed or abandoned already")


def replaceable(
    segments: Sequence[SharedLogSegment], old: Sequence[AbstractLogSegment]
) -> list[SharedLogSegment]:
    """The old ones as the log's own. Errors: Invalid."""
    wanted = {id(one) for one in old}
    places = [index for index, one in enumerate(segments) if id(one) in wanted]
    found = [segments[index] for index in places]
    is_row = len(found) == len(old) > 0 and places[-1] - places[0] == len(places) - 1
    if not is_row or any(one.is_active for one in found):
        raise Invalid("segments that are replaced are neighbours, inactive, and still the log's")
    return found
