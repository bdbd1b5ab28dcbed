"""Record batches ↔ columns in plain Python: the definition, and what stands in for `_native`."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Literal

from streamlog.codec.batch import (
    HEADER_BYTES,
    BatchProducer,
    Compression,
    ScannedBatch,
    as_bytes,
    batch_at,
    check_crc,
    parse_header,
    sequence_after,
)
from streamlog.codec.column_types import (
    BinaryColumn,
    ColumnBatch,
    HeadersColumn,
    RecordColumns,
    Wanted,
)
from streamlog.codec.compression import decompress
from streamlog.codec.finish import finish
from streamlog.codec.pure.murmur2 import murmur2
from streamlog.codec.pure.records import Headers, Record, check_span, parse
from streamlog.codec.pure.writer import RecordWriter
from streamlog.errors import Invalid
from streamlog.runtime.buffers import Buffer

HEADER_CHARGE_BYTES = 8
_INT64_MAX = (1 << 63) - 1


def decode(
    data: Buffer,
    *,
    start: int,
    end: int,
    wanted: Wanted,
    base_offsets: Sequence[int] | None,
    verify_crc: bool,
    rows_max: int,
    bytes_max: int,
) -> Iterator[RecordColumns]:
    """As `columns.decode_columns`, whose checks were made."""
    rows = _Rows(wanted)
    for position, batch, base in _batches(data, base_offsets):
        header = batch.header
        if verify_crc:
            check_crc(batch, position)
        check_span(header, base)
        if header.is_control or base >= end or base + header.last_offset_delta < start:
            continue
        records = decompress(header.codec, batch.view[HEADER_BYTES:])
        for record in parse(header, records, base, with_headers=wanted.headers):
            if not start <= record[0] < end:
                continue
            charge = rows.charge(record)
            if rows.count and (rows.count == rows_max or rows.size_bytes + charge > bytes_max):
                yield rows.columns()
                rows = _Rows(wanted)
            rows.add(record, charge, int(header.is_log_append_time))
    if rows.count:
        yield rows.columns()


def _batches(
    data: Buffer, base_offsets: Sequence[int] | None
) -> Iterator[tuple[int, ScannedBatch, int]]:
    """Each batch as it is come to: where it begins, itself, its base offset."""
    view = as_bytes(data)
    position, index = 0, 0
    while position < len(view):
        batch = batch_at(view, position)
        if base_offsets is None:
            base = batch.header.base_offset
        elif index < len(base_offsets):
            base = base_offsets[index]
        else:
            raise Invalid(f"{len(base_offsets)} base offsets were given for more batches than that")
        yield position, batch, base
        position += len(batch.view)
        index += 1
    if base_offsets is not None and index != len(base_offsets):
        raise Invalid(f"{len(base_offsets)} base offsets were given for {index} batches")


class _Rows:
    """One RecordColumns in the making."""

    def __init__(self, wanted: Wanted) -> None:
        self._wanted = wanted
        self.count = 0
        self.size_bytes = 0
        self._offsets = array("q")
        self._timestamps_us = array("q")
        self._types = array("i")
        self._keys: list[bytes | None] = []
        self._values: list[bytes | None] = []
        self._header_counts: list[int] = []
        self._names: list[bytes | None] = []
        self._header_values: list[bytes | None] = []

    def charge(self, record: Record) -> int:
        """What the record adds to `size_bytes`."""
        _, _, key, value, headers = record
        total = 0
        if self._wanted.keys and key is not None:
            total += len(key)
        if self._wanted.values and value is not None:
            total += len(value)
        if self._wanted.headers:
            for name, header_value in headers:
                total += HEADER_CHARGE_BYTES + len(name.encode()) + len(header_value or b"")
        return total

    def add(self, record: Record, charge: int, timestamp_type: int) -> None:
        offset, timestamp_ms, key, value, headers = record
        self.count += 1
        self.size_bytes += charge
        self._offsets.append(offset)
        self._timestamps_us.append(min(max(timestamp_ms * 1000, -_INT64_MAX - 1), _INT64_MAX))
        self._types.append(timestamp_type)
        if self._wanted.keys:
            self._keys.append(key)
        if self._wanted.values:
            self._values.append(value)
        if self._wanted.headers:
            self._header_counts.append(len(headers))
            for name, header_value in headers:
                self._names.append(name.encode())
                self._header_values.append(header_value)

    def columns(self) -> RecordColumns:
        wanted = self._wanted
        return RecordColumns(
            count=self.count,
            offsets=_raw(self._offsets),
            timestamps_us=_raw(self._timestamps_us),
            timestamp_types=_raw(self._types),
            keys=_binary(self._keys) if wanted.keys else None,
            values=_binary(self._values) if wanted.values else None,
            headers=HeadersColumn(
                _starts(self._header_counts), _binary(self._names), _binary(self._header_values)
            )
            if wanted.headers
            else None,
        )


def _raw(numbers: array[int]) -> memoryview:
    return memoryview(numbers).cast("B")


def _starts(sizes: Sequence[int]) -> memoryview:
    return _raw(array("i", accumulate(sizes, initial=0)))


def _binary(entries: Sequence[bytes | None]) -> BinaryColumn:
    validity: memoryview | None = None
    if None in entries:
        bits = bytearray((len(entries) + 7) // 8)
        for index, entry in enumerate(entries):
            if entry is not None:
                bits[index >> 3] |= 1 << (index & 7)
        validity = memoryview(bits)
    present = [entry or b"" for entry in entries]
    return BinaryColumn(
        validity, _starts([len(entry) for entry in present]), memoryview(b"".join(present))
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
    key_of, value_of = _Entries(keys, count), _Entries(values, count)
    headers_of = _HeaderEntries(headers, count)
    stamps = None if timestamps_us is None else _numbers(timestamps_us, "q", count)
    chosen = range(count) if rows is None else _numbers(rows, "i", 0)
    batches: list[ColumnBatch] = []
    writer = RecordWriter(batch_bytes)
    for row in chosen:
        if not 0 <= row < count:
            raise Invalid(f"row {row} of {count} was chosen")
        stamp = timestamp_ms if stamps is None else stamps[row] // 1000
        record = (stamp, key_of[row], value_of[row], headers_of[row])
        if not writer.append(*record):
            batches.append(_finished(writer, compression, level, producer))
            producer = _after(producer, writer.record_count)
            writer = RecordWriter(batch_bytes)
            writer.append(*record)
    if writer.record_count:
        batches.append(_finished(writer, compression, level, producer))
    return batches


def _after(producer: BatchProducer, record_count: int) -> BatchProducer:
    if producer.base_sequence < 0:
        return producer
    return producer._replace(base_sequence=sequence_after(producer.base_sequence, record_count))


def _finished(
    writer: RecordWriter, compression: Compression, level: int | None, producer: BatchProducer
) -> ColumnBatch:
    data = finish(writer.take(*producer, 0), compression, level)
    return ColumnBatch(data, writer.record_count, parse_header(data).max_timestamp_ms)


def _numbers(data: Buffer, form: Literal["i", "q"], least: int) -> memoryview[int]:
    """Errors: Invalid where there are fewer than `least`."""
    view = as_bytes(data)
    size = array(form).itemsize
    if len(view) % size or len(view) // size < least:
        raise Invalid(f"{len(view)} bytes do not hold {least} numbers of {size} bytes")
    return view.cast(form)


class _Entries:
    """A binary column by index; every access is checked."""

    def __init__(self, column: BinaryColumn | None, count: int) -> None:
        self._column = column
        if column is None:
            return
        self._data = as_bytes(column.data)
        self._offsets = _numbers(column.offsets, "i", count + 1)
        self._bits = None if column.validity is None else as_bytes(column.validity)
        if self._bits is not None and 8 * len(self._bits) < count:
            raise Invalid(f"{len(self._bits)} bytes of validity for {count} entries")

    def __getitem__(self, index: int) -> memoryview | None:
        if self._column is None:
            return None
        if self._bits is not None and not self._bits[index >> 3] >> (index & 7) & 1:
            return None
        start, end = self._offsets[index], self._offsets[index + 1]
        if not 0 <= start <= end <= len(self._data):
            raise Invalid(f"entry {index} is bytes {start} to {end} of {len(self._data)}")
        return self._data[start:end]


class _HeaderEntries:
    def __init__(self, column: HeadersColumn | None, count: int) -> None:
        self._column = column
        if column is None:
            return
        self._lists = _numbers(column.list_offsets, "i", count + 1)
        entries = len(as_bytes(column.keys.offsets)) // 4 - 1
        self._entries = max(0, entries)
        self._keys = _Entries(column.keys, self._entries)
        self._values = _Entries(column.values, self._entries)

    def __getitem__(self, index: int) -> Headers:
        if self._column is None:
            return []
        start, end = self._lists[index], self._lists[index + 1]
        if not 0 <= start <= end <= self._entries:
            raise Invalid(f"record {index} has headers {start} to {end} of {self._entries}")
        return [self._header(entry) for entry in range(start, end)]

    def _header(self, entry: int) -> tuple[str, bytes | None]:
        name, value = self._keys[entry], self._values[entry]
        if name is None:
            raise Invalid(f"the name of header {entry} is null")
        try:
            return bytes(name).decode(), None if value is None else bytes(value)
        except UnicodeDecodeError as error:
            raise Invalid(f"the name of header {entry} is not UTF-8: {error}") from error


def key_partitions(keys: BinaryColumn, count: int, partitions: int) -> memoryview:
    """As `columns.key_partitions`."""
    entries = _Entries(keys, count)
    numbers = array("i")
    for index in range(count):
        key = entries[index]
        numbers.append(-1 if key is None else (murmur2(key) & 0x7FFFFFFF) % partitions)
    return _raw(numbers)
