"""Reads batches of a unified log by position, in one read for many batches, without a copy each.

A reader that follows its last batch begins where that one ended; any other finds its place through
the offset index. Readers open the segment's file themselves, so a segment that is removed meanwhile
is read to its end, or not found; the file of a sealed segment stays open for the next read.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from bisect import bisect_right
from collections.abc import Callable, Sequence
from struct import Struct
from typing import NamedTuple, Protocol

from streamlog.codec.batch import (
    HEADER_BYTES,
    LENGTH_END,
    BatchHeader,
    has_right_crc,
    parse_header,
)
from streamlog.errors import (
    Corrupt,
    OffsetOutOfRange,
    StoreUnavailable,
    StreamlogError,
)
from streamlog.format.kafka_files.offset_index import OffsetPosition, floor_entry
from streamlog.log.api.batch_reader import BatchRun
from streamlog.runtime.buffers import Buffer
from streamlog.runtime.disk.folders import typed_os_error
from streamlog.runtime.disk.growing import GrowingFile, GrowingFolder
from streamlog.runtime.offload import Lane, Offload
from streamlog.unified.disk.files import read_if_there
from streamlog.unified.read.kept_files import KeptFiles, close_file
from streamlog.unified.state.segment import UnifiedLogSegment

log = logging.getLogger(__name__)

_unpack_frame = Struct(">qi11xi").unpack_from
"""Base offset, length and last offset delta of a batch: all that finding the next one takes."""
READ_BYTES_MIN = 16 << 10
NOW_BYTES_MAX = 1 << 20
"""Most bytes that are read on the event loop: in 0.06 ms where the page cache has large pages, else
0.2. Two changes of thread take as long, and with them a reader off the disk falls behind it."""
NOW_BATCHES_MAX = 512
"""Most batches that one read there finds, in about 0.6 ms, and 0.95 behind a
cleaning that left gaps; those in front of them, as many as lie between two entries of the index,
come on top."""
TURN_BYTES = 128 << 10
"""Behind a read of more bytes on the event loop other work has its turn: a fetch may read of many
partitions."""
READ_BYTES_MAX = 4 << 20
"""Most bytes of one read, unless a batch is larger, and the next one begins behind it."""


class _TooLarge(Exception):
    """The batch is larger than its reader has room for, and was not read."""


class FileBatch(NamedTuple):
    """A ReadBatch; `position` is where it begins in the segment's file."""

    parts: tuple[memoryview]
    end_offset: int
    position: int

    @property
    def end_position(self) -> int:
        return self.position + len(self.parts[0])

    @property
    def header(self) -> BatchHeader:
        return parse_header(self.parts[0])


class _Asked(NamedTuple):
    """What a read wants: batches from the one with `offset` up to `end_offset`, about `max_bytes`,
    and `batches_max` at most. `room`: a first one that is larger is not read for itself."""

    offset: int
    end_offset: int
    max_bytes: int
    room: int
    batches_max: int = sys.maxsize


class _Readable(Protocol):
    def read(self, position: int, length: int) -> Buffer: ...
    def size(self) -> int: ...


class _FromMemory:
    """Errors of `read`: BlockingIOError; also where a search goes on behind `bytes_max`."""

    def __init__(self, file: GrowingFile, bytes_max: int) -> None:
        self._file = file
        self._bytes_max = bytes_max
        self.read_bytes = 0
        self.size = file.size

    def read(self, position: int, length: int) -> Buffer:
        wanted = max(0, min(length, self.size() - position))
        self.read_bytes += wanted
        is_short = self.read_bytes <= self._bytes_max
        data = self._file.read_now(position, wanted) if is_short else None
        if data is None:
            raise BlockingIOError
        return data


