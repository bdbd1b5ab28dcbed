"""Merges changes into a file's range blocks; a block without a change is copied as it is. Pure.

1. Blocks come in order; block i answers for streams from its first one to the next block's first
   one, so a stream's new ranges go behind its last old one, wherever blocks end.
2. Ranges that end at or before the stream's cut are dropped.
3. Before a copied block, what is open is closed in even pieces of at most 16 KiB; less than 4 KiB
   is not closed: the next block is opened instead. So blocks stay between about 4 and 16 KiB.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain
from operator import sub

from streamlog.format.checkpoint_blocks import (
    BLOCK_BYTES_MAX,
    CRC,
    GROUP,
    RANGE_BYTES,
    RangeGroup,
    decode_ranges,
    encode_ranges,
)
from streamlog.format.checkpoint_tail import FILE_HEADER, RangeIndex
from streamlog.metadata.steps import Steps
from streamlog.runtime.buffers import Buffer

PAYLOAD_MAX = BLOCK_BYTES_MAX - CRC.size
PIECE_RANGES = PAYLOAD_MAX // RANGE_BYTES
STEP_STREAMS = 128
SMALL = BLOCK_BYTES_MAX // 4
EVERYTHING = 1 << 64
"""The cut of a destroyed stream."""


@dataclass(slots=True)
class RangeChange:
    """`cut`: ranges that end at or before it go. `added`: groups behind what is there, in order."""

    cut: int = 0
    added: list[RangeGroup] = field(default_factory=list)


@dataclass(slots=True)
class RangeBlocks:
    """The file's first section, as written so far."""

    parts: list[Buffer] = field(default_factory=lambda: [FILE_HEADER])
    index: RangeIndex = field(default_factory=RangeIndex)
    ranges: int = 0


def group_of(stream_id: int, ranges: array[int]) -> RangeGroup:
    """A generation's ranges of one stream as a group."""
    ends = ranges[1::2]
    counts = array("I", map(sub, ends, chain(ranges[:1], ends)))
    return RangeGroup(stream_id, ranges[0], counts, ranges[2::2])


def cut_group(group: RangeGroup, cut: int) -> RangeGroup | None:
    """The group without the ranges that end at or before `cut`; None when nothing is left."""
    if cut <= group.start:
        return group
    start = group.start
    for index, end in enumerate(accumulate(group.counts, initial=start)):
        if index and end > cut:
            if index == 1:
                return group
            return RangeGroup(
                group.stream_id, start, group.counts[index - 1 :], group.objects[index - 1 :]
            )
        start = end
    return None


