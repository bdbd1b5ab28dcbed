"""Columns of records → Arrow record batches of exactly the declared schema, without a copy."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from streamlog.codec.columns import BinaryColumn, HeadersColumn, RecordColumns, Wanted
from streamlog.errors import InvalidConfig

ROWS_ENOUGH = 8192
"""Smaller record batches are joined: each costs the JVM and the pipe to it some 50 µs."""
BYTES_ENOUGH = 1 << 20

_HEADER = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
COLUMNS: dict[str, pa.DataType] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestampType": pa.int32(),
    "headers": pa.list_(pa.field("element", _HEADER)),
}
SCHEMA_DDL = {
    "key": "BINARY",
    "value": "BINARY",
    "topic": "STRING",
    "partition": "INT",
    "offset": "BIGINT",
    "timestamp": "TIMESTAMP",
    "timestampType": "INT",
    "headers": "ARRAY<STRUCT<key: STRING, value: BINARY>>",
}
"""Spark's types of the same columns, which are those of its Kafka source."""


def schema_ddl(*, headers: bool) -> str:
    names = [name for name in SCHEMA_DDL if headers or name != "headers"]
    return ", ".join(f"{name} {SCHEMA_DDL[name]}" for name in names)


def check_schema(schema: pa.Schema) -> None:
    """Checks that a user's schema names existing columns. Errors: InvalidConfig."""
    for field in schema:
        expected = COLUMNS.get(field.name)
        if expected is None:
            raise InvalidConfig(
                f"schema has the column {field.name!r}; there are {', '.join(COLUMNS)}",
                name="schema",
            )
        if not field.type.equals(expected):
            raise InvalidConfig(
                f"schema has {field.name} as {field.type}; it is {SCHEMA_DDL[field.name]}",
                name="schema",
            )


def wanted_of(schema: pa.Schema) -> Wanted:
    """The parts of a record that must be decoded."""
    names = set(schema.names)
    return Wanted("key" in names, "value" in names, "headers" in names)


class BatchMaker:
    """Makes record batches of `schema`, which has some of COLUMNS in any order."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema

    def make(self, topic: str, partition: int, columns: RecordColumns) -> pa.RecordBatch:
        count = columns.count
        arrays: dict[str, Callable[[], pa.Array]] = {
            "key": lambda: _binary(columns.keys, count),
            "value": lambda: _binary(columns.values, count),
            "topic": lambda: pa.repeat(pa.scalar(topic, pa.string()), count),
            "partition": lambda: pa.repeat(pa.scalar(partition, pa.int32()), count),
            "offset": lambda: _numbers(pa.int64(), columns.offsets, count),
            "timestamp": lambda: _numbers(COLUMNS["timestamp"], columns.timestamps_us, count),
            "timestampType": lambda: _numbers(pa.int32(), columns.timestamp_types, count),
            "headers": lambda: _headers(columns.headers, count),
        }
        made = [arrays[name]() for name in self._schema.names]
        return pa.RecordBatch.from_arrays(made, schema=self._schema)

    def together(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The batches in order, small neighbours joined. Large batches are not copied."""
        held: list[pa.RecordBatch] = []
        rows = size = 0
        for batch in batches:
            if held and _is_enough(batch.num_rows, batch.nbytes):
                yield _joined(held)
                held, rows, size = [], 0, 0
            held.append(batch)
            rows += batch.num_rows
            size += batch.nbytes
            if _is_enough(rows, size):
                yield _joined(held)
                held, rows, size = [], 0, 0
        if held:
            yield _joined(held)


def _is_enough(rows: int, size: int) -> bool:
    return rows >= ROWS_ENOUGH or size >= BYTES_ENOUGH


def _joined(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def _numbers(kind: pa.DataType, data: object, count: int) -> pa.Array:
    return pa.Array.from_buffers(kind, count, [None, pa.py_buffer(data)])


def _binary(column: BinaryColumn | None, count: int) -> pa.Array:
    assert column is not None
    return _bytes(pa.binary(), column, count)


def _bytes(kind: pa.DataType, column: BinaryColumn, count: int) -> pa.Array:
    validity = None if column.validity is None else pa.py_buffer(column.validity)
    buffers = [validity, pa.py_buffer(column.offsets), pa.py_buffer(column.data)]
    return pa.Array.from_buffers(kind, count, buffers)


def _headers(column: HeadersColumn | None, count: int) -> pa.Array:
    """A record without headers has null, as from Spark's Kafka source."""
    assert column is not None
    starts = memoryview(column.list_offsets).cast("B").cast("i")
    entries = starts[count] if len(starts) > count else 0
    keys = _bytes(pa.string(), column.keys, entries)
    values = _bytes(pa.binary(), column.values, entries)
    structs = pa.StructArray.from_arrays([keys, values], fields=list(_HEADER))
    offsets = pa.Array.from_buffers(pa.int32(), count + 1, [None, pa.py_buffer(starts)])
    sizes = np.diff(np.frombuffer(starts, np.int32, count + 1))
    return pa.ListArray.from_arrays(
        offsets, structs, type=COLUMNS["headers"], mask=pa.array(sizes == 0)
    )
