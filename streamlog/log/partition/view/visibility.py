"""What readers of a log may see: log start offset, high watermark, last stable offset."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Generic, Protocol, TypeVar

from streamlog.log.partition.ack_queue import PendingAppend
from streamlog.log.partition.lifecycle import LogLifecycle
from streamlog.log.partition.transactions.unstable_offsets import NO_OFFSET, UnstableOffsets
from streamlog.log.partition.waiters import OffsetWaiters


class SegmentInView(Protocol):
    """`largest` is the largest timestamp, `largest_visible` that of durable batches; -1: none."""

    largest: int
    largest_visible: int

    @property
    def end_offset(self) -> int: ...


Segment = TypeVar("Segment", bound=SegmentInView)


class Visibility(Generic[Segment]):
    """The end of the way of an append: it raises the high watermark, then tells `on_advance`, which
    starts what waited for it, and wakes the long polls.

    `high_watermark` rises in offset order. `log_start_offset` is raised by deletions alone.
    `waiters` wait for the high watermark, `stable_waiters` for the last stable offset; subscribers
    are those of `waiters`, because the last stable offset moves with the high watermark only.
    """

    def __init__(
        self,
        on_advance: Callable[[int], None],
        lifecycle: LogLifecycle,
        unstable: UnstableOffsets,
        log_start_offset: int,
        high_watermark: int,
    ) -> None:
        self.log_start_offset = log_start_offset
        self.high_watermark = high_watermark
        self.waiters = OffsetWaiters()
        self.stable_waiters = OffsetWaiters()
        self._unstable = unstable
        self._on_advance = on_advance
        self._lifecycle = lifecycle
        unstable.durable(high_watermark)
        on_advance(high_watermark)

    @property
    def last_stable_offset(self) -> int:
        """Where the oldest transaction begins that is open, or whose marker is not durable; the
        high watermark without one. Records below the log start offset hold nothing back.

        It never goes back: a transaction begins at the log's end.
        """
        return max(min(self.high_watermark, self._unstable.first), self.log_start_offset)

    def acknowledge(self, appends: Sequence[PendingAppend[Segment]]) -> None:
        for pending in appends:
            segment = pending.segment
            if pending.max_timestamp_ms > segment.largest_visible:
                segment.largest_visible = pending.max_timestamp_ms
        self._advance(appends[-1].end_offset)

    def show_attached(self, segments: Iterable[Segment], end_offset: int) -> None:
        """Shows staged batches that a commit has attached up to the log's end."""
        for segment in segments:
            if segment.end_offset > self.high_watermark:
                segment.largest_visible = segment.largest
        self._advance(end_offset)

    def raise_start(self, log_start_offset: int) -> None:
        """The records before the offset are deleted."""
        self.log_start_offset = log_start_offset
        self.waiters.notify()
        if self.stable_waiters:
            self.stable_waiters.advance(self.last_stable_offset)

    def release(self) -> None:
        """Wakes everybody who waits, because the log has ended."""
        self.waiters.release()
        self.stable_waiters.release()

    def _advance(self, end_offset: int) -> None:
        self.high_watermark = end_offset
        if self._unstable.first != NO_OFFSET:
            self._unstable.durable(end_offset)
        self._on_advance(end_offset)
        self.waiters.advance(end_offset)
        if self.stable_waiters:
            self.stable_waiters.advance(self.last_stable_offset)

    async def wait_durable(self, end_offset: int) -> int:
        """Returns the offset when all data before it is durable. Errors: why the log ended."""
        if self.high_watermark < end_offset:
            # The waiters of a log that has ended were released; a later one would wait for ever.
            self._lifecycle.check_open()
            await self.waiters.wait(end_offset - 1)
            self._lifecycle.check_open()
        return end_offset
