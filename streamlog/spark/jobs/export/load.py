"""Import: files into a topic through the sink, each file once.

A streaming query over the folder's files, which ends when all are read: its checkpoint knows which
files were taken, and the sink writes every micro-batch once. So a run that was stopped goes on, and
a later run takes the files that are new.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import functions as f
from pyspark.sql.types import BinaryType, StringType

from streamlog.errors import Invalid
from streamlog.repair.findings import Progress, no_progress
from streamlog.spark.jobs.tasks import task_failed

FILES_PER_BATCH = 100
"""Fewer mean smaller commits and less to do again after a stop; more mean less time between."""
POLL_S = 1.0

Format = Literal["text", "json", "parquet"]


@dataclass(frozen=True, slots=True)
class Imported:
    """By one run."""

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
) -> Imported:
    """`path`: a folder, with its subfolders. `key`, `value`: names of columns.

    Text: a line is a value, byte for byte. JSON (one object a line) and Parquet: the column
    `value`, or where there is none the whole row as JSON; the column `key` where there is one.
    Interrupted, it leaves whole micro-batches. Errors: Invalid, TaskFailed.
    """
    query = None
    try:
        rows = _files(spark, path, kind, files_per_batch)
        records = rows.select(*_columns(rows, key, value, keep_partitions=keep_partitions))
        query = (
            records.writeStream.format("streamlog")
            .option("server", server)
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
    """Micro-batches with records; Spark tells of the last hundred."""
    for one in query.recentProgress:
        if one["numInputRows"]:
            taken[one["batchId"]] = one["numInputRows"]


def _files(spark: Any, path: str, kind: Format, files_per_batch: int) -> Any:
    reader = spark.readStream.format(kind).option("recursiveFileLookup", "true")
    reader = reader.option("maxFilesPerTrigger", files_per_batch)
    if kind == "text":
        return reader.option("lineSep", "\n").load(path)
    known = spark.read.format(kind).option("recursiveFileLookup", "true").load(path).schema
    return reader.schema(known).load(path)


def _columns(rows: Any, key: str | None, value: str | None, *, keep_partitions: bool) -> list[Any]:
    """Those that the sink knows. Errors: Invalid."""
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
    """As they are in the file; numbers and dates as text, what is nested as JSON."""
    column, kind = f.col(name), rows.schema[name].dataType
    if isinstance(kind, BinaryType | StringType):
        return column.cast("binary")
    if kind.typeName() in ("struct", "array", "map"):
        return f.to_json(column).cast("binary")
    return column.cast("string").cast("binary")
