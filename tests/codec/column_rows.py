"""Columns as lists of rows, rows as columns, and runs of batches to try them on."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from types import ModuleType

from aiokafka.record.default_records import _DefaultRecordBatchPy
from hypothesis import strategies as st

from streamlog.codec.batch import (
    CONTROL,
    LOG_APPEND_TIME,
    BatchProducer,
    Compression,
    as_bytes,
    parse_header,
    resealed,
)
from streamlog.codec.columns import BinaryColumn, HeadersColumn, RecordColumns, Wanted
from streamlog.codec.pure import columns as pure_columns
from streamlog.codec.records import encode_values

try:
    from streamlog.codec import _native, native_columns
except ImportError:
    TWINS: list[ModuleType] = [pure_columns]
else:
    TWINS = [pure_columns, native_columns]
    assert _native

Row = tuple[int, int, int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]
"""(offset, µs, timestamp type, key, value, headers)."""

nullable = st.none() | st.binary(max_size=40)
headers = st.lists(st.tuples(st.text(max_size=6), nullable), max_size=3)
timestamps = st.integers(0, 1 << 42) | st.just(0) | st.integers(0, (1 << 62))
record = st.tuples(timestamps, nullable, nullable, headers)


@dataclass(frozen=True)
class Batch:
    data: bytes
    is_control: bool


@st.composite
def batches(draw: st.DrawFn) -> Batch:
    """One batch with any of what a log may hold."""
    records = draw(st.lists(record, min_size=1, max_size=12))
    stamps, keys, values, head = (list(column) for column in zip(*records, strict=True))
    data = encode_values(
        values,
        timestamp_ms=0,
        keys=keys,
        timestamps_ms=stamps,
        headers=head,
        compression=draw(st.sampled_from(Compression)),
        producer=BatchProducer(draw(st.integers(-1, 9)), 0, 0),
    ).data
    data[0:8] = draw(st.integers(0, 40)).to_bytes(8, "big")
    if draw(st.booleans()):
        data[22] |= LOG_APPEND_TIME
        data[35:43] = draw(st.integers(-1, 1 << 62)).to_bytes(8, "big", signed=True)
    if draw(st.integers(0, 3)) == 0:
        # As compaction leaves it: the span is larger than the records need.
        delta = len(records) - 1 + draw(st.integers(1, 5))
        data[23:27] = delta.to_bytes(4, "big")
    is_control = draw(st.integers(0, 5)) == 0
    if is_control:
        data[22] |= CONTROL
    return Batch(bytes(resealed(data)), is_control)


runs = st.lists(batches(), max_size=5)


def expected(
    run: Sequence[Batch], start: int, end: int, bases: Sequence[int] | None = None
) -> list[Row]:
    """What aiokafka's parser in Python says."""
    rows: list[Row] = []
    for index, batch in enumerate(run):
        if batch.is_control:
            continue
        header = parse_header(batch.data)
        shift = 0 if bases is None else bases[index] - header.base_offset
        for record in _DefaultRecordBatchPy(batch.data):
            offset = record.offset + shift
            if start <= offset < end:
                stamp = min(record.timestamp * 1000, (1 << 63) - 1)
                kind = int(header.is_log_append_time)
                rows.append((offset, stamp, kind, record.key, record.value, record.headers))
    return rows


def entries(column: BinaryColumn, count: int) -> list[bytes | None]:
    places = as_bytes(column.offsets).cast("i")
    data = as_bytes(column.data)
    assert len(places) == count + 1
    assert places[0] == 0
    assert places[count] == len(data)
    if column.validity is not None:
        bits = as_bytes(column.validity)
        assert len(bits) == (count + 7) // 8
        assert count % 8 == 0 or bits[-1] >> count % 8 == 0, "bits past the end are 0"
    values: list[bytes | None] = []
    for index in range(count):
        is_null = (
            column.validity is not None
            and not as_bytes(column.validity)[index // 8] >> index % 8 & 1
        )
        values.append(None if is_null else bytes(data[places[index] : places[index + 1]]))
        assert not is_null or places[index] == places[index + 1]
    return values


def rows_of(columns: RecordColumns, wanted: Wanted) -> list[Row]:
    count = columns.count
    assert count > 0
    assert (columns.keys is None, columns.values is None, columns.headers is None) == (
        not wanted.keys,
        not wanted.values,
        not wanted.headers,
    )
    nothing: list[bytes | None] = [None] * count
    head: list[list[tuple[str, bytes | None]]] = [[] for _ in range(count)]
    if columns.headers is not None:
        lists = as_bytes(columns.headers.list_offsets).cast("i")
        assert len(lists) == count + 1
        names = entries(columns.headers.keys, lists[count])
        values = entries(columns.headers.values, lists[count])
        pairs = [(bytes(n or b"").decode(), v) for n, v in zip(names, values, strict=True)]
        assert columns.headers.keys.validity is None
        head = [pairs[lists[i] : lists[i + 1]] for i in range(count)]
    return list(
        zip(
            as_bytes(columns.offsets).cast("q").tolist(),
            as_bytes(columns.timestamps_us).cast("q").tolist(),
            as_bytes(columns.timestamp_types).cast("i").tolist(),
            nothing if columns.keys is None else entries(columns.keys, count),
            nothing if columns.values is None else entries(columns.values, count),
            head,
            strict=True,
        )
    )


def binary(column: Sequence[bytes | None]) -> BinaryColumn:
    places = array("i", accumulate((len(entry or b"") for entry in column), initial=0))
    validity = None
    if None in column:
        bits = bytearray((len(column) + 7) // 8)
        for index, entry in enumerate(column):
            bits[index // 8] |= (entry is not None) << index % 8
        validity = bytes(bits)
    return BinaryColumn(validity, places.tobytes(), b"".join(e or b"" for e in column))


def headers_column(column: Sequence[Sequence[tuple[str, bytes | None]]]) -> HeadersColumn:
    lists = array("i", accumulate((len(pairs) for pairs in column), initial=0))
    flat = [pair for pairs in column for pair in pairs]
    return HeadersColumn(
        lists.tobytes(),
        binary([name.encode() for name, _ in flat]),
        binary([value for _, value in flat]),
    )
