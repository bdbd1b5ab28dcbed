"""Finds out which object holds which offsets of a stream, from the objects' footers. Pure.

1. A holder of a stream begins at the end of all earlier commits, and a row is committed whole or
   not at all. So a row that goes past the first offset of a higher epoch was never committed, not
   even before that offset, where the higher epoch's own first rows may be missing. Such a row is
   left out. If it is certain (6), because offsets were given out again after a loss, the higher
   epoch is right from its first offset on.
2. Within an epoch each offset was assigned once, so overlapping rows hold the same records (inputs
   and outputs of a compaction, an upload that was sent twice).
3. The ranges of a checkpoint stand. If it names an object that is gone, another row with the same
   offsets takes its place (the object was compacted since); else the range stays and is reported.
4. Rows that the checkpoint does not know continue where it ends, under its epoch or a later one.
5. A stream ends where offsets are missing: an upload with them never arrived, so nothing behind
   them was acknowledged. The exception are offsets behind them that were certainly committed: then
   the missing ones were trimmed and deleted, and the stream starts behind them.
6. Offsets are certain if an object that holds them is certain, even if another object serves them.
   An object is certain if a compactor wrote it, because a compactor copies committed data; or if
   its tenure stored another object so much later that the window of uncommitted ids had passed it.
   A later epoch behind an offset proves nothing: the beginning of that epoch may be missing.
7. If checkpoints are lost, or there never was one, missing offsets may also have been trimmed: an
   object that other streams still need keeps the trimmed beginning of a stream, while the objects
   between it and the live part were deleted. Nothing in the footers tells which part is right. A
   meta stream tells it of itself and of its partition's other streams (`topics`); of any other
   stream the part with the most records behind the certain offsets is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple


class Row(NamedTuple):
    """Offsets start to end (exclusive) of a stream, written under `epoch` into an object."""

    epoch: int
    start: int
    end: int
    object_id: int


class Piece(NamedTuple):
    start: int
    end: int
    object_id: int


@dataclass(frozen=True, slots=True)
class Known:
    """The stream in a checkpoint; pieces meet from start to end."""

    epoch: int
    start: int
    end: int
    pieces: Sequence[Piece]


@dataclass(slots=True)
class Resolved:
    """`runs`: parts whose pieces meet, by offset; what lies between two of them is in no object.

    The stream is the part at `index`, and can be none before `first`. `is_guess`: the objects do
    not tell which one it is, so the largest was taken.
    """

    runs: list[list[Piece]]
    first: int
    index: int
    epoch: int
    known: Known | None
    gone: list[Piece]
    """Pieces of the checkpoint whose object is gone."""
    is_guess: bool = False
    empty_at: int | None = None
    """Where the stream begins and ends, if none of the parts is left of it."""
    trimmed_to: int | None = None
    """The stream begins here at the latest, as its partition's meta stream has it; None: no meta
    stream tells."""
    is_in_order: bool = False
    """Whether each record was written when those before it were stored."""

    @property
    def pieces(self) -> list[Piece]:
        """They meet from `start` to `end`."""
        return self.runs[self.index] if self.empty_at is None else []

    @property
    def start(self) -> int:
        if self.empty_at is not None:
            return self.empty_at
        if self.known is not None and self.index == 0:
            return self.known.start
        return self.pieces[0].start

    @property
    def end(self) -> int:
        if self.pieces:
            return self.pieces[-1].end
        return self.known.end if self.empty_at is None and self.known is not None else self.start

    @property
    def missing(self) -> list[Piece]:
        """Pieces whose object is gone."""
        return self.gone if self.index == 0 and self.empty_at is None else []

    @property
    def tail(self) -> list[Piece]:
        """Stored and never acknowledged."""
        return [] if self.empty_at is not None else _joined(self.runs[self.index + 1 :])

    @property
    def before(self) -> list[Piece]:
        """Stored, and left out because they lie before the stream's start."""
        return _joined(self.runs[: self.index] if self.empty_at is None else self.runs)

    @property
    def trimmed(self) -> list[Piece]:
        """Of `before` what is taken for trimmed: all, unless a meta stream says how much."""
        if self.trimmed_to is None:
            return self.before
        return [
            piece._replace(end=min(piece.end, self.trimmed_to))
            for piece in self.before
            if piece.start < self.trimmed_to
        ]

    @property
    def untrimmed_from(self) -> int | None:
        """Where the lost beginning of the stream starts, which goes to `start`: nobody trimmed it.
        None: no beginning is lost, as far as a meta stream tells."""
        if self.trimmed_to is None:
            return None
        trimmed_to = max(self.trimmed_to, 0 if self.known is None else self.known.start)
        return trimmed_to if trimmed_to < self.start else None

    def choose(self, index: int) -> None:
        """The stream is certainly the part at `index`."""
        self.index = index
        self.is_guess = False

    def choose_by(self, trimmed_to: int, reached: int) -> None:
        """For a stream that somebody has trimmed no further than to `trimmed_to`, and that
        certainly reached `reached`: no gap behind the one place is a trim.

        Without a live part the stream ends where the trim did, even if it had come further: what
        lay behind the trim is lost then, and a write-ahead log that has it finds its place.
        """
        self.trimmed_to = trimmed_to
        live = [
            index
            for index in range(self.first, len(self.runs))
            if self.runs[index] and self.runs[index][-1].end > trimmed_to
        ]
        self.is_guess = False
        if live:
            begun = [index for index in live if self.runs[index][0].start <= reached]
            self.index = begun[-1] if begun else live[0]
        else:
            known_end = 0 if self.known is None else self.known.end
            self.empty_at = max(trimmed_to, known_end)


