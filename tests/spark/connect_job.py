"""A client of Spark Connect: reads, streams and writes topics; prints what it saw as JSON.

Its process has no session but the one on the server.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import parquet
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from streamlog.errors import Invalid
from streamlog.spark.jobs.export.load import import_files
from streamlog.spark.jobs.tasks import TASKS_PER_CORE, run_tasks, wave_size
from streamlog.spark.read_metrics import read_metrics


def main(url: str, server: str, source: str, target: str, folder: str) -> None:
    spark: Any = SparkSession.builder.remote(url).appName("connect").getOrCreate()
    assert "connect" in type(spark).__module__
    found: dict[str, Any] = {}
    spark.conf.set("spark.sql.pyspark.worker.logging.enabled", "true")
    found["rows"] = _read(spark, server, source)
    kept = read_metrics(spark).drop("ts").toPandas()
    spark.conf.set("spark.sql.pyspark.worker.logging.enabled", "false")
    found["metrics"] = json.loads(kept.to_json(orient="records"))
    found["progress"] = _copy(spark, server, source, target, f"{folder}/copy")
    # What a driver leaves that dies between its commit and Spark's own note of it.
    for name in ("1", ".1.crc"):
        (Path(folder) / "copy" / "commits" / name).unlink()
    found["replayed"] = _copy(spark, server, source, target, f"{folder}/copy")
    _copy_each(spark, server, source, target, f"{folder}/each")
    found["wave"] = wave_size(spark) // TASKS_PER_CORE
    found["tasks"] = run_tasks(spark, lambda number: number * 2, [3, 4])
    batch = spark.range(3).selectExpr("concat('batch ', id) value")
    batch.write.format("streamlog").mode("append").options(server=server, topic=target).save()
    found["written"] = spark.read.format("streamlog").options(
        server=server, subscribe=target
    ).load().selectExpr("cast(value as string) value").toPandas()["value"].tolist()  # fmt: skip
    found["imported"] = _imported(spark, server, target, Path(folder))
    spark.stop()
    print(json.dumps(found))


def _read(spark: Any, server: str, topic: str) -> list[list[Any]]:
    rows = spark.read.format("streamlog").options(server=server, subscribe=topic)
    rows = rows.option("readName", "mine").load()
    table = rows.orderBy("partition", "offset").select("partition", "offset", "value").toArrow()
    columns = table.to_pydict()
    values = [value.decode() for value in columns["value"]]
    return [list(row) for row in zip(columns["partition"], columns["offset"], values, strict=True)]


def _stream(spark: Any, server: str, topic: str, **options: str) -> Any:
    return (
        spark.readStream.format("streamlog")
        .options(server=server, subscribe=topic, startingOffsets="earliest", **options)
        .load()
    )


def _ended(writer: Any) -> Any:
    """Begun again where the machine was too busy: Spark gives a source's Python ten seconds."""
    while True:
        query = writer.trigger(availableNow=True).start()
        try:
            query.awaitTermination()
        except PySparkException as error:
            if "failed to connect back" not in str(error):
                raise
        else:
            return query


def _copy(spark: Any, server: str, source: str, target: str, checkpoint: str) -> Any:
    query = _ended(
        _stream(spark, server, source, maxOffsetsPerTrigger="50")
        .selectExpr("concat('copy ', cast(value as string)) value")
        .writeStream.format("streamlog")
        .options(server=server, topic=target, checkpointLocation=checkpoint)
    )
    return [{"batch": one["batchId"], **one["sources"][0]} for one in query.recentProgress]


def _copy_each(spark: Any, server: str, source: str, target: str, checkpoint: str) -> None:
    def write(batch: Any, epoch: int) -> None:
        for _ in range(2):
            (
                batch.selectExpr("concat('each ', cast(value as string)) value")
                .write.format("streamlog")
                .mode("append")
                .options(server=server, topic=target, writerId=checkpoint[-60:])
                .option("writerEpoch", str(epoch))
                .save()
            )

    _ended(
        _stream(spark, server, source)
        .writeStream.foreachBatch(write)
        .option("checkpointLocation", checkpoint)
    )


def _imported(spark: Any, server: str, topic: str, folder: Path) -> dict[str, Any]:
    """The counts of records of two imports, and the error of one that is refused."""

    def load(kind: Any, value: str | None = None) -> int:
        path, check = str(folder / kind), folder / f"{kind}.checkpoint"
        return import_files(spark, path, server, topic, check, kind=kind, value=value).records

    for kind, write in (("json", _write_lines), ("parquet", _write_tables)):
        (folder / kind).mkdir()
        write(folder / kind)
    try:
        load("parquet")
    except Invalid as error:
        refused = error.message
    return {"json": load("json"), "parquet": load("parquet", value="id"), "refused": refused}


def _write_lines(folder: Path) -> None:
    (folder / "a.json").write_text('{"id": "line 0"}\n\n{"id": "line 1"}\n')


def _write_tables(folder: Path) -> None:
    for name, value in (("a", 1), ("b", "x")):
        table = pa.table({"id": [f"row {name}"], "n": [value]})
        parquet.write_table(table, folder / f"{name}.parquet")


if __name__ == "__main__":
    main(*sys.argv[1:])
