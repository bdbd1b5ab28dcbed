"""Overlays newer ranges of one stream over older ones. Pure.

Lists of ranges are sorted and disjoint. A newer range hides the older ranges that it covers. It
ends where an older one does, and begins where one does or where the stream began. Therefore:
1. An older range whose last offset is covered is hidden as a whole, and is counted off its object.
2. Any other range can be covered at its front only, and only in damaged metadata.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from typing import NamedTuple


class ObjectRange(NamedTuple):
    """Offsets [start, end) of a stream that lie in one object."""

    start: int
    end: int
    object_id: int


NO_END = 1 << 64
Below = Callable[[int, int, int], list[ObjectRange]]
Filling = Generator[tuple[int, int, int], list[ObjectRange], list[ObjectRange]]


def uncovered(
    lower: Iterable[ObjectRange], upper: Sequence[ObjectRange]
) -> tuple[list[ObjectRange], list[ObjectRange]]:
    """The ranges of `lower` that `upper` leaves visible, and those that it hides."""
    kept: list[ObjectRange] = []
    hidden: list[ObjectRange] = []
    first, count = 0, len(upper)
    for older in lower:
        while first < count and upper[first].end <= older.start:
            first += 1
        index, start = first, older.start
        while index < count and upper[index].start < older.end:
            start = upper[index].end
            index += 1
        if start >= older.end:
            hidden.append(older)
        else:
            kept.append(older if start == older.start else older._replace(start=start))
    return kept, hidden


def overlaid(lower: Iterable[ObjectRange], upper: Sequence[ObjectRange]) -> list[ObjectRange]:
    """Both lists as one, with `upper` over `lower`."""
    kept, _ = uncovered(lower, upper)
    return sorted([*kept, *upper])


def fill(upper: Sequence[ObjectRange], start: int, end: int, limit: int) -> Filling:
    """The first ranges, up to `limit`, that overlap [start, end): those of `upper`, and in the gaps
    between them older ones.

    Yields (start, end, limit) of each gap and expects its older ranges. `upper` holds its own first
    ranges up to `limit`.
    """
    ranges: list[ObjectRange] = []
    offset = start
    for newer in upper:
        if len(ranges) >= limit:
            return ranges
        if offset < newer.start:
            below = yield offset, newer.start, limit - len(ranges)
            ranges += _clipped(below, offset if offset > start else 0, newer.start)
        if len(ranges) >= limit:
            return ranges
        ranges.append(newer)
        offset = newer.end
    if offset < end and len(ranges) < limit:
        below = yield offset, end, limit - len(ranges)
        ranges += _clipped(below, offset if offset > start else 0, NO_END)
    return ranges


def _clipped(ranges: list[ObjectRange], start: int, end: int) -> list[ObjectRange]:
    """Only the first range can begin too soon, and only the last end too late."""
    if ranges and ranges[0].start < start:
        ranges = [ranges[0]._replace(start=start), *ranges[1:]]
    if ranges and ranges[-1].end > end:
        ranges = [*ranges[:-1], ranges[-1]._replace(end=end)]
    return ranges


def filled(
    upper: Sequence[ObjectRange], start: int, end: int, limit: int, below: Below
) -> list[ObjectRange]:
    """As `fill`; `below(start, end, limit)` returns the older ranges of each gap."""
    filling = fill(upper, start, end, limit)
    try:
        gap = next(filling)
        while True:
            gap = filling.send(below(*gap))
    except StopIteration as done:
        ranges: list[ObjectRange] = done.value
        return ranges