class RangeMerger:
    """`feed` every run of the old file's blocks in order, then `finish`."""

    def __init__(
        self, index: RangeIndex, range_count: int, changes: Mapping[int, RangeChange], name: str
    ) -> None:
        self._old = index
        self._changes = changes
        self._changed: list[int] = []
        self._name = name
        self._open: list[RangeGroup] = []
        self._open_bytes = 0
        self.written = RangeBlocks(ranges=range_count)
        self.parsed_blocks = 0

    def feed(self, run: Buffer, first: int, last: int) -> Steps[None]:
        """`run` holds blocks first (inclusive) to last (exclusive). Errors: Corrupt."""
        self._sort()
        positions = self._old.positions
        view, origin = memoryview(run), positions[first]
        for block in range(first, last):
            start, end = positions[block], positions[block + 1]
            data = view[start - origin : end - origin]
            low, high = self._changes_in(block)
            is_untouched = low == high and not self._is_cut(block, low)
            if is_untouched and self._close_before_copy():
                self._copy(block, data)
                continue
            yield from self._merge_block(block, data, low, high)
            yield

    def finish(self) -> Steps[RangeBlocks]:
        self._sort()
        if not len(self._old):
            yield from self._add_all(self._changed)
        self._close()
        return self.written

    def _sort(self) -> None:
        if len(self._changed) != len(self._changes):
            self._changed = sorted(self._changes)

    def _changes_in(self, block: int) -> tuple[int, int]:
        """Of `_changed`, those whose last range is, or would be, in the block."""
        streams = self._old.streams
        low = bisect_left(self._changed, streams[block]) if block else 0
        if block + 1 == len(streams):
            return low, len(self._changed)
        return low, bisect_left(self._changed, streams[block + 1])

    def _is_cut(self, block: int, low: int) -> bool:
        """Whether a stream that goes on in the next block loses ranges of this one."""
        if block + 1 == len(self._old):
            return False
        following = self._old.streams[block + 1]
        change = self._changes.get(following)
        if change is None or not change.cut:
            return False
        return self._old.streams[block] < following or self._old.starts[block] < change.cut

    def _merge_block(self, block: int, data: memoryview, low: int, high: int) -> Steps[None]:
        self.parsed_blocks += 1
        last_block = block + 1 == len(self._old)
        following = EVERYTHING if last_block else self._old.streams[block + 1]
        pending, at = self._changed[low:high], 0
        groups = decode_ranges(data, self._name, self._old.positions[block])
        for position, group in enumerate(groups):
            new = at
            while at < len(pending) and pending[at] < group.stream_id:
                at += 1
            yield from self._add_all(pending[new:at])
            change = self._changes.get(group.stream_id)
            kept: RangeGroup | None = group
            if change is not None:
                kept = cut_group(group, change.cut)
                self.written.ranges -= len(group.counts) - (len(kept.counts) if kept else 0)
            if kept is not None:
                self._add(kept)
            is_last = (
                position + 1 == len(groups) or groups[position + 1].stream_id != group.stream_id
            )
            if change is not None and is_last and group.stream_id < following:
                self._add_new(group.stream_id)
                at += 1
        yield from self._add_all(pending[at:])

    def _add_all(self, stream_ids: Sequence[int]) -> Steps[None]:
        for index, stream_id in enumerate(stream_ids):
            self._add_new(stream_id)
            if index % STEP_STREAMS == STEP_STREAMS - 1:
                yield

    def _add_new(self, stream_id: int) -> None:
        change = self._changes[stream_id]
        for group in change.added:
            kept = cut_group(group, change.cut)
            if kept is not None:
                self.written.ranges += len(kept.counts)
                self._add(kept)

    def _add(self, group: RangeGroup) -> None:
        # A long group is taken in pieces of a block, for every split copies what is left of it.
        start = group.start
        for low in range(0, len(group.counts), PIECE_RANGES):
            high = low + PIECE_RANGES
            counts, objects = group.counts[low:high], group.objects[low:high]
            last = self._open[-1] if self._open else None
            if last is not None and last.stream_id == group.stream_id:
                last.counts.extend(counts)
                last.objects.extend(objects)
                self._open_bytes += RANGE_BYTES * len(counts)
            else:
                self._open.append(RangeGroup(group.stream_id, start, counts, objects))
                self._open_bytes += self._open[-1].size_bytes
            start += sum(counts)
            while self._open_bytes > 2 * PAYLOAD_MAX:
                self._write(PAYLOAD_MAX)

    def _close_before_copy(self) -> bool:
        """False: too little is open for a block of its own."""
        if 0 < self._open_bytes < SMALL:
            return False
        self._close()
        return True

    def _close(self) -> None:
        while self._open_bytes:
            pieces = -(-self._open_bytes // PAYLOAD_MAX)
            piece = PAYLOAD_MAX if pieces == 1 else -(-self._open_bytes // pieces)
            self._write(piece)

    def _write(self, size: int) -> None:
        """One block of about `size` bytes, at most PAYLOAD_MAX, of what is open."""
        taken: list[RangeGroup] = []
        room = size
        while self._open and room > 0:
            group = self._open[0]
            fits = (room - GROUP.size) // RANGE_BYTES
            if fits >= len(group.counts):
                taken.append(self._open.pop(0))
                room -= group.size_bytes
                continue
            if fits < 1 and taken:
                break
            fits = max(fits, 1)
            taken.append(
                RangeGroup(group.stream_id, group.start, group.counts[:fits], group.objects[:fits])
            )
            self._open[0] = RangeGroup(
                group.stream_id,
                group.start + sum(group.counts[:fits]),
                group.counts[fits:],
                group.objects[fits:],
            )
            break
        self._open_bytes = sum(group.size_bytes for group in self._open)
        self._append(taken[0].stream_id, taken[0].start, encode_ranges(taken))

    def _copy(self, block: int, data: Buffer) -> None:
        self._append(self._old.streams[block], self._old.starts[block], data)

    def _append(self, stream_id: int, start: int, data: Buffer) -> None:
        written = self.written
        written.parts.append(data)
        written.index.streams.append(stream_id)
        written.index.starts.append(start)
        written.index.positions.append(written.index.positions[-1] + len(data))
