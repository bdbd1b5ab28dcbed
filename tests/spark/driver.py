"""A Spark driver of its own, to be killed: a streaming query that waits before its commit."""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession

from tests.spark.held_source import HeldSource


def main(server: str, source: str, target: str, checkpoint: str, hold: str) -> None:
    spark = (
        SparkSession.builder.master("local[1]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.codegen.wholeStage", "false")
        .config("spark.sql.adaptive.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "512m")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    spark.dataSource.register(HeldSource)
    rows = (
        spark.readStream.format("streamlog")
        .options(server=server, subscribe=source, startingOffsets="earliest")
        .load()
    )
    (
        rows.select("key", "value")
        .writeStream.format("held")
        .options(server=server, topic=target, checkpointLocation=checkpoint, hold=hold)
        .trigger(availableNow=True)
        .start()
        .awaitTermination()
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
