"""The demonstration's steps.

1. Lines go into topics, one per file, as if each file had been written within one hour: a record's
   timestamp is the line's place in that hour. First come the lines of the first half hour.
2. Two streaming queries read all topics, parse the lines, and count them by minute, file and level.
   One writes the counts into a topic, exactly once, the other into Parquet. They stop when they
   have read everything.
3. The second half hour follows, and then one later line, whose time closes the windows that are
   still open. Each time the queries go on from their checkpoints.
4. Both results are read and compared with the lines.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pyspark.sql import functions as f

from streamlog.client import Admin, Producer
from streamlog.errors import StreamlogError
from streamlog.spark.demo.lines import COLOURS, level_table, parsed
from streamlog.spark.picture import bars

COUNTS = "line-counts"
HOUR_MS = 3_600_000
LATER_MS = 600_000
"""After the hour's end: more than the watermark."""
PARTS = 2
WATERMARK = "5 minutes"
QUERY_TIMEOUT_S = 1800
READER_POLL_S = 0.05
COUNT_SCHEMA = "minute timestamp, source string, level string, lines long, templates long"

Progress = Callable[[str], None]
Lines = Mapping[str, Sequence[bytes]]


@dataclass(frozen=True, slots=True)
class DemoOutcome:
    """`counts`: (topic, level) → lines, from the topic with the results."""

    lines: int
    lines_in_topic: int
    lines_in_parquet: int
    rows_in_topic: int
    counts: Mapping[tuple[str, str], int]
    templates: Sequence[tuple[str, str, int]]
    """The most frequent templates: (template, component, lines)."""
    parquet: Path
    picture: Path

    @property
    def is_good(self) -> bool:
        """Whether every line was counted once."""
        return self.lines == self.lines_in_topic == self.lines_in_parquet


def run(
    spark: Any, server: str, lines: Lines, folder: Path, begin_ms: int, progress: Progress
) -> DemoOutcome:
    """`lines`: by topic; the topics must not exist. `begin_ms`: begin of the hour, a whole minute.

    Errors: those of client and queries.
    """
    with Admin(server) as admin:
        for topic in (*lines, COUNTS):
            admin.create_topic(topic, 1)
    pipeline = _Pipeline(spark, server, list(lines), folder)
    with Producer(server) as producer:
        for part in range(PARTS):
            sent = _replay(producer, lines, begin_ms, part)
            progress(f"{sent:,} lines of half hour {part + 1} are acknowledged")
            pipeline.run()
            progress("the streaming queries have read them")
        later_ms = begin_ms + HOUR_MS + LATER_MS
        producer.send(next(iter(lines)), b"later", partition=0, timestamp_ms=later_ms).result()
    pipeline.run()
    progress("a later line came, and the last windows are closed")
    return pipeline.outcome(sum(map(len, lines.values())))


def _replay(producer: Producer, lines: Lines, begin_ms: int, part: int) -> int:
    """Sends one part of the hour; returns the number of lines once all are acknowledged."""
    answers = [
        producer.send(
            topic,
            topic_lines[number],
            partition=0,
            timestamp_ms=begin_ms + number * HOUR_MS // len(topic_lines),
        )
        for topic, topic_lines in lines.items()
        for number in range(_first(topic_lines, part), _first(topic_lines, part + 1))
    ]
    for answer in answers:
        answer.result()
    return len(answers)


def wait_for_source(query: Any) -> None:
    """Until the query's reader runs on the driver, or the query has ended; then another may start.

    Spark 4.3 keeps one environment for the Python readers of all queries, and each start writes
    three entries into it without a lock. Two first starts at once break its size, and then Spark
    can serialize no task of the session any more: "Illegal size 5 of collection, expected 6".

    Errors: StreamlogError (neither comes within QUERY_TIMEOUT_S); why the query failed.
    """
    for _ in range(int(QUERY_TIMEOUT_S / READER_POLL_S)):
        if query.status["isDataAvailable"] or query.awaitTermination(READER_POLL_S):
            return
    raise StreamlogError(f"a query has read nothing within {QUERY_TIMEOUT_S} s")


