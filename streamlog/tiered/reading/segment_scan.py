"""Goes through the batches of a remote segment, by the chunks that are in memory."""

from __future__ import annotations

from itertools import groupby
from struct import Struct
from typing import NamedTuple, Self

from streamlog.codec.batch import (
    HEADER_BYTES,
    LENGTH_END,
    BatchHeader,
    ScannedBatch,
    check_crc,
    parse_header,
)
from streamlog.errors import Corrupt, CorruptMessage
from streamlog.runtime.buffers import Parts
from streamlog.tiered.api.segments import RemoteLogSegmentMetadata
from streamlog.tiered.reading.chunks import ChunkCache

FAR_AHEAD = 3
"""Chunks that a reader has on their way where there is room for them."""
_unpack_frame = Struct(">qi11xi").unpack_from


class RemoteBatch(NamedTuple):
    """A ReadBatch; `position` is where it begins in its segment."""

    parts: Parts
    end_offset: int
    position: int

    @property
    def header(self) -> BatchHeader:
        return parse_header(self.parts[0])


class ScannedChunk(NamedTuple):
    """`position`: behind the last batch. `is_cut`: bytes were not there by the deadline."""

    batches: list[RemoteBatch]
    position: int
    is_cut: bool


class SegmentScan:
    """Of one segment. Left with Corrupt it forgets the segment's chunks: they may have been changed
    on their way, and the next read asks for them again."""

    def __init__(
        self, chunks: ChunkCache, segment: RemoteLogSegmentMetadata, deadline: float
    ) -> None:
        self.segment = segment
        self._chunks = chunks
        self._deadline = deadline
        self._held = memoryview(b"")
        """The chunk that was read last, so that each batch does not look it up."""
        self._held_from = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and issubclass(kind, Corrupt):
            self.forget()

    def forget(self) -> None:
        """The next bytes are those that the storage sends then."""
        self._held, self._held_from = memoryview(b""), 0
        self._chunks.forget(self.segment.remote_log_segment_id)

    async def batches(
        self, position: int, offset: int, end_offset: int, max_bytes: int
    ) -> ScannedChunk:
        """Batches from the one with the offset on, about `max_bytes`, at least one if it has one.
        They keep at most twice their bytes in memory.

        `position`: at or before that batch, where a batch begins. Errors: as of ChunkCache.get.
        """
        segment, size = self.segment, 0
        expected = segment.start_offset
        found: list[RemoteBatch] = []
        while position < segment.segment_size_bytes:
            is_full = bool(found) and size >= max_bytes
            head = self._at_hand(position, HEADER_BYTES)
            if head is None and is_full:
                break
            if head is None:
                head = await self._bytes(position, HEADER_BYTES)
            if head is None:
                return ScannedChunk(_unpinned(found), position, True)
            base, length, delta = _unpack_frame(head)
            batch_bytes = length + LENGTH_END
            left = segment.segment_size_bytes - position
            if not HEADER_BYTES <= batch_bytes <= left or delta < 0 or base < expected:
                raise self.damaged(position, "no batch begins here")
            # No CRC covers an offset: it has to come behind the last one, and before the end. So
            # the batch behind the last one that is returned is looked at, where it is at hand.
            expected = base + delta + 1
            if expected > segment.end_offset + 1:
                raise self.damaged(position, "the batch ends behind it")
            if base >= end_offset or is_full:
                break
            if base + delta >= offset:
                if found and size + batch_bytes > max_bytes:
                    break
                view = self._at_hand(position, batch_bytes)
                if view is None:
                    view = await self._bytes(position, batch_bytes)
                if view is None:
                    return ScannedChunk(_unpinned(found), position, True)
                found.append(RemoteBatch((view,), base + delta + 1, position))
                size += batch_bytes
            position += batch_bytes
        return ScannedChunk(_unpinned(found), position, False)

    def ahead(self, position: int) -> None:
        """Has the chunk loaded behind the one that the bytes before the position lie in, and more
        where there is room: a chunk takes longer to load than to read, so with one ahead a reader
        would have one request under way at a time."""
        number = max(position - 1, 0) // self._chunks.chunk_bytes + 1
        self._chunks.ahead(self.segment, number)
        for more in range(1, FAR_AHEAD):
            if self._chunks.has_room_far_ahead:
                self._chunks.ahead(self.segment, number + more)

    def _at_hand(self, position: int, length: int) -> memoryview | None:
        begin = position - self._held_from
        if begin < 0 or begin + length > len(self._held):
            return None
        return self._held[begin : begin + length]

    async def _bytes(self, position: int, length: int) -> memoryview | None:
        """Fewer at the segment's end. They are a copy only where they lie in several chunks."""
        size = self._chunks.chunk_bytes
        first, last = position // size, (position + length - 1) // size
        pieces: list[memoryview] = []
        for number in range(first, last + 1):
            if number * size >= self.segment.segment_size_bytes:
                break
            chunk = await self._chunks.get(self.segment, number, self._deadline)
            if chunk is None:
                return None
            self._held, self._held_from = memoryview(chunk), number * size
            begin = max(position - self._held_from, 0)
            pieces.append(self._held[begin : position + length - self._held_from])
        if len(pieces) == 1:
            return pieces[0]
        return memoryview(b"".join(pieces))

    def check(self, batches: list[RemoteBatch]) -> None:
        """Errors: Corrupt."""
        for batch in batches:
            view = batch.parts[0]
            try:
                check_crc(ScannedBatch(parse_header(view), memoryview(view)), batch.position)
            except CorruptMessage as error:
                raise self.damaged(batch.position, str(error)) from error

    def damaged(self, position: int, what: str) -> Corrupt:
        segment = self.segment
        return Corrupt(
            f"the remote segment {segment.remote_log_segment_id} is damaged at byte {position} "
            f"({what}); put it back from a copy, or raise the log start behind offset "
            f"{segment.end_offset}",
            object_key=str(segment.remote_log_segment_id),
            start=position,
            end=segment.segment_size_bytes,
        )


def _unpinned(batches: list[RemoteBatch]) -> list[RemoteBatch]:
    """The batches, copied where they would keep a chunk alive of which they are less than a half:
    who reads them may keep them long after the cache has dropped it."""
    kept: list[RemoteBatch] = []
    for _, group in groupby(batches, lambda batch: id(_view(batch).obj)):
        ones = list(group)
        views = [_view(one) for one in ones]
        size = sum(map(len, views))
        if 2 * size < memoryview(views[0].obj).nbytes:
            # One copy for all of them, since each would cost about as much as this.
            copy, end = memoryview(b"".join(views)), 0
            for number, view in enumerate(views):
                end += len(view)
                ones[number] = ones[number]._replace(parts=(copy[end - len(view) : end],))
        kept += ones
    return kept


def _view(batch: RemoteBatch) -> memoryview:
    return memoryview(batch.parts[0])
