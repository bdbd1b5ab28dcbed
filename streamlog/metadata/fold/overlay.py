"""Ranges of one stream laid over older ones. Pure.

Lists of ranges are sorted and disjoint. A newer range hides what is under it; it ends where an
older one does, and begins where one does or where the stream began, so:
1. An older range whose last offset is covered is hidden as a whole, and is counted off its object.
2. Of any other range only the front can be covered, and that happens in damaged metadata alone.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from typing import NamedTuple


class FoundRange(NamedTuple):
    start: int
    end: int
    object_id: int


NO_END = 1 << 64
Below = Callable[[int, int, int], list[FoundRange]]
Filling = Generator[tuple[int, int, int], list[FoundRange], list[FoundRange]]


def uncovered(
    lower: Iterable[FoundRange], upper: Sequence[FoundRange]
) -> tuple[list[FoundRange], list[FoundRange]]:
    """What is left of `lower` under `upper`, and what is hidden."""
    kept: list[FoundRange] = []
    hidden: list[FoundRange] = []
    at, count = 0, len(upper)
    for one in lower:
        while at < count and upper[at].end <= one.start:
            at += 1
        index, start = at, one.start
        while index < count and upper[index].start < one.end:
            start = upper[index].end
            index += 1
        if start >= one.end:
            hidden.append(one)
        else:
            kept.append(one if start == one.start else one._replace(start=start))
    return kept, hidden


def laid_over(lower: Iterable[FoundRange], upper: Sequence[FoundRange]) -> list[FoundRange]:
    """Both, with `upper` over `lower`."""
    kept, _ = uncovered(lower, upper)
    return sorted([*kept, *upper])


def fill(upper: Sequence[FoundRange], start: int, end: int, limit: int) -> Filling:
    """The first ranges up to `limit` that overlap [start, end): those of `upper`, and between them
    what lies below, asked for by yielding (start, end, limit) of each gap.

    `upper` has the first up to `limit` of its own.
    """
    found: list[FoundRange] = []
    at = start
    for one in upper:
        if len(found) >= limit:
            return found
        if at < one.start:
            below = yield at, one.start, limit - len(found)
            found += _clipped(below, at if at > start else 0, one.start)
        if len(found) >= limit:
            return found
        found.append(one)
        at = one.end
    if at < end and len(found) < limit:
        below = yield at, end, limit - len(found)
        found += _clipped(below, at if at > start else 0, NO_END)
    return found


def _clipped(ranges: list[FoundRange], start: int, end: int) -> list[FoundRange]:
    """Sorted and disjoint: the first alone can begin too soon, the last alone end too late."""
    if ranges and ranges[0].start < start:
        ranges = [ranges[0]._replace(start=start), *ranges[1:]]
    if ranges and ranges[-1].end > end:
        ranges = [*ranges[:-1], ranges[-1]._replace(end=end)]
    return ranges


def filled(
    upper: Sequence[FoundRange], start: int, end: int, limit: int, below: Below
) -> list[FoundRange]:
    """`fill`, each gap answered by `below(start, end, limit)`."""
    filling = fill(upper, start, end, limit)
    try:
        gap = next(filling)
        while True:
            gap = filling.send(below(*gap))
    except StopIteration as done:
        found: list[FoundRange] = done.value
        return found
