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


class ScanStart(NamedTuple):
    """`position`: where a batch begins. `least`: the least offset that it may begin with. `named`:
    an offset that a batch from there on has, as an index says, and none before; -1: nothing is
    said."""

    position: int
    least: int
    named: int = -1


class ScannedChunk(NamedTuple):
    """`position`: behind the last batch. `is_cut`: bytes were not there by the deadline."""

    batches: list[RemoteBatch]
    position: int
    is_cut: bool


class SegmentScan:
    """Of one segment. Left with Corrupt it has the chunks that it read loaded anew."""

    def __init__(
        self, chunks: ChunkCache, segment: RemoteLogSegmentMetadata, deadline: float
    ) -> None:
        self.segment = segment
        self._chunks = chunks
        self._deadline = deadline
        self._held = memoryview(b"")
        """The chunk that was read last, so that each batch does not look it up."""
        self._held_from = 0
        self._read: set[int] = set()
        """Numbers of chunks."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and issubclass(kind, Corrupt):
            self.load_anew()

    def load_anew(self) -> None:
        """What was read has damage, perhaps of its way here."""
        self._chunks.load_anew(self.segment.remote_log_segment_id, self._read)

    async def batches(
        self, start: ScanStart, offset: int, end_offset: int, max_bytes: int
    ) -> ScannedChunk:
        """Batches from the one with the offset on, about `max_bytes`, at least one if it has one.
        They keep at most twice their bytes in memory. What comes before damage is returned.

        `start`: at or before that batch. Errors: as of ChunkCache.get; Corrupt.
        """
        segment, size = self.segment, 0
        position, expected, named = start
        found: list[RemoteBatch] = []
        # No CRC covers an offset: it has to come behind the last one, and before the end. A log
        # that was compacted has gaps, so behind one the next batch alone tells a wrong offset.
        is_sure, is_cut = True, False
        passed: tuple[int, int] | None = None
        while position < segment.segment_size_bytes:
            is_full = bool(found) and size >= max_bytes
            head = self._at_hand(position, HEADER_BYTES)
            if head is None and is_full and is_sure:
                break
            if head is None:
                head = await self._bytes(position, HEADER_BYTES)
            if head is None:
                if found and not is_sure:
                    position = found.pop().position
                is_cut = True
                break
            base, length, delta = _unpack_frame(head)
            last, batch_bytes = base + delta, length + LENGTH_END
            left = segment.segment_size_bytes - position
            is_whole = HEADER_BYTES <= batch_bytes <= left
            if not (is_whole and delta >= 0 and expected <= base and last <= segment.end_offset):
                unsure = found.pop() if found and not is_sure else None
                if not found:
                    raise self.damaged(position, "no batch of it begins here")
                position = position if unsure is None else unsure.position
                break
            is_sure = base == expected or last == named
            if last >= named:
                if base > named >= 0:
                    raise self.wrong_index(named)
                named = -1
            expected = last + 1
            if base >= end_offset or is_full:
                break
            if last >= offset:
                if found and size + batch_bytes > max_bytes:
                    break
                view = self._at_hand(position, batch_bytes)
                if view is None:
                    view = await self._bytes(position, batch_bytes)
                if view is None:
                    is_cut = True
                    break
                found.append(RemoteBatch((view,), last + 1, position))
                size += batch_bytes
            else:
                passed = position, batch_bytes
            position += batch_bytes
        else:
            if named >= 0:
                raise self.wrong_index(named)
        is_in_gap = found[0].header.base_offset > offset if found else not is_cut
        if passed is not None and is_in_gap:
            # Unless the batch before it was changed, and has the offset.
            view = await self._bytes(*passed)
            if view is None:
                return ScannedChunk([], passed[0], True)
            self.check([RemoteBatch((view,), offset, passed[0])])
        return ScannedChunk(_unpinned(found), position, is_cut)

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
            self._read.add(number)
            self._held, self._held_from = memoryview(chunk), number * size
            begin = max(position - self._held_from, 0)
            pieces.append(self._held[begin : position + length - self._held_from])
        if len(pieces) == 1:
            return pieces[0]
        return memoryview(b"".join(pieces))

    def check(self, batches: list[RemoteBatch]) -> int:
        """How many there are in front of the first that is damaged. Errors: Corrupt (that is the
        first of all)."""
        for number, batch in enumerate(batches):
            view = batch.parts[0]
            try:
                check_crc(ScannedBatch(parse_header(view), memoryview(view)), batch.position)
            except CorruptMessage as error:
                if number:
                    return number
                raise self.damaged(batch.position, str(error)) from error
        return len(batches)

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

    def wrong_index(self, offset: int) -> Corrupt:
        segment_id = self.segment.remote_log_segment_id
        return Corrupt(
            f"the remote segment {segment_id} or its offset index is damaged: no batch with the "
            f"offset {offset} begins where the index says; put both back from a copy",
            object_key=str(segment_id),
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
