"""Rows of objects and ranges, as the fold and an object's own footer hold them."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, overload


class Tenure(NamedTuple):
    """One process lifetime; never reused."""

    node_id: int
    node_epoch: int

    def __str__(self) -> str:
        return f"{self.node_id}.{self.node_epoch}"


NO_LEADER_EPOCH = -1


class Placement(NamedTuple):
    """Where a stream's part of a staged object was attached: its offset 0 is `base`.

    `epoch` is the stream's epoch at that time. With a leader epoch, the payloads are Kafka record
    batches, which get their base offset and that epoch when they are read; -1: they stay unchanged.
    """

    stream_id: int
    base: int
    epoch: int
    leader_epoch: int = NO_LEADER_EPOCH


class Placements(Sequence[Placement]):
    """The placements of one object, by stream, in columns: 28 bytes each, a sixth of tuples."""

    __slots__ = ("_bases", "_epochs", "_leaders", "_streams")

    def __init__(
        self,
        streams: array[int],
        bases: array[int],
        epochs: array[int],
        leader_epochs: array[int],
    ) -> None:
        """Columns of the same length, the first three u64, the last i64; streams rise."""
        self._streams = streams
        self._bases = bases
        self._epochs = epochs
        self._leaders = leader_epochs

    @classmethod
    def of(cls, places: Iterable[Placement]) -> Placements:
        """From placements in any order; a Placements is returned as it is."""
        if isinstance(places, cls):
            return places
        ordered = sorted(places)
        streams, bases, epochs = (array("Q", [place[i] for place in ordered]) for i in range(3))
        return cls(streams, bases, epochs, array("q", [place.leader_epoch for place in ordered]))

    @property
    def columns(self) -> tuple[array[int], array[int], array[int], array[int]]:
        """Streams, bases, epochs, leader epochs; read only."""
        return self._streams, self._bases, self._epochs, self._leaders

    def of_stream(self, stream_id: int) -> Placement | None:
        row = bisect_left(self._streams, stream_id)
        if row == len(self._streams) or self._streams[row] != stream_id:
            return None
        return Placement(stream_id, self._bases[row], self._epochs[row], self._leaders[row])

    def __len__(self) -> int:
        return len(self._streams)

    def __iter__(self) -> Iterator[Placement]:
        return map(Placement, *self.columns)

    @overload
    def __getitem__(self, at: int) -> Placement: ...

    @overload
    def __getitem__(self, at: slice) -> Placements: ...

    def __getitem__(self, at: int | slice) -> Placement | Placements:
        if isinstance(at, slice):
            return Placements(*(column[at] for column in self.columns))
        return Placement(*(column[at] for column in self.columns))

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Placements):
            return self.columns == other.columns
        return isinstance(other, tuple) and tuple(self) == other

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __reduce__(self) -> tuple[type[Placements], tuple[array[int], ...]]:
        return Placements, self.columns


@dataclass(frozen=True, slots=True)
class ObjectRow:
    """An object as the fold knows it. `store` 0 is the store; other numbers are reserved.

    Index position, length and CRC are of the index region: index block and attributes together.
    With `placements` the object was staged, and its own offsets begin at 0 in each stream.
    """

    object_id: int
    size_bytes: int
    index_position: int
    index_length: int
    index_crc32c: int
    store: int = 0
    placements: Sequence[Placement] = ()


class RangeRow(NamedTuple):
    """Offsets start (inclusive) to end (exclusive) of one stream, written under `epoch`."""

    stream_id: int
    epoch: int
    start: int
    end: int


class Rows:
    """Ranges by (stream id, start) as columns of 8 bytes each: 10,000 take 320 KB."""

    __slots__ = ("ends", "epochs", "starts", "streams")

    def __init__(self, rows: Iterable[RangeRow] = ()) -> None:
        self.streams = array("Q")
        self.epochs = array("Q")
        self.starts = array("Q")
        self.ends = array("Q")
        for row in rows:
            self.append(row)

    def append(self, row: RangeRow) -> None:
        self.streams.append(row.stream_id)
        self.epochs.append(row.epoch)
        self.starts.append(row.start)
        self.ends.append(row.end)

    def __len__(self) -> int:
        return len(self.streams)

    def __iter__(self) -> Iterator[RangeRow]:
        return map(RangeRow, self.streams, self.epochs, self.starts, self.ends)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Rows) and self._columns() == other._columns()

    __hash__ = None  # type: ignore[assignment]

    def _columns(self) -> tuple[array[int], ...]:
        return self.streams, self.starts, self.ends, self.epochs

    def part(self, first: int, end: int) -> Rows:
        """Rows number first (inclusive) to end (exclusive)."""
        part = Rows()
        part.streams, part.epochs = self.streams[first:end], self.epochs[first:end]
        part.starts, part.ends = self.starts[first:end], self.ends[first:end]
        return part

    def between(self, first_stream: int, end_stream: int) -> Rows:
        """Rows of streams first (inclusive) to end (exclusive); `self` where that is all."""
        low = bisect_left(self.streams, first_stream)
        end = bisect_left(self.streams, end_stream, low)
        return self if end - low == len(self) else self.part(low, end)


def rows_placed(rows: Rows, placements: Iterable[Placement]) -> Rows:
    """A staged object's own rows at the offsets where they were attached."""
    by_stream = {placement.stream_id: placement for placement in placements}
    if not by_stream:
        return rows
    placed = Rows()
    for row in rows:
        placement = by_stream.get(row.stream_id)
        if placement is None:
            placed.append(row)
        else:
            start, end = row.start + placement.base, row.end + placement.base
            placed.append(RangeRow(row.stream_id, placement.epoch, start, end))
    return placed
