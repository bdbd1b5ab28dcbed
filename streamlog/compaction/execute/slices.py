"""The order in which a spec's bytes are read: slices that fit into memory, each of few large GETs.

1. Each part (a live range of an input) goes to the output whose row covers it, in order.
2. Parts are cut into slices by the bytes of their blocks; a slice with many inputs may be larger.
   Inputs are sorted by stream, so that a slice's blocks in one input are neighbours.
3. Neighbouring blocks of a slice in one input are read by one GET, small gaps included.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from heapq import merge
from typing import NamedTuple

from streamlog.compaction.plan.spec import CompactionSpec, Rows
from streamlog.errors import Internal
from streamlog.format.object.block import BlockRow
from streamlog.format.object.index import ObjectIndex
from streamlog.format.ranged_gets import plan_gets

GET_BYTES = 16 << 20
"""A GET ends with the block that reaches this size."""
GET_BYTES_WANTED = 4 << 20
"""A request costs as much CPU as so many bytes."""


class SlicePart(NamedTuple):
    """`blocks` of input number `input` hold offsets start to end (exclusive)."""

    input: int
    stream_id: int
    epoch: int
    start: int
    end: int
    blocks: Sequence[BlockRow]


class SliceGet(NamedTuple):
    """Bytes start to end (exclusive) of an input."""

    input: int
    start: int
    end: int


@dataclass(slots=True)
class Slice:
    """Parts of one output, in order. `is_last`: it is the output's last slice."""

    output: int
    parts: list[SlicePart] = field(default_factory=list)
    inputs: set[int] = field(default_factory=set)
    """Numbers of the inputs that it has blocks of."""
    size_bytes: int = 0
    is_last: bool = False

    def gets(self) -> list[SliceGet]:
        """By (input, start)."""
        # A block that two parts share is read once.
        blocks: dict[int, dict[int, BlockRow]] = {}
        for part in self.parts:
            of_input = blocks.setdefault(part.input, {})
            of_input.update((block.position, block) for block in part.blocks)
        return [
            SliceGet(number, get.start, get.end)
            for number, of_input in sorted(blocks.items())
            for get in plan_gets((of_input[position] for position in sorted(of_input)), GET_BYTES)
        ]


def slices(
    spec: CompactionSpec,
    indexes: Sequence[ObjectIndex],
    slice_bytes: int,
    slice_bytes_max: int,
) -> Iterator[Slice]:
    """The slices of one output after the other.

    A slice of many inputs has little of each, so it grows past `slice_bytes` until its GETs are
    large enough. Burns CPU: microseconds a part. Errors: Corrupt, Internal.
    """
    cursors = [_Cursor(index) for index in indexes]
    for output, parts in enumerate(_assigned(spec)):
        current = Slice(output)
        for number, stream_id, epoch, start, end in zip(*parts, strict=True):
            blocks: list[BlockRow] = []
            at = start
            for block in cursors[number].take(stream_id, start, end):
                size_bytes = current.size_bytes + block.length
                if current.size_bytes and (
                    size_bytes > slice_bytes_max
                    or size_bytes > max(slice_bytes, GET_BYTES_WANTED * len(current.inputs))
                ):
                    if blocks:
                        split = min(block.start, end)
                        current.parts.append(SlicePart(number, stream_id, epoch, at, split, blocks))
                        at, blocks = split, []
                    yield current
                    current = Slice(output)
                blocks.append(block)
                current.inputs.add(number)
                current.size_bytes += block.length
            current.parts.append(SlicePart(number, stream_id, epoch, at, end, blocks))
        current.is_last = True
        yield current


def _assigned(spec: CompactionSpec) -> list[tuple[array[int], ...]]:
    """Each output's parts, by (stream, start), as columns: input, stream, epoch, start, end."""
    places: dict[int, list[tuple[int, int, int]]] = {}
    left = 0
    for number, output in enumerate(spec.outputs):
        for row in output.rows:
            places.setdefault(row.stream_id, []).append((row.start, row.end, number))
            left += row.end - row.start
    for rows in places.values():
        rows.sort()
    assigned = [tuple(array("Q") for _ in range(5)) for _ in spec.outputs]
    for stream_id, start, end, epoch, number in merge(
        *(_parts(number, one.rows) for number, one in enumerate(spec.inputs))
    ):
        rows = places.get(stream_id, [])
        at = bisect_right(rows, (start, 1 << 64, 0)) - 1
        if at < 0 or end > rows[at][1]:
            raise Internal(f"a compaction spec has no output for {start} to {end} of {stream_id}")
        columns = assigned[rows[at][2]]
        for column, value in zip(columns, (number, stream_id, epoch, start, end), strict=True):
            column.append(value)
        left -= end - start
    if left:
        raise Internal(f"a compaction spec has outputs with {left} offsets that no input holds")
    return assigned


def _parts(number: int, rows: Rows) -> Iterator[tuple[int, int, int, int, int]]:
    for stream, start, end, epoch in zip(
        rows.streams, rows.starts, rows.ends, rows.epochs, strict=True
    ):
        yield stream, start, end, epoch, number


class _Cursor:
    """Looks blocks up in an index; begins where the last look-up ended, mostly the right place."""

    def __init__(self, index: ObjectIndex) -> None:
        self._index = index
        self._at = 0
        self._place = (-1, -1)
        self._seen: tuple[int, BlockRow] | None = None
        """Number and row of the last block that was looked up: mostly the next one wanted."""

    def take(self, stream_id: int, start: int, end: int) -> list[BlockRow]:
        """The stream's blocks that overlap [start, end), in order."""
        index = self._index
        if (stream_id, start) < self._place or not self._is_near(stream_id, start):
            self._at = index.numbers_for(stream_id, start, end).start
        self._place = (stream_id, end)
        blocks: list[BlockRow] = []
        while self._at < len(index):
            block = self._block(self._at)
            if (block.stream_id, block.end) > (stream_id, start):
                if block.stream_id != stream_id or block.start >= end:
                    break
                blocks.append(block)
                if block.end > end:
                    break
            self._at += 1
        return blocks

    def _is_near(self, stream_id: int, start: int) -> bool:
        """Whether the stream's first block is one of the next few."""
        if self._at + 4 >= len(self._index):
            return True
        block = self._block(self._at)
        if (block.stream_id, block.end) <= (stream_id, start):
            block = self._index.block(self._at + 4)
        return (block.stream_id, block.end) > (stream_id, start)

    def _block(self, number: int) -> BlockRow:
        if self._seen is None or self._seen[0] != number:
            self._seen = number, self._index.block(number)
        return self._seen[1]
