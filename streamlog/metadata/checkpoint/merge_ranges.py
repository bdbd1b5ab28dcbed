"""Merges changes into a file's range blocks; a block without a change is copied unread. Pure.

1. Blocks arrive in order. Block i holds (stream, start) from its first one up to the next block's
   first one (the first block holds smaller ones too); new groups are placed by that.
2. Old ranges that new groups cover are dropped (overlay), and so are ranges that end at or before
   the stream's cut.
3. Before a block is copied, the open groups are written in even pieces of at most 16 KiB. Less than
   4 KiB are not written: that block is merged instead. So blocks stay between about 4 and 16 KiB.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain
from operator import sub

from streamlog.format.checkpoint.blocks import (
    BLOCK_BYTES_MAX,
    CRC,
    GROUP,
    RANGE_BYTES,
    RangeGroup,
    decode_ranges,
    encode_ranges,
)
from streamlog.format.checkpoint.tail import FILE_HEADER, RangeBlockIndex
from streamlog.metadata.checkpoint.merge_input import blocks_of
from streamlog.metadata.fold.overlay import ObjectRange, overlaid, uncovered
from streamlog.runtime.buffers import Buffer
from streamlog.runtime.concurrency.steps import Steps

PAYLOAD_MAX = BLOCK_BYTES_MAX - CRC.size
PIECE_RANGES = PAYLOAD_MAX // RANGE_BYTES
STEP_STREAMS = 128
SMALL = BLOCK_BYTES_MAX // 4
EVERYTHING = 1 << 64
"""The cut of a destroyed stream."""


@dataclass(slots=True)
class RangeChange:
    """`cut`: ranges that end at or before it are dropped. `added`: sorted, disjoint groups, which
    replace older ranges at their offsets.
    """

    cut: int = 0
    added: list[RangeGroup] = field(default_factory=list)


@dataclass(slots=True)
class RangeBlocks:
    """The first section of the new file, as written so far."""

    parts: list[Buffer] = field(default_factory=lambda: [FILE_HEADER])
    index: RangeBlockIndex = field(default_factory=RangeBlockIndex)
    ranges: int = 0


def group_of(stream_id: int, ranges: array[int]) -> RangeGroup:
    """A generation's ranges of one stream as a group."""
    ends = ranges[1::2]
    counts = array("I", map(sub, ends, chain(ranges[:1], ends)))
    return RangeGroup(stream_id, ranges[0], counts, ranges[2::2])


def cut_group(group: RangeGroup, cut: int) -> RangeGroup | None:
    """The group without the ranges that end at or before `cut`; None: no range is left."""
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


def end_of(group: RangeGroup) -> int:
    return group.start + sum(group.counts)


def ranges_in(group: RangeGroup) -> list[ObjectRange]:
    bounds = list(accumulate(group.counts, initial=group.start))
    return list(map(ObjectRange, bounds, bounds[1:], group.objects))


def groups_from(stream_id: int, ranges: Iterable[ObjectRange]) -> list[RangeGroup]:
    """Groups of the ranges; adjacent ranges share one."""
    groups: list[RangeGroup] = []
    previous_end = -1
    for start, end, object_id in ranges:
        if start != previous_end:
            groups.append(RangeGroup(stream_id, start, array("I"), array("Q")))
        groups[-1].counts.append(end - start)
        groups[-1].objects.append(object_id)
        previous_end = end
    return groups


def overlay_groups(
    older: Sequence[RangeGroup], newer: Sequence[RangeGroup]
) -> Sequence[RangeGroup]:
    """Groups of one stream: all newer ones, and the visible parts of the older ones."""
    if not older or not newer:
        return older or newer
    if end_of(older[-1]) <= newer[0].start:
        return [*older, *newer]
    below = [r for group in older for r in ranges_in(group)]
    above = [r for group in newer for r in ranges_in(group)]
    return groups_from(newer[0].stream_id, overlaid(below, above))


