"""Columns of records as Arrow lays them out, in plain buffers.

Numbers are in the machine's byte order. A validity bit is bit i % 8 of byte i // 8; 1: not null.
Offsets of a column are int32, one more than entries; entry i is data[offsets[i]:offsets[i + 1]].
"""

from __future__ import annotations

from dataclasses import dataclass

from streamlog.runtime.buffers import Buffer


@dataclass(frozen=True, slots=True)
class BinaryColumn:
    """Byte strings. `validity` None: no entry is null."""

    validity: Buffer | None
    offsets: Buffer
    data: Buffer


@dataclass(frozen=True, slots=True)
class HeadersColumn:
    """The headers of record i are entries list_offsets[i] to list_offsets[i + 1] of the others.

    `keys` holds UTF-8 and no null.
    """

    list_offsets: Buffer
    keys: BinaryColumn
    values: BinaryColumn


@dataclass(frozen=True, slots=True)
class RecordColumns:
    """`count` records of one partition in offset order; what was not wanted is None."""

    count: int
    offsets: Buffer
    """int64."""
    timestamps_us: Buffer
    """int64, since 1970; -1000 where the record has none. Clamped to what an int64 can hold."""
    timestamp_types: Buffer
    """int32: 0 the producer's, 1 log-append time."""
    keys: BinaryColumn | None
    values: BinaryColumn | None
    headers: HeadersColumn | None


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which columns are filled; offsets and timestamps always are."""

    keys: bool = True
    values: bool = True
    headers: bool = True


@dataclass(frozen=True, slots=True)
class ColumnBatch:
    """One encoded batch, base offset 0. `data` may be a view into a buffer of several batches."""

    data: Buffer
    record_count: int
    max_timestamp_ms: int
