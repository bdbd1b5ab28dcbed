"""Finds the live parts of objects' own rows. Many objects cost little more than one.

1. The rows of all objects become *windows*: adjacent or overlapping rows of a stream are one.
2. Each window is looked up once; ranges that lie in one of the objects are noted for it.
3. The noted ranges are cut at the object's own rows. Where all rows live, the columns are equal.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

from streamlog.format.rows import Rows
from streamlog.metadata.fold.overlay import ObjectRange
from streamlog.runtime.concurrency.steps import Steps, run_cooperatively

STEP_ROWS = 2048
"""About 1 ms."""
LOOKUP_ROWS = 20
"""A look-up without results costs as much as this number of rows."""

Find = Callable[[int, int, int], Awaitable[Sequence[ObjectRange]]]
"""(stream id, start, end) → the first live ranges in [start, end); [] if there is none."""


async def live_parts(own: Mapping[int, Rows], find: Find) -> dict[int, Rows]:
    """As CompactionMetadata.live_parts."""
    noted = {object_id: Rows() for object_id in own}
    done = 0
    for stream_id, windows in (await run_cooperatively(_windows(own.values()))).items():
        for start, end in windows:
            offset = start
            while offset < end:
                ranges = await find(stream_id, offset, end)
                for low, high, object_id in ranges:
                    rows = noted.get(object_id)
                    if rows is not None:
                        rows.streams.append(stream_id)
                        rows.starts.append(low)
                        rows.ends.append(high)
                done += LOOKUP_ROWS + len(ranges)
                if done >= STEP_ROWS:
                    done = 0
                    await asyncio.sleep(0)
                offset = ranges[-1].end if ranges else end
    return {i: await run_cooperatively(_cut(rows, noted[i])) for i, rows in own.items()}


def _windows(own: Iterable[Rows]) -> Steps[dict[int, list[tuple[int, int]]]]:
    """Stream id → its windows, sorted and disjoint."""
    starts: dict[int, int] = {}
    ends: dict[int, int] = {}
    others: dict[int, list[tuple[int, int]]] = {}
    for rows in own:
        for low in range(0, len(rows), STEP_ROWS):
            part = slice(low, low + STEP_ROWS)
            for stream_id, start, end in zip(
                rows.streams[part], rows.starts[part], rows.ends[part], strict=True
            ):
                # Uploads follow one another: the next row mostly begins where the last one ended.
                last_end = ends.get(stream_id)
                if last_end != start:
                    if last_end is not None:
                        others.setdefault(stream_id, []).append((starts[stream_id], last_end))
                    starts[stream_id] = start
                ends[stream_id] = end
            yield
    windows: dict[int, list[tuple[int, int]]] = {}
    for number, stream_id in enumerate(sorted(starts)):
        last = (starts[stream_id], ends[stream_id])
        earlier = others.get(stream_id)
        windows[stream_id] = [last] if earlier is None else _merged([*earlier, last])
        if number % STEP_ROWS == STEP_ROWS - 1:
            yield
    return windows


def _merged(windows: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for start, end in sorted(windows):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def _cut(own: Rows, noted: Rows) -> Steps[Rows]:
    """The object's own rows where they overlap its live ranges, `noted`."""
    if (own.streams, own.starts, own.ends) == (noted.streams, noted.starts, noted.ends):
        return own
    live, first, count = Rows(), 0, len(noted)
    streams, starts, ends = noted.streams, noted.starts, noted.ends
    for number, row in enumerate(own):
        if number % STEP_ROWS == STEP_ROWS - 1:
            yield
        while first < count and (streams[first], ends[first]) <= (row.stream_id, row.start):
            first += 1
        is_first, index = True, first
        while index < count and streams[index] == row.stream_id and starts[index] < row.end:
            low, high = max(row.start, starts[index]), min(row.end, ends[index])
            if not is_first and live.ends[-1] == low:
                live.ends[-1] = high
            else:
                live.append(row._replace(start=low, end=high))
            is_first = False
            index += 1
    return live