def _joined(runs: Sequence[Sequence[Piece]]) -> list[Piece]:
    return [piece for run in runs for piece in run]


def resolve(
    known: Known | None,
    rows: Sequence[Row],
    exists: Callable[[int], bool],
    is_certain: Callable[[int], bool],
    *,
    trims_are_lost: bool = False,
) -> Resolved:
    """`exists(object id)`; `is_certain(object id)`: all offsets in it were committed (rule 6)."""
    epoch = max([row.epoch for row in rows] + ([known.epoch] if known else []))
    pieces: list[Piece] = []
    missing: list[Piece] = []
    newer = rows
    if known is not None:
        pieces, missing = _in_place(known, rows, exists)
        newer = [
            row._replace(start=max(row.start, known.end))
            for row in rows
            if row.end > known.end and row.epoch >= known.epoch
        ]
    newer = _without_overtaken(newer, is_certain)
    certain_end = max((row.end for row in newer if is_certain(row.object_id)), default=0)
    runs: list[list[Piece]] = [pieces] if known is not None else []
    first = 0
    for row in layers(newer):
        end = runs[-1][-1].end if runs and runs[-1] else (known.end if known and runs else None)
        if not runs or (end is not None and row.start != end):
            runs.append([])
        runs[-1].append(Piece(row.start, row.end, row.object_id))
        if row.start < certain_end:
            first = len(runs) - 1
    if not runs:
        raise ValueError("a stream without rows that no checkpoint knows")
    resolved = Resolved(runs, first, first, epoch, known, missing)
    if trims_are_lost and len(runs) > first + 1:
        resolved.is_guess = True
        resolved.index = max(range(first, len(runs)), key=lambda index: _records(runs[index]))
    return resolved


def _without_overtaken(rows: Sequence[Row], is_certain: Callable[[int], bool]) -> list[Row]:
    """Without the rows that rule 1 leaves out."""
    kept: list[Row] = []
    first: int | None = None
    by_epoch = sorted(rows, key=lambda row: -row.epoch)
    for _, group in groupby(by_epoch, key=lambda row: row.epoch):
        of_epoch = list(group)
        kept += [
            row
            for row in of_epoch
            if first is None or row.end <= first or is_certain(row.object_id)
        ]
        lowest = min(row.start for row in of_epoch)
        first = lowest if first is None else min(first, lowest)
    return kept


def _records(run: Sequence[Piece]) -> int:
    return run[-1].end - run[0].start if run else 0


def layers(rows: Iterable[Row]) -> list[Row]:
    """Disjoint rows by start, the higher epoch from its first offset on: rules 1 and 2."""
    cover: list[Row] = []
    ordered = sorted(rows, key=lambda row: (row.epoch, row.start, -row.end, row.object_id))
    for _, group in groupby(ordered, key=lambda row: row.epoch):
        end: int | None = None
        for row in group:
            if end is None:
                end = row.start
                while cover and cover[-1].end > end:
                    last = cover.pop()
                    if last.start < end:
                        cover.append(last._replace(end=end))
            if row.end > end:
                cover.append(row._replace(start=max(end, row.start)))
                end = row.end
    return cover


def _in_place(
    known: Known, rows: Sequence[Row], exists: Callable[[int], bool]
) -> tuple[list[Piece], list[Piece]]:
    """The checkpoint's pieces, with other rows in the place of missing objects; and those that stay
    missing."""
    if all(exists(piece.object_id) for piece in known.pieces):
        return list(known.pieces), []
    others = layers(row for row in rows if row.start < known.end)
    pieces: list[Piece] = []
    missing: list[Piece] = []
    for piece in known.pieces:
        if exists(piece.object_id):
            pieces.append(piece)
            continue
        offset = piece.start
        for row in others:
            low, high = max(row.start, offset), min(row.end, piece.end)
            if low >= high:
                continue
            if low > offset:
                missing.append(Piece(offset, low, piece.object_id))
                pieces.append(missing[-1])
            pieces.append(Piece(low, high, row.object_id))
            offset = high
        if offset < piece.end:
            missing.append(Piece(offset, piece.end, piece.object_id))
            pieces.append(missing[-1])
    return pieces, missing
