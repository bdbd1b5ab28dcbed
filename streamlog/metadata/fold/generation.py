"""Ranges, objects and cuts folded since a point in time, in compact arrays.

1. `ranges[s]` is one array: start, then end and object id of each range, which are adjacent. 16 B
   per range.
2. A generation only grows. A checkpoint freezes it and begins a new one, so that the merge can read
   it in another thread without a copy.
3. `cuts[s]` is the stream's start before the first trim or the destruction in this generation.
4. `patches[s]` is one array of start, end and object id: ranges that compactions put over older
   ones, of any generation. Patches are sorted and disjoint; they hide what they cover. 24 B each.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

from streamlog.metadata.fold.overlay import ObjectRange, filled, uncovered
from streamlog.metadata.interface import ObjectRow

SPAN_MAX = (1 << 32) - 1
"""Offsets in one range: a checkpoint keeps them as u32."""
NOTHING = array("Q")


class NewObjectEntry(NamedTuple):
    """An object committed in this generation, with the number of ranges that it was added with.

    Ranges that died since still count, but for those that a compaction in this same generation
    replaced.
    """

    row: ObjectRow
    ranges: int
    revision: int


class Generation:
    __slots__ = ("bytes", "cuts", "objects", "patch_count", "patches", "ranges", "records", "rows")

    def __init__(self) -> None:
        self.ranges: dict[int, array[int]] = {}
        self.objects: dict[int, NewObjectEntry] = {}
        self.cuts: dict[int, int] = {}
        self.patches: dict[int, array[int]] = {}
        self.patch_count = 0
        self.records = 0
        self.rows = 0
        self.bytes = 0

    @property
    def is_empty(self) -> bool:
        return self.records == 0

    def absorb(self, newer: Generation) -> None:
        """Adds the content of the generation that follows this one."""
        for stream_id, ranges in newer.ranges.items():
            older = self.ranges.get(stream_id)
            if older is None:
                self.ranges[stream_id] = ranges
            else:
                older.extend(ranges[1:])
        self.objects.update(newer.objects)
        for stream_id, patches in newer.patches.items():
            self.apply_patch(stream_id, pieces_of(patches))
        for stream_id, start in newer.cuts.items():
            self.cuts.setdefault(stream_id, start)
        self.records += newer.records
        self.rows += newer.rows
        self.bytes += newer.bytes

    def apply_patch(self, stream_id: int, pieces: Sequence[ObjectRange]) -> None:
        """Adds patches, sorted and disjoint; earlier patches that they cover are removed."""
        earlier = self.patches.get(stream_id, NOTHING)
        low = bisect_right(memoryview(earlier)[1::3], pieces[0].start)
        high = bisect_left(memoryview(earlier)[0::3], pieces[-1].end)
        kept, hidden = uncovered(pieces_of(earlier[3 * low : 3 * high]), pieces)
        for patch in hidden:
            entry = self.objects[patch.object_id]
            self.objects[patch.object_id] = entry._replace(ranges=entry.ranges - 1)
        made = array("Q", chain.from_iterable(sorted([*kept, *pieces])))
        self.patches[stream_id] = earlier[: 3 * low] + made + earlier[3 * high :]
        self.patch_count += (len(self.patches[stream_id]) - len(earlier)) // 3


def find(ranges: array[int], start: int, end: int, limit: int) -> list[ObjectRange]:
    """The first ranges, up to `limit`, that overlap [start, end), in order."""
    ends = memoryview(ranges)[1::2]
    first = bisect_right(ends, start)
    # Each range begins where the one before it ends.
    last = min(1 + bisect_left(ends, end, first), len(ends), first + limit)
    if first >= last or (ranges[2 * first - 1] if first else ranges[0]) >= end:
        return []
    lows = (
        ranges[2 * first - 1 : 2 * last - 1 : 2]
        if first
        else ranges[0:1] + ranges[1 : 2 * last - 1 : 2]
    )
    overlapping = map(
        ObjectRange,
        lows,
        ranges[2 * first + 1 : 2 * last : 2],
        ranges[2 * first + 2 : 2 * last + 1 : 2],
    )
    return list(overlapping)


def covers(generations: Sequence[Generation], stream_id: int, start: int) -> bool:
    """Whether these generations hold every range of the stream from `start` on."""
    for generation in generations:
        ranges = generation.ranges.get(stream_id)
        if ranges is not None:
            return ranges[0] <= start
    return False


def pieces_of(patches: array[int]) -> list[ObjectRange]:
    """The patches of one stream as ranges."""
    flat = iter(patches)
    return [ObjectRange(*patch) for patch in zip(flat, flat, flat, strict=True)]


def find_patches(patches: array[int], start: int, end: int, limit: int) -> list[ObjectRange]:
    """As `find`."""
    index = bisect_right(memoryview(patches)[1::3], start)
    last = bisect_left(memoryview(patches)[0::3], end, index)
    return pieces_of(patches[3 * index : 3 * min(last, index + limit)])


def find_in_all(
    generations: Sequence[Generation], stream_id: int, start: int, end: int, limit: int
) -> list[ObjectRange]:
    """The first ranges, up to `limit`, of these generations (the newest last) in [start, end).

    Where only files have ranges, the result has gaps.
    """
    if not generations or limit < 1:
        return []
    *older, newest = generations
    patches, ranges = newest.patches.get(stream_id), newest.ranges.get(stream_id)

    def under(low: int, high: int, room: int) -> list[ObjectRange]:
        """Ranges of this generation begin where those of older generations end."""
        if ranges is None:
            return find_in_all(older, stream_id, low, high, room)
        from_older: list[ObjectRange] = []
        if low < ranges[0]:
            from_older = find_in_all(older, stream_id, low, min(high, ranges[0]), room)
        return from_older + find(ranges, low, high, room - len(from_older))

    if patches is None:
        return under(start, end, limit)
    return filled(find_patches(patches, start, end, limit), start, end, limit, under)


def make_one(generations: list[Generation]) -> None:
    """Merges all generations into the first. No running checkpoint may read one of them."""
    first, *others = generations
    for newer in others:
        first.absorb(newer)
    del generations[1:]
