"""What the fold and an object's own footer both say about objects and ranges."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple


class Tenure(NamedTuple):
    """One process lifetime; never reused."""

    node_id: int
    node_epoch: int

    def __str__(self) -> str:
        return f"{self.node_id}.{self.node_epoch}"


NO_LEADER_EPOCH = -1


class Placement(NamedTuple):
    """Where a stream's part of a staged object was attached: its offset 0 is `base`.

    `epoch` is the stream's at that time. With a leader epoch the payloads are Kafka record batches,
    which get their base offset and that epoch when they are read; -1: they stay as they are.
    """

    stream_id: int
    base: int
    epoch: int
    leader_epoch: int = NO_LEADER_EPOCH


@dataclass(frozen=True, slots=True)
class ObjectRow:
    """An object as the fold knows it. `store` 0 is the store; other numbers are reserved.

    Index position, length and CRC are of the index region: index block and attributes together.
    `placements`: by stream; the object was staged, its own offsets begin at 0 in each stream.
    """

    object_id: int
    size_bytes: int
    index_position: int
    index_length: int
    index_crc32c: int
    store: int = 0
    placements: tuple[Placement, ...] = ()


class RangeRow(NamedTuple):
    """start (inclusive) to end (exclusive) offset of one stream, written under `epoch`."""

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
        found = Rows()
        found.streams, found.epochs = self.streams[first:end], self.epochs[first:end]
        found.starts, found.ends = self.starts[first:end], self.ends[first:end]
        return found

    def between(self, first_stream: int, end_stream: int) -> Rows:
        """Rows of streams first (inclusive) to end (exclusive); itself where that is all."""
        low = bisect_left(self.streams, first_stream)
        end = bisect_left(self.streams, end_stream, low)
        return self if end - low == len(self) else self.part(low, end)


def rows_placed(rows: Rows, placements: Iterable[Placement]) -> Rows:
    """A staged object's own rows at the offsets where they were attached."""
    places = {place.stream_id: place for place in placements}
    if not places:
        return rows
    found = Rows()
    for row in rows:
        place = places.get(row.stream_id)
        if place is None:
            found.append(row)
        else:
            start, end = row.start + place.base, row.end + place.base
            found.append(RangeRow(row.stream_id, place.epoch, start, end))
    return found
