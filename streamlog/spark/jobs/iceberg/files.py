"""Data files of an Iceberg table: their schema, the task that writes them, manifest entries.

Executors write through the table's own FileIO, with Iceberg's field ids in the Parquet schema. The
driver makes manifest entries from the footers that they send, and opens no file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import (
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
)
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.transforms import DayTransform, IdentityTransform
from pyiceberg.typedef import Record
from pyiceberg.types import (
    BinaryType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    NestedField,
    StringType,
    StructType,
    TimestamptzType,
)

from streamlog.errors import Invalid
from streamlog.runtime.rand import SystemRandom
from streamlog.spark.arrow import COLUMNS
from streamlog.spark.jobs.export.parquet import write_days
from streamlog.spark.plan.types import ReadPlace, TaskPlan

TYPES: dict[str, IcebergType] = {
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestamptzType(),
    "timestampType": IntegerType(),
    "key": BinaryType(),
    "value": BinaryType(),
}
"""Columns of a table and their types; a table may also have `headers`."""
REQUIRED = ("topic", "partition", "offset", "timestamp", "timestampType")
HEADERS = "headers"
_TOPIC_ID, _TIMESTAMP_ID = 1, 4
_HEADERS_ID, _ELEMENT_ID, _HEADER_KEY_ID, _HEADER_VALUE_ID = 8, 9, 10, 11
_DAY_MIN, _DAY_MAX = (
    bound.toordinal() - date(1970, 1, 1).toordinal() for bound in (date.min, date.max)
)
PARTITIONS = PartitionSpec(
    PartitionField(_TOPIC_ID, 1000, IdentityTransform(), "topic"),
    PartitionField(_TIMESTAMP_ID, 1001, DayTransform(), "timestamp_day"),
)


def table_schema(*, headers: bool) -> Schema:
    """The schema of a new table."""
    fields = [
        NestedField(number, name, kind, required=name in REQUIRED)
        for number, (name, kind) in enumerate(TYPES.items(), 1)
    ]
    if headers:
        header = StructType(
            NestedField(_HEADER_KEY_ID, "key", StringType()),
            NestedField(_HEADER_VALUE_ID, "value", BinaryType()),
        )
        listed = ListType(_ELEMENT_ID, header, element_required=False)
        fields.append(NestedField(_HEADERS_ID, HEADERS, listed))
    return Schema(*fields)


def check_table(table: Table, *, headers: bool) -> None:
    """Checks that records can be written into an existing table. Errors: Invalid."""
    schema, spec = table.schema(), table.spec()
    name = ".".join(table.name())
    kinds = {column.name: column.field_type for column in schema.fields}
    wrong = [name for name, kind in TYPES.items() if kinds.get(name) != kind]
    if HEADERS in kinds and not _is_headers(kinds[HEADERS]):
        wrong.append(HEADERS)
    if wrong:
        raise Invalid(
            f"table {name} has no column {', '.join(wrong)} of the type that an export writes: "
            "name a table that does not exist yet, and it is created"
        )
    more = [
        column.name
        for column in schema.fields
        if column.required and column.name not in TYPES and column.write_default is None
    ]
    if more:
        raise Invalid(f"table {name} requires {', '.join(more)}, which topics do not have")
    if headers and HEADERS not in kinds:
        raise Invalid(
            f"table {name} has no headers: leave out includeHeaders, or add the column "
            "headers list<struct<key: string, value: binary>> to it"
        )
    partitioning = [
        f"{part.transform}({schema.find_column_name(part.source_id)})" for part in spec.fields
    ]
    if partitioning != ["identity(topic)", "day(timestamp)"]:
        raise Invalid(
            f"table {name} is partitioned by {', '.join(partitioning) or 'nothing'}; exports need "
            "identity(topic), day(timestamp), in this order"
        )


def _is_headers(kind: IcebergType) -> bool:
    if not isinstance(kind, ListType) or not isinstance(kind.element_type, StructType):
        return False
    fields = [(field.name, field.field_type) for field in kind.element_type.fields]
    return fields == [("key", StringType()), ("value", BinaryType())]


def file_schema(schema: Schema) -> pa.Schema:
    """The Arrow schema of the files, with the table's field ids."""
    names = [name for name in (*TYPES, HEADERS) if name in schema.column_names]
    return pa.schema([_field(schema.find_field(name), COLUMNS[name]) for name in names])


def _field(field: NestedField, kind: pa.DataType, name: str | None = None) -> pa.Field:
    inner = field.field_type
    if isinstance(inner, ListType):
        kind = pa.list_(_field(inner.element_field, kind.value_type, "element"))
    elif isinstance(inner, StructType):
        kind = pa.struct([_field(part, kind.field(part.name).type) for part in inner.fields])
    ids = {"PARQUET:field_id": str(field.field_id)}
    return pa.field(name or field.name, kind, nullable=field.optional, metadata=ids)


@dataclass(frozen=True, slots=True)
class IcebergFile:
    """A file that a task wrote. `day`: days since 1970, in UTC."""

    location: str
    topic: str
    day: int
    rows: int
    size_bytes: int
    footer: pq.FileMetaData


@dataclass(frozen=True, slots=True)
class _Writing:
    topic: str
    day: int
    location: str
    sink: Any

    def finish(
        self, rows: int, offsets: Mapping[int, tuple[int, int]], footer: pq.FileMetaData
    ) -> IcebergFile:
        """The file is in the store when this returns."""
        size = self.sink.tell()
        self.sink.close()
        return IcebergFile(self.location, self.topic, self.day, rows, size, footer)

    def give_up(self) -> None:
        """A partial file may stay; no snapshot names it."""
        self.sink.close()


@dataclass(frozen=True, slots=True)
class IcebergTask:
    """Pickled to the tasks, with the `io` that opens the table's store."""

    io: FileIO
    folder: str
    schema: pa.Schema

    def __call__(self, plan: TaskPlan, place: ReadPlace) -> list[IcebergFile]:
        """Errors: those of `read_task`, OSError."""
        return write_days(plan, place, self.schema, self._create)

    def _create(self, topic: str, day: int) -> _Writing:
        location = f"{self.folder}/{SystemRandom().uuid().hex}.parquet"
        # The name is new: no file is overwritten.
        sink = self.io.new_output(location).create(overwrite=True)
        return _Writing(topic, day, location, sink)


def data_file(metadata: TableMetadata, file: IcebergFile) -> DataFile:
    """The file's entry in a manifest. Errors: Invalid."""
    if not _DAY_MIN <= file.day <= _DAY_MAX:
        raise Invalid(
            f"topic {file.topic} has a record whose timestamp is beyond the year 9999, which "
            "PyIceberg cannot write: leave the topic out, or export it into a folder as Parquet"
        )
    schema = metadata.schema()
    statistics = data_file_statistics_from_parquet_metadata(
        parquet_metadata=file.footer,
        stats_columns=compute_statistics_plan(schema, metadata.properties),
        parquet_column_mapping=parquet_path_to_id_mapping(schema),
    )
    return DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=file.location,
        file_format=FileFormat.PARQUET,
        partition=Record(file.topic, file.day),
        file_size_in_bytes=file.size_bytes,
        sort_order_id=None,
        spec_id=metadata.default_spec_id,
        equality_ids=None,
        key_metadata=None,
        **statistics.to_serialized_dict(),
    )
