"""Arrow record batches → columns for the encoder, with the checks of Spark's Kafka sink.

`key` and `value` are strings or binary, `topic` a string, `partition` an int, `headers` an array of
(key string, value binary). Other columns are ignored. Null keys, values and headers mean what they
mean in Kafka; a null topic is an error, a null partition leaves the choice to the partitioner.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streamlog.codec.columns import BinaryColumn, HeadersColumn
from streamlog.errors import InvalidConfig, InvalidRecord
from streamlog.runtime.buffers import Buffer

NAMES = ("key", "value", "topic", "partition", "headers")
_NEEDS = {
    "key": "string or binary",
    "value": "string or binary",
    "topic": "string",
    "partition": "int",
    "headers": "array<struct<key: string, value: binary>>",
}


def check_columns(schema: pa.Schema, topic: str | None) -> None:
    """Errors: InvalidConfig, which names the column or the option."""
    for name in NAMES:
        indices = schema.get_all_field_indices(name)
        if len(indices) > 1:
            raise InvalidConfig(f"there are {len(indices)} columns {name}", name=name)
        if indices and not _fits(name, schema.field(indices[0]).type):
            raise InvalidConfig(
                f"column {name} is {schema.field(indices[0]).type}; it must be {_NEEDS[name]}",
                name=name,
            )
    if "value" not in schema.names:
        raise InvalidConfig(
            f"there is no column value; there are {', '.join(schema.names) or 'none'}", name="value"
        )
    if topic is None and "topic" not in schema.names:
        raise InvalidConfig(
            "option topic is missing, and there is no column topic: one of them is needed",
            name="topic",
        )


def _fits(name: str, kind: pa.DataType) -> bool:
    if name == "topic":
        return _is_string(kind)
    if name == "partition":
        return bool(pa.types.is_int32(kind))
    if name == "headers":
        return _is_list(kind) and _is_header(kind.value_type)
    return _is_string(kind) or _is_binary(kind)


def _is_string(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_binary(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _is_header(kind: pa.DataType) -> bool:
    return (
        bool(pa.types.is_struct(kind))
        and [field.name for field in kind] == ["key", "value"]
        and _is_string(kind.field(0).type)
        and _is_binary(kind.field(1).type)
    )


@dataclass(frozen=True, slots=True)
class WriteColumns:
    """The columns of `count` rows."""

    count: int
    values: BinaryColumn
    keys: BinaryColumn | None
    headers: HeadersColumn | None
    topics: list[str]
    """The topics that occur."""
    topic_codes: np.ndarray | None
    """By row, an index into `topics`; None: there is one topic."""
    partitions: np.ndarray | None
    """By row, -1 for null; None: there is no such column."""


def columns_of(batch: pa.RecordBatch, topic: str | None) -> WriteColumns:
    """The columns, without a copy of keys and values. `topic` overrides the column.

    Errors: InvalidRecord, which names the column.
    """
    arrays = {name: batch.column(name) for name in NAMES if name in batch.schema.names}
    topics, codes = ([topic], None) if topic is not None else _topics(arrays["topic"])
    return WriteColumns(
        count=batch.num_rows,
        values=binary_column(arrays["value"]),
        keys=binary_column(arrays["key"]) if "key" in arrays else None,
        headers=_headers(arrays["headers"]) if "headers" in arrays else None,
        topics=topics,
        topic_codes=codes,
        partitions=_partitions(arrays["partition"]) if "partition" in arrays else None,
    )


def wanted_names(schema: pa.Schema, topic: str | None) -> list[str]:
    """The names of the written columns."""
    return [name for name in NAMES if name in schema.names and (name != "topic" or topic is None)]


def lengths(column: BinaryColumn, count: int) -> np.ndarray:
    """Bytes of each entry."""
    sizes: np.ndarray = np.diff(np.frombuffer(column.offsets, np.int32, count + 1))
    return sizes


def _topics(column: pa.Array) -> tuple[list[str], np.ndarray | None]:
    if column.null_count:
        raise InvalidRecord(
            "column topic is null in a row; give every row a topic, or all of them one by the "
            "option topic"
        )
    encoded = column.dictionary_encode()
    topics: list[str] = encoded.dictionary.to_pylist()
    if "" in topics:
        raise InvalidRecord("column topic is empty in a row")
    return topics, None if len(topics) == 1 else encoded.indices.to_numpy()


def _partitions(column: pa.Array) -> np.ndarray:
    if pc.any(pc.less(column, 0)).as_py():
        raise InvalidRecord(f"column partition has {pc.min(column).as_py()}, which is no partition")
    partitions: np.ndarray = pc.fill_null(column, -1).to_numpy()
    return partitions


def binary_column(column: pa.Array) -> BinaryColumn:
    """The column of a string or binary array, sliced or not."""
    if pa.types.is_large_string(column.type) or pa.types.is_large_binary(column.type):
        column = column.cast(pa.large_binary()).cast(pa.binary())
    _, offsets, data = column.buffers()
    start, end = 4 * column.offset, 4 * (column.offset + len(column) + 1)
    return BinaryColumn(
        validity=_validity(column),
        offsets=memoryview(offsets)[start:end] if offsets is not None else bytes(end - start),
        data=b"" if data is None else memoryview(data),
    )


def _validity(column: pa.Array) -> Buffer | None:
    """The validity bits, from the array's first entry on."""
    if not column.null_count:
        return None
    bits = np.packbits(column.is_valid().to_numpy(zero_copy_only=False), bitorder="little")
    validity: bytes = bits.tobytes()
    return validity


def _headers(column: pa.Array) -> HeadersColumn:
    counts = pc.fill_null(pc.list_value_length(column), 0).to_numpy()
    offsets: np.ndarray = np.zeros(len(column) + 1, np.int32)
    np.cumsum(counts, out=offsets[1:])
    keys, values = column.flatten().flatten()
    if keys.null_count:
        raise InvalidRecord("column headers has a header whose key is null")
    return HeadersColumn(offsets.tobytes(), binary_column(keys), binary_column(values))
