"""Where records lie in objects, in columns: millions of ranges cost tens of bytes each."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple


@dataclass(frozen=True, slots=True)
class OffsetWindow:
    """Offsets start (inclusive) to end (exclusive) of a partition.

    `topic_id` empty: the topic that has the name now.
    """

    topic: str
    partition: int
    start: int
    end: int
    topic_id: str = ""

    @property
    def count(self) -> int:
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class LocatedRun:
    """Adjacent ranges of one partition, each in one object.

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
    """The fields of objects that a reader needs to find blocks in them.

    `placements`: object id → stream id, base, epoch and leader epoch of each stream, as
    `format.rows.Placement`, for the few objects that were staged and then attached.
    """

    ids: array[int] = field(default_factory=lambda: array("Q"))
    index_positions: array[int] = field(default_factory=lambda: array("Q"))
    index_lengths: array[int] = field(default_factory=lambda: array("I"))
    index_crcs: array[int] = field(default_factory=lambda: array("I"))
    placements: dict[int, Sequence[tuple[int, int, int, int]]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.ids)

    def __reduce__(self) -> tuple[Any, ...]:
        # A dataclass's own way takes three times as long, and plans have many of these.
        return ObjectTable, (*self.columns, self.placements)

    @property
    def columns(self) -> tuple[array[int], ...]:
        return self.ids, self.index_positions, self.index_lengths, self.index_crcs

    def append(self, object_id: int, position: int, length: int, crc: int) -> None:
        self.ids.append(object_id)
        self.index_positions.append(position)
        self.index_lengths.append(length)
        self.index_crcs.append(crc)

    def extend(self, other: ObjectTable) -> None:
        for column, more in zip(self.columns, other.columns, strict=True):
            column.extend(more)
        self.placements.update(other.placements)


class AbortedSpan(NamedTuple):
    """Transactional batches of the producer from first_offset to last_offset, where the ABORT
    marker is, belong to an aborted transaction."""

    producer_id: int
    first_offset: int
    last_offset: int


@dataclass(frozen=True, slots=True)
class Located:
    """Runs in the order of windows and offsets, and every object that they name.

    `aborted`: window → the aborted transactions that overlap it; empty for uncommitted reads.
    `without_objects`: windows whose records are not in the store, and are read through their node.
    """

    revision: int
    runs: Sequence[LocatedRun]
    objects: ObjectTable
    aborted: Mapping[int, Sequence[AbortedSpan]] = field(default_factory=dict)
    without_objects: frozenset[int] = frozenset()
