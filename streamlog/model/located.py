"""Where records lie in objects, in columns: millions of ranges cost tens of bytes each."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class OffsetWindow:
    """Offsets start (inclusive) to end (exclusive) of a partition."""

    topic: str
    partition: int
    start: int
    end: int

    @property
    def count(self) -> int:
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class LocatedRun:
    """Ranges of one partition that meet, each in one object.

    Range i goes from ends[i - 1] (the first from `start`) to ends[i] (exclusive), offsets of the
    partition; offset o of it is offset o + shift of the stream. `size_bytes` is about the size of
    the record batches.
    """

    window: int
    stream_id: int
    start: int
    shift: int
    ends: array[int]
    objects: array[int]
    size_bytes: int

    @property
    def end(self) -> int:
        return self.ends[-1]


@dataclass(frozen=True, slots=True)
class ObjectTable:
    """What a reader must know of objects to find blocks in them; columns by ascending id."""

    ids: array[int] = field(default_factory=lambda: array("Q"))
    index_positions: array[int] = field(default_factory=lambda: array("Q"))
    index_lengths: array[int] = field(default_factory=lambda: array("I"))
    index_crcs: array[int] = field(default_factory=lambda: array("I"))

    def __len__(self) -> int:
        return len(self.ids)

    def append(self, object_id: int, position: int, length: int, crc: int) -> None:
        self.ids.append(object_id)
        self.index_positions.append(position)
        self.index_lengths.append(length)
        self.index_crcs.append(crc)

    def extend(self, other: ObjectTable, rows: slice = slice(None)) -> None:
        self.ids.extend(other.ids[rows])
        self.index_positions.extend(other.index_positions[rows])
        self.index_lengths.extend(other.index_lengths[rows])
        self.index_crcs.extend(other.index_crcs[rows])

    def rows(self, numbers: Iterable[int]) -> ObjectTable:
        """Those rows, in the order given."""
        numbers = list(numbers)
        return ObjectTable(
            array("Q", [self.ids[i] for i in numbers]),
            array("Q", [self.index_positions[i] for i in numbers]),
            array("I", [self.index_lengths[i] for i in numbers]),
            array("I", [self.index_crcs[i] for i in numbers]),
        )

    def sort(self) -> ObjectTable:
        """By id; itself where it is sorted."""
        ids = self.ids
        order = sorted(range(len(ids)), key=ids.__getitem__)
        if order == list(range(len(ids))):
            return self
        return self.rows(order)


@dataclass(frozen=True, slots=True)
class Located:
    """Runs in the order of windows and offsets, and every object that they name."""

    revision: int
    runs: Sequence[LocatedRun]
    objects: ObjectTable