def _first(lines: Sequence[bytes], part: int) -> int:
    """The number of the part's first line."""
    return -(-len(lines) * part // PARTS)


class _Pipeline:
    def __init__(self, spark: Any, server: str, topics: Sequence[str], folder: Path) -> None:
        self._spark = spark
        self._server = server
        self._topics = ",".join(topics)
        self._folder = folder
        self._levels = level_table(spark)

    def _counted(self) -> Any:
        source = (
            self._spark.readStream.format("streamlog")
            .option("server", self._server)
            .option("subscribe", self._topics)
            .option("startingOffsets", "earliest")
            .schema("topic STRING, value BINARY, timestamp TIMESTAMP")
            .load()
        )
        return (
            parsed(source.withWatermark("timestamp", WATERMARK), self._levels)
            .groupBy(f.window("timestamp", "1 minute").alias("span"), "source", "level")
            .agg(
                f.count("*").alias("lines"),
                f.approx_count_distinct("template").alias("templates"),
            )
            .selectExpr("span.start AS minute", "source", "level", "lines", "templates")
        )

    def run(self) -> None:
        """Runs both queries until they have read everything."""
        counted = self._counted()
        to_topic = (
            counted.selectExpr("source AS key", "to_json(struct(*)) AS value")
            .writeStream.format("streamlog")
            .option("server", self._server)
            .option("topic", COUNTS)
        )
        to_parquet = counted.writeStream.format("parquet").option("path", str(self.parquet))
        queries: list[Any] = []
        try:
            for name, writer in (("topic", to_topic), ("parquet", to_parquet)):
                queries.append(
                    writer.option("checkpointLocation", str(self._folder / "checkpoints" / name))
                    .outputMode("append")
                    .trigger(availableNow=True)
                    .start()
                )
                wait_for_source(queries[-1])
            for query in queries:
                if not query.awaitTermination(QUERY_TIMEOUT_S):
                    raise StreamlogError(f"a query did not end within {QUERY_TIMEOUT_S} s")
        finally:
            for query in queries:
                query.stop()

    @property
    def parquet(self) -> Path:
        return self._folder / "counts.parquet"

    def outcome(self, total: int) -> DemoOutcome:
        rows = (
            self._read(COUNTS, "value BINARY")
            .select(f.from_json(f.decode("value", "UTF-8"), COUNT_SCHEMA).alias("row"))
            .select("row.*")
            .collect()
        )
        in_parquet = self._spark.read.parquet(str(self.parquet)).agg(f.sum("lines")).first()[0]
        templates = (
            parsed(
                self._read(self._topics, "topic STRING, value BINARY, timestamp TIMESTAMP"),
                self._levels,
            )
            .groupBy("template", "component")
            .count()
            .orderBy(f.desc("count"), "template")
            .limit(5)
            .collect()
        )
        counts: dict[tuple[str, str], int] = {}
        for row in rows:
            key = (row["source"], row["level"])
            counts[key] = counts.get(key, 0) + row["lines"]
        picture = self._folder / "lines-per-minute.svg"
        picture.write_text(_picture(rows), "utf-8")
        return DemoOutcome(
            lines=total,
            lines_in_topic=sum(counts.values()),
            lines_in_parquet=in_parquet or 0,
            rows_in_topic=len(rows),
            counts=counts,
            templates=[tuple(row) for row in templates],
            parquet=self.parquet,
            picture=picture,
        )

    def _read(self, topics: str, schema: str) -> Any:
        reader = self._spark.read.format("streamlog").option("server", self._server)
        return reader.option("subscribe", topics).schema(schema).load()


def _picture(rows: Sequence[Any]) -> str:
    minutes = sorted({row["minute"] for row in rows})
    index_of = {minute: number for number, minute in enumerate(minutes)}
    levels = {row["level"] for row in rows}
    series = {level: [0] * len(minutes) for level in COLOURS if level in levels}
    for row in rows:
        series[row["level"]][index_of[row["minute"]]] += row["lines"]
    starts = [int(_utc(minute).timestamp() * 1000) for minute in minutes]
    return bars("Lines per minute, by level", starts, series, COLOURS)


def _utc(moment: datetime) -> datetime:
    """Converts from this machine's time zone, in which `collect` returns naive timestamps."""
    return moment.astimezone(UTC)
