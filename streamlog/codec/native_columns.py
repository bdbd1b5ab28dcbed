"""Record batches ↔ columns by the compiled extension; decompression by the libraries for it."""

from __future__ import annotations

from array import array
from collections.abc import Iterator

from streamlog.codec import _native
from streamlog.codec.batch import BatchProducer, Compression, as_bytes
from streamlog.codec.column_types import (
    BinaryColumn,
    ColumnBatch,
    HeadersColumn,
    RecordColumns,
    Wanted,
)
from streamlog.codec.compression import decompress
from streamlog.codec.finish import finish
from streamlog.runtime.buffers import Buffer

_DONE, _COMPRESSED = 0, 2
_Parts = tuple[Buffer | None, Buffer, Buffer]


def decode(
    data: Buffer,
    *,
    start: int,
    end: int,
    wanted: Wanted,
    base_offsets: array[int] | None,
    verify_crc: bool,
    rows_max: int,
    bytes_max: int,
) -> Iterator[RecordColumns]:
    """As `columns.decode_columns`, whose checks were made."""
    view = as_bytes(data)
    decoder = _native.ColumnsDecoder(
        view,
        base_offsets,
        start,
        end,
        rows_max,
        bytes_max,
        wanted.keys,
        wanted.values,
        wanted.headers,
        verify_crc,
    )
    while True:
        state, codec, first, last = decoder.step()
        if state == _COMPRESSED:
            decoder.supply(decompress(codec, view[first:last]))
            continue
        taken = decoder.take()
        if taken is not None:
            yield _columns(taken)
        if state == _DONE:
            return


def _columns(taken: _native._Rows) -> RecordColumns:
    count, offsets, timestamps, types, keys, values, headers = taken
    return RecordColumns(
        count,
        offsets,
        timestamps,
        types,
        None if keys is None else BinaryColumn(*keys),
        None if values is None else BinaryColumn(*values),
        None
        if headers is None
        else HeadersColumn(headers[0], BinaryColumn(*headers[1]), BinaryColumn(*headers[2])),
    )


def encode(
    count: int,
    *,
    timestamp_ms: int,
    keys: BinaryColumn | None,
    values: BinaryColumn | None,
    headers: HeadersColumn | None,
    timestamps_us: Buffer | None,
    rows: Buffer | None,
    compression: Compression,
    level: int | None,
    batch_bytes: int,
    producer: BatchProducer,
) -> list[ColumnBatch]:
    """As `columns.encode_batches`, whose checks were made."""
    whole, places = _native.encode_columns(
        count,
        timestamp_ms,
        _parts(keys),
        _parts(values),
        None
        if headers is None
        else (headers.list_offsets, _needed(headers.keys), _needed(headers.values)),
        timestamps_us,
        rows,
        batch_bytes,
        *producer,
    )
    batches = []
    for start, size, record_count, max_timestamp_ms in places:
        batch = whole[start : start + size]
        is_plain = compression is Compression.NONE
        data = batch if is_plain else finish(batch, compression, level)
        batches.append(ColumnBatch(data, record_count, max_timestamp_ms))
    return batches


def key_partitions(keys: BinaryColumn, count: int, partitions: int) -> memoryview:
    """As `columns.key_partitions`."""
    return _native.key_partitions(_needed(keys), count, partitions)


def _needed(column: BinaryColumn) -> _Parts:
    return column.validity, column.offsets, column.data


def _parts(column: BinaryColumn | None) -> _Parts | None:
    return None if column is None else _needed(column)
