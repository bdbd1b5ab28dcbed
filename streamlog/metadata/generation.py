"""Ranges, objects and cuts folded since a point in time, compact, in memory.

1. `ranges[s]` is one array: start, then end and object id of each range; ranges meet. 16 B a
   range.
2. A generation grows only; a checkpoint freezes it and a new one is begun, so that the merge reads
   it from another thread without a copy.
3. `cuts[s]` is the stream's start before the first trim or the destruction in this generation.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from typing import NamedTuple

from streamlog.metadata.interface import ObjectRow

SPAN_MAX = (1 << 32) - 1
"""Offsets in one range: a checkpoint keeps them as u32."""


class FoundRange(NamedTuple):
    start: int
    end: int
    object_id: int


class NewObjectEntry(NamedTuple):
    """An object committed in this generation; `ranges` it brought, dead ones among them."""

    row: ObjectRow
    ranges: int
    revision: int


class Generation:
    __slots__ = ("bytes", "cuts", "objects", "ranges", "records", "rows")

    def __init__(self) -> None:
        self.ranges: dict[int, array[int]] = {}
        self.objects: dict[int, NewObjectEntry] = {}
        self.cuts: dict[int, int] = {}
        self.records = 0
        self.rows = 0
        self.bytes = 0

    @property
    def is_empty(self) -> bool:
        return self.records == 0

    def absorb(self, newer: Generation) -> None:
        """Takes in the generation that follows this one."""
        for stream_id, ranges in newer.ranges.items():
            known = self.ranges.get(stream_id)
            if known is None:
                self.ranges[stream_id] = ranges
            else:
                known.extend(ranges[1:])
        self.objects.update(newer.objects)
        for stream_id, start in newer.cuts.items():
            self.cuts.setdefault(stream_id, start)
        self.records += newer.records
        self.rows += newer.rows
        self.bytes += newer.bytes


def span(ranges: array[int]) -> tuple[int, int]:
    """First start and last end of a generation's ranges of one stream."""
    return ranges[0], ranges[-2]


def find(ranges: array[int], start: int, end: int, limit: int) -> list[FoundRange]:
    """Those that overlap [start, end), in order, the first up to `limit`."""
    count = len(ranges) // 2
    index = bisect_right(memoryview(ranges)[1::2], start)
    found: list[FoundRange] = []
    while index < count and len(found) < limit:
        at = 2 * index
        low = ranges[at - 1] if index else ranges[0]
        if low >= end:
            break
        found.append(FoundRange(low, ranges[at + 1], ranges[at + 2]))
        index += 1
    return found
