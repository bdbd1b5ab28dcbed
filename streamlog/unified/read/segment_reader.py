"""Reads batches of a unified log by position, in one read for many batches, without a copy each.

A reader that follows its last batch begins where that one ended; any other finds its place through
the offset index. Readers open the segment's file themselves, so a segment that is removed meanwhile
is read to its end, or not found.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from streamlog.codec.batch import HEADER_BYTES, BatchHeader, parse_header
from streamlog.errors import (
    Corrupt,
    CorruptMessage,
    OffsetOutOfRange,
    StoreUnavailable,
    StreamlogError,
)
from streamlog.format.kafka_files.offset_index import floor_entry
from streamlog.log.partition.view.reading import BatchRun
from streamlog.runtime.buffers import Parts
from streamlog.runtime.disk.folders import typed_os_error
from streamlog.runtime.disk.growing import GrowingFile, GrowingFolder
from streamlog.runtime.offload import Lane, Offload
from streamlog.unified.disk.files import read_if_there
from streamlog.unified.state.segment import UnifiedLogSegment

READ_BYTES_MIN = 16 << 10
READ_BYTES_MAX = 4 << 20
"""Most bytes of one read, unless a batch is larger."""


class FileBatch(NamedTuple):
    """A ReadBatch; `position` is where it begins in the segment's file."""

    parts: Parts
    end_offset: int
    header: BatchHeader
    position: int


class SegmentFileReader:
    """Of one log; `segments` is the log's own list. It blocks, but for `read`."""

    def __init__(
        self,
        name: str,
        folder: GrowingFolder,
        segments: Sequence[UnifiedLogSegment],
        offload: Offload,
    ) -> None:
        self._name = name
        self.folder = folder
        self._segments = segments
        self._offload = offload

    async def read(
        self, offset: int, end_offset: int, max_bytes: int, *, is_required: bool
    ) -> BatchRun:
        """As BatchReader.read. Errors: OffsetOutOfRange (the segment is gone), Corrupt,
        StoreUnavailable."""
        segment = self.segment_of(offset)
        while True:
            end = min(end_offset, segment.end)
            batches = await self._offload.run(
                Lane.READ, self.batches_of, segment, offset, end, max_bytes
            )
            if batches or end == end_offset:
                return BatchRun(batches, 0, False)
            # Behind a cleaning a segment may end in a gap.
            segment = self.segment_of(end)
            offset = segment.base_offset

    def segment_of(self, offset: int) -> UnifiedLogSegment:
        """Errors: OffsetOutOfRange."""
        segments = self._segments
        if segments[-1].base_offset <= offset:
            return segments[-1]
        found = bisect_right(segments, offset, key=lambda one: one.base_offset) - 1
        if found < 0:
            raise self._gone(offset)
        return segments[found]

    def batches_of(
        self, segment: UnifiedLogSegment, offset: int, end_offset: int, max_bytes: int
    ) -> list[FileBatch]:
        """Batches from the one with `offset` up to end_offset, about `max_bytes`, at least one
        unless the segment has none there.

        Errors: as of `read`.
        """
        try:
            file = self.folder.open(segment.log_name)
        except FileNotFoundError as error:
            raise self._gone(offset) from error
        except OSError as error:
            raise self._typed(error) from error
        try:
            return self._batches(segment, file, offset, end_offset, max_bytes)
        except OSError as error:
            raise self._typed(error) from error
        finally:
            file.close()

    def _batches(
        self,
        segment: UnifiedLogSegment,
        file: GrowingFile,
        offset: int,
        end_offset: int,
        max_bytes: int,
    ) -> list[FileBatch]:
        position = self._position(segment, offset)
        # Before the batch lie those since its index entry.
        wanted = min(max(max_bytes, READ_BYTES_MIN), READ_BYTES_MAX) + READ_BYTES_MIN
        found: list[FileBatch] = []
        size = 0
        while not found:
            data = memoryview(file.read(position, wanted))
            at = 0
            while len(data) - at >= HEADER_BYTES:
                header = self._header(segment, data, at, position)
                if header.size_bytes > len(data) - at:
                    break
                if header.base_offset >= end_offset or (found and size >= max_bytes):
                    break
                if header.last_offset >= offset:
                    view = data[at : at + header.size_bytes]
                    batch = FileBatch((view,), header.next_offset, header, position + at)
                    found.append(batch)
                    size += header.size_bytes
                at += header.size_bytes
            if found:
                break
            if not len(data) and position >= segment.size:
                return []
            if not at:
                # One batch is longer than the read, or the file is shorter than the log.
                need = HEADER_BYTES
                if len(data) >= HEADER_BYTES:
                    need = self._header(segment, data, 0, position).size_bytes
                if need <= len(data) or position + need > file.size():
                    raise self._damaged(segment, position, f"offset {offset} is not in it")
                wanted = need
            position += at
        segment.remember(found[-1].end_offset, found[-1].position + found[-1].header.size_bytes)
        return found

    def _position(self, segment: UnifiedLogSegment, offset: int) -> int:
        known = segment.position_of(offset)
        if known is not None:
            return known
        if offset == segment.base_offset:
            return 0
        data = segment.offsets
        if data is None:
            data = bytearray(read_if_there(self.folder, segment.index_name) or b"")
        # An entry has the last offset of a batch: one before the offset is behind no batch with it.
        entry = floor_entry(data, offset - segment.base_offset)
        if entry is None or entry.position >= segment.size:
            return 0
        return entry.position

    def _header(
        self, segment: UnifiedLogSegment, data: memoryview, at: int, position: int
    ) -> BatchHeader:
        try:
            header = parse_header(data, at)
        except CorruptMessage as error:
            raise self._damaged(segment, position + at, str(error)) from error
        if header.size_bytes < HEADER_BYTES or header.base_offset < segment.base_offset:
            raise self._damaged(segment, position + at, "no batch begins here")
        return header

    def _damaged(self, segment: UnifiedLogSegment, position: int, what: str) -> StreamlogError:
        path = f"{self._name}/{segment.log_name}"
        return Corrupt(
            f"{path}: the bytes from {position} on are damaged ({what}); restart the node, which "
            "checks what was written since the last clean end, or take the file from a copy",
            object_key=path,
            start=position,
            end=segment.size,
        )

    def _gone(self, offset: int) -> OffsetOutOfRange:
        first = self._segments[0].base_offset
        return OffsetOutOfRange(
            f"offset {offset} of {self._name} was deleted; the log begins at {first}",
            offset=offset,
            start_offset=first,
            end_offset=self._segments[-1].end,
        )

    def _typed(self, error: OSError) -> StreamlogError:
        return typed_os_error(error, self._name, "reading the log", StoreUnavailable)
