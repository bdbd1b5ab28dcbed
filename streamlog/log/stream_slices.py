"""The sections of streams that hold a window of a log's offsets."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from streamlog.format.kafka_files.transaction_index import AbortedTxn
from streamlog.model.batch import StreamSlice


class Segment(Protocol):
    """A segment whose records lie in a stream."""

    @property
    def base_offset(self) -> int: ...
    @property
    def end_offset(self) -> int: ...
    @property
    def size_bytes(self) -> int: ...
    @property
    def data(self) -> StreamSlice: ...


@dataclass(frozen=True, slots=True)
class LogSlice:
    """Offsets start to end (exclusive) of the log are those + `shift` of the stream.

    `size_bytes` is about the size of the record batches.
    """

    stream_id: int
    shift: int
    start: int
    end: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class SlicesView:
    """Where the records of a log lie at one moment.

    A cleaning may put other slices in the place of these meanwhile, with other aborted
    transactions: what goes together has to come from one view. Its slices can be read within
    `kept()`, which begins in the step that takes the view, for `file.delete.delay.ms` from then on,
    or under a pin.
    """

    segments: Sequence[Segment]
    aborted_in: Callable[[int, int], Awaitable[Sequence[AbortedTxn]]]
    kept: Callable[[], AbstractContextManager[None]]

    def slices(self, start: int, end: int) -> list[LogSlice]:
        """The slices that hold offsets start (inclusive) to end (exclusive), in order."""
        return slices(self.segments, start, end)

    async def aborted(self, start: int, end: int) -> Sequence[AbortedTxn]:
        """The aborted transactions that have a record, or their marker, in start (inclusive) to end
        (exclusive), by their first offsets. Errors: those of a fetch."""
        return await self.aborted_in(start, end)


@runtime_checkable
class LiesOnStreams(Protocol):
    """A log whose records can be read from streams, past its node."""

    def slices_view(self) -> SlicesView:
        """Of the log's present end; it costs by the segments."""
        ...


def slices(segments: Iterable[Segment], start: int, end: int) -> list[LogSlice]:
    """The slices in order; neighbours on one stream are joined."""
    joined: list[LogSlice] = []
    for segment in segments:
        base, segment_end = segment.base_offset, segment.end_offset
        low, high = max(start, base), min(end, segment_end)
        if low >= high:
            continue
        shift = segment.data.start_offset - base
        size = segment.size_bytes * (high - low) // (segment_end - base)
        last = joined[-1] if joined else None
        if (
            last is not None
            and (last.stream_id, last.shift) == (segment.data.stream_id, shift)
            and last.end == low
        ):
            size += last.size_bytes
            joined[-1] = LogSlice(last.stream_id, shift, last.start, high, size)
        else:
            joined.append(LogSlice(segment.data.stream_id, shift, low, high, size))
    return joined