class SegmentFileReader:
    """Of one log; `segments` is the log's own list. It blocks, but for `read`."""

    def __init__(
        self,
        name: str,
        folder: GrowingFolder,
        segments: Sequence[UnifiedLogSegment],
        offload: Offload,
        kept: KeptFiles,
        check_open: Callable[[], None],
    ) -> None:
        """`check_open` raises why the log has ended."""
        self.check_open = check_open
        self._kept = kept
        self._is_ended = False
        self._batch_bytes = 1
        """Of the batch that was read last."""
        self._now_bytes = 0
        """Of the last read on the event loop."""
        self._name = name
        self.folder = folder
        self._segments = segments
        self._offload = offload

    async def read(
        self,
        offset: int,
        end_offset: int,
        max_bytes: int,
        *,
        is_required: bool,
        piece_bytes: int = sys.maxsize,
    ) -> BatchRun:
        """As BatchReader.read, of about `piece_bytes` where that is less than there is room for.
        Errors: OffsetOutOfRange (the segment is gone), Corrupt, StoreUnavailable."""
        room = sys.maxsize if is_required else max_bytes
        most = min(max_bytes, piece_bytes)
        while True:
            segment = self.segment_of(offset)
            end = min(end_offset, segment.end)
            try:
                batches = await self.find(segment, offset, end, most, room)
            except _TooLarge:
                return BatchRun((), 0, False, is_too_large=True)
            if batches:
                held_bytes = memoryview(batches[0].parts[0].obj).nbytes
                return BatchRun(batches, 0, False, held_bytes=held_bytes)
            if batches is not None and end == end_offset:
                return BatchRun((), 0, False, empty_until=end)
            if batches is not None:
                offset = end  # Behind a cleaning a segment may end in a gap.

    async def find(
        self,
        segment: UnifiedLogSegment,
        offset: int,
        end_offset: int,
        max_bytes: int,
        room: int = sys.maxsize,
    ) -> list[FileBatch] | None:
        """Batches from the one with `offset` up to end_offset, about `max_bytes`, at least one
        unless the segment has none there. None: another segment has come in this one's place.

        Errors: as of `read`; _TooLarge, where the first one would be read for itself and is larger
        than `room`.
        """
        asked = _Asked(offset, end_offset, max_bytes, room)
        found: list[FileBatch] | None = None
        if segment.replaced is None:
            # Who follows the tail needs no thread: what was just written is in memory. Beside busy
            # threads two changes between loop and thread take some 10 ms, and the read 0.1.
            if self._is_short(segment, offset, max_bytes):
                with contextlib.suppress(BlockingIOError):
                    found = self._batches_of(segment, asked, is_now=True)
                    if self._now_bytes > TURN_BYTES:
                        await asyncio.sleep(0)
                    return found
            found = await self._offload.run(Lane.READ, self._batches_of, segment, asked)
        if found is None and segment.replaced is not None:
            await asyncio.wait({segment.replaced})
            # Where the swap failed, and the log with it, no other segment comes.
            self.check_open()
        return found

    def _is_short(self, segment: UnifiedLogSegment, offset: int, max_bytes: int) -> bool:
        """Whether the read takes no longer than two changes of thread, if the page cache has it."""
        known = segment.position_of(offset)
        if known is None and segment.offsets is None:
            return False
        size = min(max_bytes, segment.size - (known or 0))
        most = min(NOW_BATCHES_MAX * self._batch_bytes, NOW_BYTES_MAX)
        return size <= max(most, TURN_BYTES)

    def leave(self, segments: Sequence[UnifiedLogSegment]) -> None:
        """Closes files of segments that are marked as replaced; reads under way close theirs."""
        self._kept.forget(segments)

    def end(self) -> None:
        """Closes the log's files; reads under way close theirs."""
        self._is_ended = True
        self._kept.forget(self._segments)

    def bytes_behind(self, offset: int, most: int) -> int:
        """About how many bytes lie from the offset to the log's end; `most` and more are the same.

        A segment counts whole where the offset's position in it is not in memory.
        """
        size = 0
        for segment in reversed(self._segments):
            if segment.base_offset <= offset:
                return size + segment.size - self._position_in_memory(segment, offset)
            size += segment.size
            if size >= most:
                break
        return size

    def _position_in_memory(self, segment: UnifiedLogSegment, offset: int) -> int:
        known = segment.position_of(offset)
        if known is not None:
            return known
        entry = floor_entry(segment.offsets or b"", offset - segment.base_offset)
        return 0 if entry is None else entry.position

    def segment_of(self, offset: int) -> UnifiedLogSegment:
        """Errors: OffsetOutOfRange."""
        segments = self._segments
        if segments[-1].base_offset <= offset:
            return segments[-1]
        found = bisect_right(segments, offset, key=lambda one: one.base_offset) - 1
        if found < 0:
            raise self._gone(offset)
        return segments[found]

    def _batches_of(
        self, segment: UnifiedLogSegment, asked: _Asked, *, is_now: bool = False
    ) -> list[FileBatch] | None:
        """As `find`. None: the segment's files are no longer its own.

        `is_now`: from memory alone. Errors: as of `find`; BlockingIOError, where that is not
        possible.
        """
        try:
            file = self._kept.take(segment) or self.folder.open_to_read(segment.log_name)
        except FileNotFoundError as error:
            if segment.replaced is not None:
                return None
            self.check_open()
            if segment in self._segments:
                # Nobody deletes it. A consumer that heard of a deletion here would go on elsewhere,
                # and skip the records.
                raise self._missing(segment) from error
            raise self._gone(asked.offset) from error
        except OSError as error:
            raise self._typed(error) from error
        end_position, file_bytes = segment.size, 0
        try:
            # The name may be another log's by now: a topic can be deleted and made anew.
            self.check_open()
            file_bytes = file.size()
            if not is_now:
                found = self._batches(segment, file, asked)
            else:
                most = min(max(asked.max_bytes, TURN_BYTES), NOW_BYTES_MAX) + 3 * READ_BYTES_MIN
                source = _FromMemory(file, most)
                found = self._batches(segment, source, asked._replace(batches_max=NOW_BATCHES_MAX))
                self._now_bytes = source.read_bytes
            if found:
                end_position = found[-1].end_position
            return found
        except (BlockingIOError, _TooLarge):
            end_position = 0
            raise
        except OSError as error:
            raise self._typed(error) from error
        finally:
            # A file has the size that it had when it was opened: one that grows is opened anew.
            if segment.is_sealed and end_position < segment.size <= file_bytes:
                self._kept.keep(segment, file, lambda: self._is_leaving(segment))
            else:
                close_file(file)

    def _is_leaving(self, segment: UnifiedLogSegment) -> bool:
        return self._is_ended or segment.replaced is not None

    def _batches(
        self, segment: UnifiedLogSegment, file: _Readable, asked: _Asked
    ) -> list[FileBatch] | None:
        offset = asked.offset
        known = segment.position_of(offset)
        if known is not None:
            try:
                return self._batches_from((known, offset), segment, file, asked)
            except Corrupt:
                # It may lie behind a length that is damaged, which no CRC covers; who reads on
                # behind that batch needs the index.
                segment.forget(offset)
                if segment.offsets is None and asked.batches_max != sys.maxsize:
                    # The index is read from its file.
                    raise BlockingIOError from None
        place = self._indexed_place(segment, file, offset)
        return self._batches_from(place, segment, file, asked)

    def _batches_from(
        self,
        place: tuple[int, int],
        segment: UnifiedLogSegment,
        file: _Readable,
        asked: _Asked,
    ) -> list[FileBatch] | None:
        """`place`: a position at or before the batch with the offset, where a batch begins, and the
        least offset that it may begin with."""
        position, expected = place
        offset, end_offset, max_bytes, room, batches_max = asked
        if segment.replaced is not None:
            # The file, or its index, may be the new segment's. What is open now stays what it is.
            return None
        # Before the batch lie those since its index entry.
        wanted = self._whole_batches(min(max(max_bytes, READ_BYTES_MIN), READ_BYTES_MAX))
        wanted += READ_BYTES_MIN
        if room < self._batch_bytes:
            # The first one will hardly fit, and is looked at before it is read.
            wanted = READ_BYTES_MIN
        found: list[FileBatch] = []
        size = 0
        passed: FileBatch | None = None
        is_past_end = False
        while not found:
            data = memoryview(file.read(position, wanted))
            at, most = 0, len(data) - HEADER_BYTES
            while at <= most:
                base, length, delta = _unpack_frame(data, at)
                batch_bytes = length + LENGTH_END
                if batch_bytes < HEADER_BYTES or base < expected or delta < 0:
                    raise self._damaged(segment, position + at, "no batch begins here")
                if passed and base > max(expected, offset) and self._leaps(segment, passed, found):
                    break
                # A cleaning may have left nothing in between, but what is there is the segment's.
                is_past_end = end_offset <= base < segment.end
                if at + batch_bytes > len(data) or base >= end_offset:
                    break
                # No CRC covers an offset: it has to come behind the last one, and before the end.
                expected = base + delta + 1
                if expected > segment.end:
                    raise self._damaged(segment, position + at, "the batch ends behind it")
                if found and (size >= max_bytes or len(found) >= batches_max):
                    break
                passed = FileBatch((data[at : at + batch_bytes],), expected, position + at)
                if base + delta >= offset:
                    found.append(passed)
                    size += batch_bytes
                at += batch_bytes
            if found or is_past_end:
                if passed and at > most and self._is_behind_gap(segment, file, passed):
                    self._leaps(segment, passed, found)
                break
            if not len(data) and position >= segment.size:
                if passed:
                    self._leaps(segment, passed, found)
                break
            if not at:
                wanted = self._longer_read(segment, file, position, data, wanted, asked)
            position += at
        if found:
            if len(found) > 1:
                # The last one may be more than a fetch has room for: it is the next one's first.
                segment.remember(found[-2].end_offset, found[-1].position)
            segment.remember(found[-1].end_offset, found[-1].end_position)
            self._batch_bytes = len(found[-1].parts[0])
        return found

    def _longer_read(
        self,
        segment: UnifiedLogSegment,
        file: _Readable,
        position: int,
        data: memoryview,
        wanted: int,
        asked: _Asked,
    ) -> int:
        """How much to read for the batch that begins at the position and does not end in the data,
        which is what there was of `wanted` bytes. Errors: Corrupt, _TooLarge."""
        need, end = HEADER_BYTES, asked.offset
        if len(data) >= HEADER_BYTES:
            base, length, delta = _unpack_frame(data)
            need, end = length + LENGTH_END, base + delta + 1
        # The file may be shorter than the log: also than its size, which is that of its opening.
        is_end = len(data) < wanted or position + need > file.size()
        if need <= len(data) or is_end:
            raise self._damaged(segment, position, f"offset {asked.offset} is not in it")
        if need > asked.room and end > asked.offset:
            raise _TooLarge
        is_under_way = end >= asked.end_offset and segment.offsets is not None
        if need > READ_BYTES_MAX and not is_under_way:
            self._check_end(segment, file, position, need, end)
        return need

    def _leaps(self, segment: UnifiedLogSegment, passed: FileBatch, found: list[FileBatch]) -> bool:
        """Whether the batch, behind which offsets are missing, has a wrong length, which leads past
        healthy ones: no CRC covers it, but one of other bytes is not right. A cleaning leaves
        batches as they are. What was found before it stays. Errors: Corrupt (there is none)."""
        if has_right_crc(passed.parts[0]):
            return False
        if len(found) < 2:
            what = "offsets are missing behind a batch that fails its CRC"
            raise self._damaged(segment, passed.position, what)
        found.pop()
        return True

    def _is_behind_gap(self, segment: UnifiedLogSegment, file: _Readable, last: FileBatch) -> bool:
        """Whether offsets are missing behind a batch, of which the next one was not read."""
        if last.end_offset >= segment.end:
            return False
        if last.end_position >= segment.size:
            return True
        data = file.read(last.end_position, HEADER_BYTES)
        return len(data) == HEADER_BYTES and _unpack_frame(data)[0] > last.end_offset

    def _check_end(
        self, segment: UnifiedLogSegment, file: _Readable, position: int, size: int, end: int
    ) -> None:
        """A batch of so many bytes ends where the next one begins, or the segment: one bit of its
        length has a reader take all that is there for one batch. Errors: Corrupt."""
        end_position = position + size
        if end_position == segment.size:
            return
        data = file.read(end_position, HEADER_BYTES)
        if len(data) == HEADER_BYTES:
            base, length, delta = _unpack_frame(data)
            is_batch = length + LENGTH_END >= HEADER_BYTES and delta >= 0
            if is_batch and end <= base < segment.end:
                return
        raise self._damaged(segment, position, f"no batch begins behind its {size} bytes")

    def _whole_batches(self, read_bytes: int) -> int:
        """As much of it as whole batches fill, where they are as large as the last one: what is
        read of one more is copied for nothing."""
        size = self._batch_bytes
        return read_bytes if size > read_bytes else read_bytes // size * size

    def _indexed_place(
        self, segment: UnifiedLogSegment, file: _Readable, offset: int
    ) -> tuple[int, int]:
        """As of `_batches_from`, by the offset index."""
        base = segment.base_offset
        if offset == base:
            return 0, base
        data = segment.offsets
        if data is None:
            data = bytearray(read_if_there(self.folder, segment.index_name) or b"")
        # An entry has the last offset of a batch: one before the offset is behind no batch with it.
        entry = floor_entry(data, offset - segment.base_offset)
        if entry is None:
            return 0, base
        if _is_true(entry, file, base):
            return entry.position, base
        log.warning(
            "the index of %s/%s is damaged: the segment is read from its beginning; remove the "
            "index, and the next start makes it anew",
            self._name,
            segment.log_name,
        )
        return 0, base

    def _damaged(self, segment: UnifiedLogSegment, position: int, what: str) -> StreamlogError:
        path = f"{self._name}/{segment.log_name}"
        return Corrupt(
            f"{path}: the bytes from {position} on are damaged ({what}); restart the node, which "
            "checks what was written since the last clean end, or take the file from a copy",
            object_key=path,
            start=position,
            end=segment.size,
        )

    def _missing(self, segment: UnifiedLogSegment) -> StoreUnavailable:
        path = f"{self._name}/{segment.log_name}"
        return StoreUnavailable(
            f"{path} is missing, and nobody has deleted it here: put the file back from a copy",
            path=path,
            waiting_helps=False,
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


def _is_true(entry: OffsetPosition, file: _Readable, base_offset: int) -> bool:
    """Whether the batch is there that the entry speaks of: an index has no CRC."""
    if not 0 <= entry.position < file.size():
        return False
    data = file.read(entry.position, HEADER_BYTES)
    if len(data) < HEADER_BYTES:
        return False
    base, length, delta = _unpack_frame(data)
    is_batch = int(length) + LENGTH_END >= HEADER_BYTES
    return is_batch and int(base + delta) == base_offset + entry.offset