class RangeMerger:
    """Merges one file: `feed` every run of the old file's blocks in order, then `finish`."""

    def __init__(
        self,
        index: RangeBlockIndex,
        range_count: int,
        changes: Mapping[int, RangeChange],
        name: str,
    ) -> None:
        self._old = index
        self._changes = changes
        self._cuts: list[int] = []
        self._new: list[RangeGroup] = []
        """New groups of all streams, in order; `_next` is the first that is not written."""
        self._next = 0
        self._is_sorted = False
        self._name = name
        self._open: list[RangeGroup] = []
        self._open_bytes = 0
        self._open_end = 0
        self.written = RangeBlocks(ranges=range_count)
        self.parsed_blocks = 0

    def feed(self, run: Buffer, first: int, last: int) -> Steps[None]:
        """`run` holds blocks first (inclusive) to last (exclusive). Errors: Corrupt."""
        self._sort()
        for block, data in blocks_of(run, self._old.positions, first, last):
            if not self._is_touched(block) and self._close_before_copy():
                self._copy(block, data)
                continue
            yield from self._merge_block(block, data)
            yield

    def finish(self) -> Steps[RangeBlocks]:
        self._sort()
        yield from self._add_new(EVERYTHING, 0)
        self._close()
        return self.written

    def _sort(self) -> None:
        if self._is_sorted:
            return
        self._is_sorted = True
        for stream_id in sorted(self._changes):
            change = self._changes[stream_id]
            if change.cut:
                self._cuts.append(stream_id)
            kept = (cut_group(group, change.cut) for group in change.added)
            self._new += [group for group in kept if group is not None]

    def _end_of_block(self, block: int) -> tuple[int, int]:
        """The first (stream, start) of the next block."""
        if block + 1 == len(self._old):
            return EVERYTHING, 0
        return self._old.streams[block + 1], self._old.starts[block + 1]

    def _is_touched(self, block: int) -> bool:
        first, start = self._old.streams[block], self._old.starts[block]
        following, end = self._end_of_block(block)
        if self._next < len(self._new) and _key(self._new[self._next]) < (following, end):
            return True
        if self._next:
            before = self._new[self._next - 1]
            if before.stream_id == first and end_of(before) > start:
                return True
        # For streams in between, and for the one that continues in the next block, the index does
        # not say where they begin in this block.
        low, high = bisect_left(self._cuts, first), bisect_right(self._cuts, following)
        if low < high and self._cuts[low] == first:
            if self._changes[first].cut > start:
                return True
            low += 1
        return low < high

    def _merge_block(self, block: int, data: memoryview) -> Steps[None]:
        self.parsed_blocks += 1
        groups = decode_ranges(data, self._name, self._old.positions[block])
        for group in groups:
            change = self._changes.get(group.stream_id)
            kept: Sequence[RangeGroup] = (group,)
            if change is not None:
                left = cut_group(group, change.cut)
                kept = (left,) if left is not None else ()
                kept = [piece for uncut in kept for piece in _visible_of(uncut, change.added)]
                self.written.ranges += sum(len(g.counts) for g in kept) - len(group.counts)
            for piece in kept:
                yield from self._add_new(*_key(piece))
                self._add(piece)
        yield from self._add_new(*self._end_of_block(block))

    def _add_new(self, stream_id: int, start: int) -> Steps[None]:
        """Adds the new groups that come before (stream_id, start)."""
        while self._next < len(self._new) and _key(self._new[self._next]) < (stream_id, start):
            group = self._new[self._next]
            self._next += 1
            self.written.ranges += len(group.counts)
            self._add(group)
            if self._next % STEP_STREAMS == 0:
                yield

    def _add(self, group: RangeGroup) -> None:
        # A long group is added in pieces of a block, because every split copies its rest.
        start = group.start
        for low in range(0, len(group.counts), PIECE_RANGES):
            high = low + PIECE_RANGES
            counts, objects = group.counts[low:high], group.objects[low:high]
            last = self._open[-1] if self._open else None
            if last is not None and last.stream_id == group.stream_id and self._open_end == start:
                last.counts.extend(counts)
                last.objects.extend(objects)
                self._open_bytes += RANGE_BYTES * len(counts)
            else:
                self._open.append(RangeGroup(group.stream_id, start, counts, objects))
                self._open_bytes += self._open[-1].size_bytes
            self._open_end = start = start + sum(counts)
            while self._open_bytes > 2 * PAYLOAD_MAX:
                self._write(PAYLOAD_MAX)

    def _close_before_copy(self) -> bool:
        """Writes the open groups; False: they are too few for a block of their own."""
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
        """Writes a block of about `size` bytes, at most PAYLOAD_MAX, from the open groups."""
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


def _visible_of(group: RangeGroup, newer: Sequence[RangeGroup]) -> Sequence[RangeGroup]:
    """The parts of an old group that no newer group covers."""
    low = bisect_right(newer, group.start, key=end_of)
    high = bisect_left(newer, end_of(group), low, key=_start)
    if low == high:
        return (group,)
    covers = [ObjectRange(_start(cover), end_of(cover), 0) for cover in newer[low:high]]
    kept, _ = uncovered(ranges_in(group), covers)
    return groups_from(group.stream_id, kept)


def _key(group: RangeGroup) -> tuple[int, int]:
    return group.stream_id, group.start


def _start(group: RangeGroup) -> int:
    return group.start
