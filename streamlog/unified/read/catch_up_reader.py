"""Has readers that are far behind give way to appends and to readers of the newest records.

A read is near the end where less than `NEAR_BYTES` follow, whether its bytes are in memory or not:
what a reader far behind costs others is mostly its answers and its client, and most of what a disk
has is in the page cache of a large machine. RFC 15 has the figures.
"""

from __future__ import annotations

from streamlog.log.api.batch_reader import BatchRun
from streamlog.runtime.buffers import parts_size
from streamlog.runtime.concurrency.catch_up_throttle import ReadThrottle
from streamlog.unified.read.segment_reader import SegmentFileReader

NEAR_BYTES = 32 << 20
"""How far behind the end a consumer may be that keeps up with its producers, and does not wait."""
END_BYTES = 1 << 20
"""Reads with less than this behind them are foreground I/O: their reader has caught up."""


class CatchUpReader:
    """A BatchReader for one fetch of a log, with a deadline (monotonic seconds; None: none)."""

    def __init__(
        self, reader: SegmentFileReader, throttle: ReadThrottle, deadline: float | None
    ) -> None:
        self._reader = reader
        self._throttle = throttle
        self._deadline = deadline

    async def read(
        self, offset: int, end_offset: int, max_bytes: int, *, is_required: bool
    ) -> BatchRun:
        """As BatchReader.read. Errors: as of SegmentFileReader.read; why the log has ended."""
        reader, throttle = self._reader, self._throttle
        behind = reader.bytes_behind(offset, NEAR_BYTES)
        if behind < NEAR_BYTES:
            if behind < END_BYTES:
                throttle.note_foreground_io()
            return await reader.read(offset, end_offset, max_bytes, is_required=is_required)
        if not throttle.is_throttling:
            return await reader.read(offset, end_offset, max_bytes, is_required=is_required)
        if not (is_required or throttle.admits_now):
            return BatchRun((), 0, True)
        place = (reader, offset)
        async with throttle.admitted(max_bytes, place=place, deadline=self._deadline) as grant:
            if not grant.is_admitted:
                return BatchRun((), 0, True)
            reader.check_open()
            run = await reader.read(
                offset,
                end_offset,
                max_bytes,
                is_required=is_required,
                piece_bytes=grant.bytes_max,
            )
            grant.used_bytes = sum(parts_size(batch.parts) for batch in run.batches)
        return run._replace(is_paced=grant.is_paced)
