"""Import: files into a topic through the sink, each file once.

A streaming query reads the folder's files and ends when all are read. Its checkpoint knows which
files were read, and the sink writes every micro-batch once. So a run after an interrupted one goes
on, and a later run reads the new files.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import functions as f
from pyspark.sql.types import BinaryType, StringType

from streamlog.errors import Invalid
from streamlog.repair.findings import Progress, no_progress
from streamlog.spark.jobs.export.json_lines import JsonFields
from streamlog.spark.jobs.export.parquet_columns import is_nested, schema_to_read
from streamlog.spark.jobs.tasks import task_failed

FILES_PER_BATCH = 100
"""Fewer files: smaller commits, less to repeat after a stop. More files: less time between them."""
POLL_S = 1.0
FILE_AGE_MAX = "100000d"
"""In effect no bound. Spark's is 7 days before the newest file: it reads no older ones, and
forgets those that it has read."""
_COUNT = "streamlog_imported"
"""Of records; Spark counts what it reads, blank lines, too."""

Format = Literal["text", "json", "parquet"]


@dataclass(frozen=True, slots=True)
class Imported:
    """The result of one run."""

    records: int
    batches: int


def import_files(
    spark: Any,
    path: str,
    server: str,
    topic: str,
    checkpoint: Path,
    *,
    kind: Format,
    key: str | None = None,
    value: str | None = None,
    keep_partitions: bool = False,
    files_per_batch: int = FILES_PER_BATCH,
    progress: Progress = no_progress,
    tls: Mapping[str, str] | None = None,
) -> Imported:
    """`path`: a folder, with its subfolders. `key`, `value`: names of columns.

    Text: a line is a value, byte for byte, but for a UTF-8 byte order mark at a file's start.
    JSON: a line is an object, and a field of it a column; the value is the field `value`, or in an
    object without it the line as in text. Parquet: the column `value`, or without it the whole row
    as JSON, without its nulls. Both: the key is the column `key`, if there is one.
    An import that is interrupted or fails leaves whole micro-batches, and the next one goes on
    there. Errors: Invalid, before anything is written (also if Parquet files disagree on a column
    that is looked at in all of them); TaskFailed (also if a line is no JSON object).
    """
    query = None
    try:
        reader = spark.readStream.option("maxFilesPerTrigger", files_per_batch)
        reader = reader.option("recursiveFileLookup", "true").option("maxFileAge", FILE_AGE_MAX)
        if kind == "parquet":
            schema = schema_to_read(spark, path, key, value, keep_partitions=keep_partitions)
            rows = reader.format(kind).schema(schema).load(path)
        else:
            rows = reader.format("text").option("lineSep", "\n").load(path)
        if kind == "json":
            records = _parsed(rows, JsonFields(key, value, keep_partitions))
        else:
            records = rows.select(*_columns(rows, key, value, keep_partitions=keep_partitions))
        counted = records.observe(_COUNT, f.count(f.lit(1)).alias("records"))
        query = (
            counted.writeStream.format("streamlog")
            .option("server", server)
            .options(**(tls or {}))
            .option("topic", topic)
            .option("checkpointLocation", str(checkpoint.absolute()))
            .outputMode("append")
            .trigger(availableNow=True)
            .start()
        )
        taken: dict[int, int] = {}
        while not query.awaitTermination(POLL_S):
            _look(query, taken)
            progress("importing records", sum(taken.values()), 0)
        _look(query, taken)
        return Imported(sum(taken.values()), len(taken))
    except AnalysisException as error:
        raise Invalid(f"{path} cannot be imported: {str(error).splitlines()[0]}") from error
    except StreamingQueryException as error:
        raise task_failed(error) from error
    finally:
        if query is not None:
            query.stop()


def _look(query: Any, taken: dict[int, int]) -> None:
    """Notes micro-batches with records; Spark keeps the last hundred."""
    for batch in query.recentProgress:
        row = batch["observedMetrics"].get(_COUNT, (0,))
        # Of Spark Connect (4.3) the row has two fields: a list of its values, and their types.
        count = row[0][0] if isinstance(row[0], list) else row[0]
        if count:
            taken[batch["batchId"]] = count


def _parsed(lines: Any, fields: JsonFields) -> Any:
    """The columns for the sink. Spark's own reader of JSON gives each column one type, found in all
    files, and does without what does not fit."""

    def records(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return fields.records(batches)

    line, file = f.col("value").cast("binary"), f.col("_metadata.file_path")
    return lines.select(line.alias("line"), file.alias("file")).mapInArrow(records, fields.schema)


def _columns(rows: Any, key: str | None, value: str | None, *, keep_partitions: bool) -> list[Any]:
    """The columns for the sink. Errors: Invalid."""
    names = rows.schema.names
    for asked in (key, value):
        if asked is not None and asked not in names:
            raise Invalid(f"there is no column {asked}; there are {', '.join(names)}")
    value = value or ("value" if "value" in names else None)
    key = key or ("key" if "key" in names else None)
    payload = _bytes(rows, value) if value else f.to_json(f.struct("*")).cast("binary")
    columns = [payload.alias("value")]
    if key is not None:
        columns.append(_bytes(rows, key).alias("key"))
    if keep_partitions:
        if "partition" not in names:
            raise Invalid("there is no column partition to keep")
        columns.append(f.col("partition").cast("int").alias("partition"))
    return columns


def _bytes(rows: Any, name: str) -> Any:
    """The column's bytes: strings unchanged, numbers and dates as text, nested values as JSON."""
    column, kind = f.col(name), rows.schema[name].dataType
    if isinstance(kind, BinaryType | StringType):
        return column.cast("binary")
    if is_nested(kind):
        return f.to_json(column).cast("binary")
    return column.cast("string").cast("binary")
