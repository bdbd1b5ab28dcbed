"""Spark's Kafka source and sink: HOST:PORT PREFIX JARS, where JARS are paths joined by commas."""

from __future__ import annotations

import sys
import tempfile
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from tests.kafka_clients.programs.running import expect, run

_, BOOTSTRAP, PREFIX, JARS = sys.argv
spark = (
    SparkSession.builder.master("local[2]")
    .config("spark.jars", JARS)
    .config("spark.ui.enabled", "false")
    .config("spark.sql.shuffle.partitions", "1")
    .getOrCreate()
)
spark.sparkContext.setLogLevel("ERROR")
TOPIC = f"{PREFIX}-spark"


def source(reader: Any, **options: str) -> DataFrame:
    asked = {"kafka.bootstrap.servers": BOOTSTRAP, "subscribe": TOPIC, **options}
    loaded: DataFrame = reader.format("kafka").options(**asked).load()
    return loaded


def values(frame: DataFrame) -> list[str]:
    rows = frame.selectExpr("offset", "cast(value as string) as value").orderBy("offset").collect()
    return [row["value"] for row in rows]


def write() -> None:
    rows = spark.range(100).selectExpr(
        "cast(id as string) as key", "concat('v', id) as value", f"'{TOPIC}' as topic"
    )
    rows.coalesce(1).write.format("kafka").option("kafka.bootstrap.servers", BOOTSTRAP).save()


def read() -> None:
    expect(values(source(spark.read)), [f"v{number}" for number in range(100)])
    some = source(
        spark.read,
        startingOffsets=f'{{"{TOPIC}": {{"0": 10}}}}',
        endingOffsets=f'{{"{TOPIC}": {{"0": 12}}}}',
    )
    expect(values(some), ["v10", "v11"])


def stream() -> None:
    frame = source(spark.readStream, startingOffsets="earliest", maxOffsetsPerTrigger="30")
    with tempfile.TemporaryDirectory() as folder:
        query = (
            frame.writeStream.format("memory")
            .queryName("streamed")
            .option("checkpointLocation", folder)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination(120)
        expect(values(spark.table("streamed")), [f"v{number}" for number in range(100)])


run({"write": write, "read": read, "stream": stream})
spark.stop()
