"""Offset windows and where they lie → tasks. Pure.

1. Offsets of a window that its runs cover are read from objects; offsets after them are fetched
   from a node. Offsets before them are lost: they were deleted after the look-up of offsets.
2. A run is cut into parts of equal cost, each `part_bytes` at most. The cost is its bytes and
   REQUEST_BYTES per range, because a range of any size costs requests.
3. Small parts share a task with their neighbours by stream: these are neighbours in objects, too,
   so that one GET brings several parts.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from streamlog.errors import Corrupt, Unavailable
from streamlog.model.located import (
    AbortedSpan,
    Located,
    LocatedRun,
    ObjectTable,
    OffsetWindow,
)
from streamlog.spark.plan.types import Piece, ServicePiece, StorePiece, TaskPlan

REQUEST_BYTES = 32 << 10
RECORD_BYTES_GUESSED = 512
"""Guessed size of a record that no object has yet."""


@dataclass(frozen=True, slots=True)
class Lost:
    """Offsets start to end (exclusive) of a window that were deleted."""

    topic: str
    partition: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """`store_records` are read from objects, `service_records` fetched from a node."""

    tasks: list[TaskPlan]
    lost: list[Lost]
    store_records: int
    service_records: int


def plan_service(
    windows: Iterable[OffsetWindow], *, max_bytes: int, min_tasks: int | None
) -> ReadPlan:
    """Plans a read through a node alone."""
    pieces = [_fetched(window, window.start) for window in windows if window.count > 0]
    records = sum(piece.end - piece.start for piece in pieces)
    return ReadPlan(_tasks(pieces, None, max_bytes, min_tasks), [], 0, records)


def plan_store(
    windows: Sequence[OffsetWindow],
    located: Located,
    *,
    max_bytes: int,
    min_tasks: int | None,
    has_node: bool,
) -> ReadPlan:
    """Plans a read from objects, and of records that no object has yet through a node.

    Errors: Unavailable, if such records exist and there is no node; Corrupt for a hole.
    """
    by_window: list[list[LocatedRun]] = [[] for _ in windows]
    for run in located.runs:
        by_window[run.window].append(run)
    pieces: list[Piece] = []
    lost: list[Lost] = []
    from_store = from_node = 0
    for number, (window, runs) in enumerate(zip(windows, by_window, strict=True)):
        offset = window.start
        aborted = located.aborted.get(number, ())
        for run in sorted(runs, key=_start):
            if run.start > offset:
                if offset > window.start:
                    raise _hole(window, offset, run.start)
                lost.append(Lost(window.topic, window.partition, offset, run.start))
            pieces.append(_stored(window, run, aborted))
            from_store += run.end - run.start
            offset = run.end
        if offset < window.end:
            if not has_node:
                raise Unavailable(
                    f"offsets {offset} to {window.end} of {window.topic}-{window.partition} are in "
                    "no object and no node is named that could give them: set the option server"
                )
            pieces.append(_fetched(window, offset))
            from_node += window.end - offset
    tasks = _tasks(pieces, located.objects, max_bytes, min_tasks)
    return ReadPlan(tasks, lost, from_store, from_node)


def _start(run: LocatedRun) -> int:
    return run.start


def _hole(window: OffsetWindow, start: int, end: int) -> Corrupt:
    return Corrupt(
        f"the metadata has no object for offsets {start} to {end} of {window.topic}-"
        f"{window.partition}: run fsck",
        object_key="",
        start=start,
        end=end,
    )


def _stored(window: OffsetWindow, run: LocatedRun, aborted: Iterable[AbortedSpan]) -> StorePiece:
    cost = run.size_bytes + REQUEST_BYTES * len(run.ends)
    return StorePiece(
        window.topic,
        window.partition,
        run.stream_id,
        run.shift,
        run.start,
        run.ends,
        run.objects,
        cost,
        window.topic_id,
        _overlapping(aborted, run.start, run.end),
    )


def _overlapping(aborted: Iterable[AbortedSpan], start: int, end: int) -> tuple[AbortedSpan, ...]:
    return tuple(span for span in aborted if span.first_offset < end and span.last_offset >= start)


def _fetched(window: OffsetWindow, start: int) -> ServicePiece:
    cost = (window.end - start) * RECORD_BYTES_GUESSED
    return ServicePiece(window.topic, window.partition, start, window.end, cost, window.topic_id)


# tasks


def _tasks(
    pieces: Sequence[Piece], objects: ObjectTable | None, max_bytes: int, min_tasks: int | None
) -> list[TaskPlan]:
    ordered = sorted(pieces, key=_place)
    part_bytes = max_bytes
    # Half: cut parts are about `max_bytes` already, shared tasks may be smaller.
    shared_bytes = max(max_bytes // 2, 1)
    if min_tasks is not None:
        total = sum(piece.cost_bytes for piece in ordered)
        part_bytes = max(min(max_bytes, total // min_tasks), 1)
        shared_bytes = min(shared_bytes, part_bytes)
    shared = _shared(ordered, part_bytes, shared_bytes)
    # If costs of records differ much, there may still be too few tasks.
    while min_tasks is not None and len(shared) < min_tasks and part_bytes > 1:
        part_bytes //= 2
        shared = _shared(ordered, part_bytes, min(part_bytes, shared_bytes))
    table = None if objects is None else _Table(objects)
    return [_task(parts, table) for parts in shared]


def _shared(pieces: Sequence[Piece], part_bytes: int, shared_bytes: int) -> list[list[Piece]]:
    """The parts of each task: neighbours up to `shared_bytes` together, or one larger part."""
    tasks: list[list[Piece]] = []
    size = 0
    for piece in pieces:
        for part in _parts(piece, part_bytes):
            if not tasks or size + part.cost_bytes > shared_bytes:
                tasks.append([])
                size = 0
            tasks[-1].append(part)
            size += part.cost_bytes
    return tasks


def _place(piece: Piece) -> tuple[bool, int, str, int, int]:
    if isinstance(piece, StorePiece):
        return (False, piece.stream_id, piece.topic, piece.partition, piece.start)
    return (True, 0, piece.topic, piece.partition, piece.start)


def _parts(piece: Piece, most: int) -> Iterator[Piece]:
    """Parts of equal numbers of offsets, because sizes within a piece are unknown."""
    offsets = piece.end - piece.start
    count = min(-(-piece.cost_bytes // most), offsets)
    if count <= 1:
        yield piece
        return
    start = piece.start
    for number in range(1, count + 1):
        end = piece.start + offsets * number // count
        if isinstance(piece, StorePiece):
            end = piece.end if number == count else _snapped(piece, start, end, offsets // count)
        if end > start:
            yield _part(piece, start, end)
            start = end


def _snapped(piece: StorePiece, start: int, end: int, span: int) -> int:
    """The nearest end of a range, if it is near: a cut within a block makes two tasks read it."""
    number = bisect_left(piece.ends, end)
    for range_end in piece.ends[max(number - 1, 0) : number + 1]:
        if range_end > start and abs(range_end - end) <= span // 4:
            return range_end
    return end


def _part(piece: Piece, start: int, end: int) -> Piece:
    cost = piece.cost_bytes * (end - start) // (piece.end - piece.start)
    if isinstance(piece, ServicePiece):
        return ServicePiece(piece.topic, piece.partition, start, end, cost, piece.topic_id)
    first = bisect_right(piece.ends, start)
    last = bisect_left(piece.ends, end)
    ends: array[int] = piece.ends[first : last + 1]
    ends[-1] = end
    return StorePiece(
        piece.topic,
        piece.partition,
        piece.stream_id,
        piece.shift,
        start,
        ends,
        piece.objects[first : last + 1],
        cost,
        piece.topic_id,
        _overlapping(piece.aborted, start, end),
    )


class _Table:
    """The objects of a whole plan; each task gets those that its pieces name."""

    def __init__(self, objects: ObjectTable) -> None:
        columns = [
            np.frombuffer(column, np.dtype(column.typecode)) if len(column) else np.zeros(0)
            for column in objects.columns
        ]
        order = np.argsort(columns[0], kind="stable")
        self._columns = [column[order] for column in columns]
        self._placements = objects.placements

    def of(self, pieces: Sequence[StorePiece]) -> ObjectTable:
        """Errors: Corrupt, if a piece names an unknown object."""
        if not pieces:
            return ObjectTable()
        parts = [np.frombuffer(piece.objects, np.uint64) for piece in pieces]
        wanted = np.unique(parts[0] if len(parts) == 1 else np.concatenate(parts))
        ids = self._columns[0]
        rows = ids.searchsorted(wanted)
        if not len(ids) or rows[-1] == len(ids) or (ids[rows] != wanted).any():
            raise Corrupt("the metadata names objects that it does not describe: run fsck")
        table = ObjectTable()
        for column, values in zip(table.columns, self._columns, strict=True):
            column.frombytes(values[rows].tobytes())
        if self._placements:
            mine = self._placements.keys() & set(table.ids)
            table.placements.update((key, self._placements[key]) for key in mine)
        return table


def _task(pieces: Sequence[Piece], table: _Table | None) -> TaskPlan:
    stored = [piece for piece in pieces if isinstance(piece, StorePiece)]
    objects = table.of(stored) if table is not None else ObjectTable()
    return TaskPlan(tuple(pieces), objects)
