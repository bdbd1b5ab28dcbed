"""Record batches ↔ columns: one call for a range of batches, nothing per record in Python."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from streamlog.codec.batch import NO_PRODUCER, BatchProducer, Compression
from streamlog.codec.choice import native
from streamlog.codec.column_types import (
    BinaryColumn,
    ColumnBatch,
    HeadersColumn,
    RecordColumns,
    Wanted,
)
from streamlog.codec.pure import columns as pure_columns
from streamlog.errors import Invalid
from streamlog.runtime.buffers import Buffer

if TYPE_CHECKING or not native:
    twin = pure_columns
else:
    from streamlog.codec import native_columns as twin

__all__ = [
    "BYTES_MAX",
    "ROWS_MAX",
    "BinaryColumn",
    "ColumnBatch",
    "HeadersColumn",
    "RecordColumns",
    "Wanted",
    "decode_columns",
    "encode_batches",
    "key_partitions",
]

ROWS_MAX = 1 << 20
BYTES_MAX = 4 << 20
"""Small enough that the allocator hands the same memory out again, where fresh pages cost more."""
_INT32_MAX = (1 << 31) - 1
_INT64_MAX = (1 << 63) - 1
_ALL = Wanted()


def decode_columns(
    data: Buffer,
    *,
    start: int = 0,
    end: int = _INT64_MAX,
    wanted: Wanted = _ALL,
    base_offsets: Sequence[int] | None = None,
    verify_crc: bool = True,
    rows_max: int = ROWS_MAX,
    bytes_max: int = BYTES_MAX,
) -> Iterator[RecordColumns]:
    """The records of the batches that fill `data` whose offsets lie in [start, end).

    Control batches are passed over. `base_offsets` replaces each batch's own, control batches
    included. One RecordColumns holds at most `rows_max` records and `bytes_max` bytes of wanted
    data (8 for each header besides), or a single record that is larger; none is empty. Of a batch
    outside of the window CRC and header are looked at, and not the records.

    Errors: CorruptMessage (cut short, impossible length, wrong CRC, not decompressible),
    InvalidRecord (another magic, records that cannot be parsed, a batch that expands to more than
    DECOMPRESSED_BYTES_MAX); what came before the fault may have been given out. Invalid: another
    number of base offsets than of batches, a bound below 1.
    """
    if rows_max < 1 or bytes_max < 1:
        raise Invalid(f"rows_max = {rows_max} and bytes_max = {bytes_max} must be 1 or more")
    return twin.decode(
        data,
        start=max(start, -_INT64_MAX - 1),
        end=min(end, _INT64_MAX),
        wanted=wanted,
        base_offsets=None if base_offsets is None else _int64s(base_offsets),
        verify_crc=verify_crc,
        rows_max=min(rows_max, _INT32_MAX),
        bytes_max=min(bytes_max, _INT32_MAX),
    )


def encode_batches(
    count: int,
    *,
    timestamp_ms: int,
    keys: BinaryColumn | None = None,
    values: BinaryColumn | None = None,
    headers: HeadersColumn | None = None,
    timestamps_us: Buffer | None = None,
    rows: Buffer | None = None,
    compression: Compression = Compression.NONE,
    level: int | None = None,
    batch_bytes: int = 64 << 10,
    producer: BatchProducer = NO_PRODUCER,
) -> list[ColumnBatch]:
    """Batches of `batch_bytes` at most (before compression; a single record may be larger).

    `count` is the length of the columns; a column that is None is null in every record. `rows`
    (int32) chooses records by their index, in its order; None: all of them. `timestamps_us` wins
    over `timestamp_ms`, which stands for all. With a producer the sequence goes on from batch to
    batch.

    Errors: InvalidTimestamp below 0, Invalid for columns whose offsets, rows or lengths do not fit.
    """
    if batch_bytes < 1 or not 0 <= count < _INT32_MAX:
        raise Invalid(f"{count} records in batches of {batch_bytes} bytes cannot be encoded")
    return twin.encode(
        count,
        timestamp_ms=timestamp_ms,
        keys=keys,
        values=values,
        headers=headers,
        timestamps_us=timestamps_us,
        rows=rows,
        compression=compression,
        level=level,
        batch_bytes=batch_bytes,
        producer=producer,
    )


def key_partitions(keys: BinaryColumn, count: int, partitions: int) -> Buffer:
    """The partition of each key (int32) as Kafka's clients choose it; -1 for a null.

    Errors: Invalid.
    """
    if partitions < 1 or not 0 <= count < _INT32_MAX:
        raise Invalid(f"{count} keys over {partitions} partitions")
    return twin.key_partitions(keys, count, min(partitions, _INT32_MAX))


def _int64s(numbers: Sequence[int]) -> array[int]:
    try:
        return array("q", numbers)
    except OverflowError as error:
        raise Invalid(f"a base offset is no int64: {error}") from error
