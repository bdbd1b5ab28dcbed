"""Which parts of objects' own rows live. Many objects at once cost little more than one.

1. Rows of all objects become *windows*: those of a stream that meet or overlap are one.
2. A window is looked up once; what lies in one of the objects is noted for it.
3. What is noted is cut at the object's own rows. Where all of it lives, columns are equal.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

from streamlog.format.rows import Rows
from streamlog.metadata.fold.overlay import FoundRange
from streamlog.metadata.steps import Steps, run_breathing

STEP_ROWS = 2048
"""About 1 ms."""
LOOKUP_ROWS = 20
"""Rows that take as long as a look-up without results."""

Find = Callable[[int, int, int], Awaitable[Sequence[FoundRange]]]
"""Live ranges of a stream that overlap [start, end), the first ones; [] where there is none."""


async def live_parts(own: Mapping[int, Rows], find: Find) -> dict[int, Rows]:
    """As CompactionMetadata.live_parts."""
    noted = {object_id: Rows() for object_id in own}
    done = 0
    for stream_id, windows in (await run_breathing(_windows(own.values()))).items():
        for start, end in windows:
            at = start
            while at < end:
                found = await find(stream_id, at, end)
                for low, high, object_id in found:
                    rows = noted.get(object_id)
                    if rows is not None:
                        rows.streams.append(stream_id)
                        rows.starts.append(low)
                        rows.ends.append(high)
                done += LOOKUP_ROWS + len(found)
                if done >= STEP_ROWS:
                    done = 0
                    await asyncio.sleep(0)
                at = found[-1].end if found else end
    return {i: await run_breathing(_cut(rows, noted[i])) for i, rows in own.items()}


def _windows(own: Iterable[Rows]) -> Steps[dict[int, list[tuple[int, int]]]]:
    """By stream; a stream's in order and disjoint."""
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
                known = ends.get(stream_id)
                if known != start:
                    if known is not None:
                        others.setdefault(stream_id, []).append((starts[stream_id], known))
                    starts[stream_id] = start
                ends[stream_id] = end
            yield
    found: dict[int, list[tuple[int, int]]] = {}
    for number, stream_id in enumerate(sorted(starts)):
        last = (starts[stream_id], ends[stream_id])
        known_ones = others.get(stream_id)
        found[stream_id] = [last] if known_ones is None else _merged([*known_ones, last])
        if number % STEP_ROWS == STEP_ROWS - 1:
            yield
    return found


def _merged(windows: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for start, end in sorted(windows):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((start, end))
    return found


def _cut(own: Rows, noted: Rows) -> Steps[Rows]:
    """Its own rows where they overlap its live ranges, `noted`; neighbours in a row as one."""
    if (own.streams, own.starts, own.ends) == (noted.streams, noted.starts, noted.ends):
        return own
    live, at, count = Rows(), 0, len(noted)
    streams, starts, ends = noted.streams, noted.starts, noted.ends
    for number, row in enumerate(own):
        if number % STEP_ROWS == STEP_ROWS - 1:
            yield
        while at < count and (streams[at], ends[at]) <= (row.stream_id, row.start):
            at += 1
        is_first, index = True, at
        while index < count and streams[index] == row.stream_id and starts[index] < row.end:
            low, high = max(row.start, starts[index]), min(row.end, ends[index])
            if not is_first and live.ends[-1] == low:
                live.ends[-1] = high
            else:
                live.append(row._replace(start=low, end=high))
            is_first = False
            index += 1
    return live
