"""What the fold and an object's own footer both say about objects and ranges."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Tenure(NamedTuple):
    """One process lifetime; never reused."""

    node_id: int
    node_epoch: int

    def __str__(self) -> str:
        return f"{self.node_id}.{self.node_epoch}"


@dataclass(frozen=True, slots=True)
class ObjectRow:
    """An object as the fold knows it. `store` 0 is the store; other numbers are reserved.

    Index position, length and CRC are of the index region: index block and attributes together.
    """

    object_id: int
    size_bytes: int
    index_position: int
    index_length: int
    index_crc32c: int
    store: int = 0


class RangeRow(NamedTuple):
    """start (inclusive) to end (exclusive) offset of one stream, written under `epoch`."""

    stream_id: int
    epoch: int
    start: int
    end: int
