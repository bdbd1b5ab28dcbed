"""A batch write on a standalone master whose tasks fail, are retried, and have speculative twins.

Each attempt of a task leaves a file `partition-attempt` in the folder that it is given.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import SparkSession

PARTITIONS = 4
FAILS, IS_SLOW = 1, 3


def main(master: str, server: str, topic: str, rows: str, folder: str) -> None:
    def through(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Partition FAILS breaks off at its first attempt, IS_SLOW goes on when it has a twin."""
        context = TaskContext.get()
        partition, attempt = context.partitionId(), context.attemptNumber()
        (Path(folder) / f"{partition}-{attempt}").touch()
        yield from batches
        if attempt == 0 and partition == FAILS:
            raise RuntimeError("this attempt fails")
        while partition == IS_SLOW and not (Path(folder) / f"{IS_SLOW}-1").exists():
            time.sleep(0.05)

    spark = (
        SparkSession.builder.master(master)
        .config("spark.ui.enabled", "false")
        .config("spark.sql.codegen.wholeStage", "false")
        .config("spark.sql.adaptive.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "512m")
        .config("spark.executor.memory", "512m")
        .config("spark.speculation", "true")
        .config("spark.speculation.interval", "100ms")
        .config("spark.speculation.multiplier", "1.1")
        .config("spark.speculation.quantile", "0.5")
        .config("spark.speculation.minTaskRuntime", "100ms")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("WARN")
    values = spark.range(0, int(rows), 1, PARTITIONS).selectExpr("cast(id as string) value")
    (
        values.mapInArrow(through, "value string")
        .write.format("streamlog")
        .mode("append")
        .options(server=server, topic=topic, writerId="retried")
        .save()
    )
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
