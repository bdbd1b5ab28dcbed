"""The data source on real Spark: one local session for all tests of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from streamlog.client import Admin
from tests.spark.reading import consumed, produce, rows
from tests.support.node import NodeProcess

pytestmark = [
    pytest.mark.xdist_group("spark"),
    pytest.mark.slow,
    # A session starts in 8 s on two quiet cores, in minutes beside others.
    pytest.mark.timeout(900),
]

NewTopic = Callable[..., str]


def _frame(spark: Any, node: NodeProcess, **options: str) -> Any:
    reader = spark.read.format("streamlog").option("server", node.server)
    return reader.options(**options).load()


def _values(count: int, partitions: int = 2) -> list[tuple[int, bytes | None]]:
    return [(n % partitions, b"value %d" % n) for n in range(count)]


def test_a_batch_query_equals_a_consumers_read(
    spark: Any, node: NodeProcess, new_topic: NewTopic
) -> None:
    topic = new_topic()
    produce(node.server, topic, [*_values(500), (0, None)], compression="zstd")
    with Admin(node.server) as admin:
        admin.delete_records(topic, 1, 20)
    frame = _frame(spark, node, subscribe=topic, includeHeaders="true", minPartitions="3")
    assert frame.schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,"
        "timestamp:timestamp,timestampType:int,headers:array<struct<key:string,value:binary>>>"
    )
    table = frame.orderBy("topic", "partition", "offset").toArrow()
    assert rows(table) == consumed(node.server, topic, 2)
    assert frame.where("offset >= 200").groupBy("partition").count().collect() != []


def test_columns_that_are_named_and_an_empty_topic(
    spark: Any, node: NodeProcess, new_topic: NewTopic
) -> None:
    topic = new_topic(1)
    reader = spark.read.format("streamlog").options(server=node.server, subscribe=topic)
    assert reader.schema("offset BIGINT, value BINARY").load().collect() == []
    produce(node.server, topic, [(0, b"a"), (0, b"b")])
    found = reader.schema("offset BIGINT, value BINARY").load().orderBy("offset").collect()
    assert [tuple(row) for row in found] == [(0, b"a"), (1, b"b")]
    with pytest.raises(Exception, match="there are key, value"):
        reader.schema("offset BIGINT, payload BINARY").load().collect()


def test_a_wrong_option_is_named(spark: Any, node: NodeProcess) -> None:
    with pytest.raises(Exception, match="option subscripe is not known; did you mean subscribe"):
        _frame(spark, node, subscripe="x", subscribe="y").collect()
    with pytest.raises(Exception, match="there is no nothing"):
        _frame(spark, node, subscribe="nothing").collect()


class Query:
    """Runs a streaming query to its end, from one checkpoint, into memory."""

    def __init__(self, spark: Any, node: NodeProcess, folder: Path, **options: str) -> None:
        self._spark = spark
        self._options = {"server": node.server, "startingOffsets": "earliest", **options}
        self._checkpoint = str(folder / "checkpoint")
        self.progress: list[dict[str, Any]] = []
        self.batches: list[list[tuple[int, int]]] = []

    def run(self, **more: str) -> list[tuple[str, int, int]]:
        """What came in this run: (topic, partition, offset), sorted."""
        found: list[tuple[str, int, int]] = []

        def take(batch: Any, _: int) -> None:
            rows = batch.select("topic", "partition", "offset").collect()
            found.extend((row[0], row[1], row[2]) for row in rows)
            self.batches.append([(row[1], row[2]) for row in rows])

        query = (
            self._spark.readStream.format("streamlog")
            .options(**{**self._options, **more})
            .load()
            .writeStream.foreachBatch(take)
            .option("checkpointLocation", self._checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        try:
            query.awaitTermination(600)
            assert not query.isActive
            self.progress = [json.loads(one.json) for one in query.recentProgress]
        finally:
            query.stop()
        return sorted(found)


def test_a_stream_resumes_at_its_checkpoint_with_new_records(
    spark: Any, node: NodeProcess, new_topic: NewTopic, tmp_path: Path
) -> None:
    topic = new_topic(1)
    produce(node.server, topic, _values(90, 1))
    query = Query(spark, node, tmp_path, subscribePattern=f"{topic}.*", maxOffsetsPerTrigger="40")
    assert query.run() == [(topic, 0, n) for n in range(90)]
    assert [len(batch) for batch in query.batches] == [40, 40, 10]
    (source,) = query.progress[-1]["sources"]
    latest = source["latestOffset"]
    latest = json.loads(latest) if isinstance(latest, str) else latest
    assert latest["offsets"] == {topic: {"0": 90}}
    assert (latest["lagRecords"], latest["readMode"]) == (0, "store")
    # More records, another partition, another topic of the pattern; another way to read.
    with Admin(node.server) as admin:
        admin.create_partitions(topic, 2)
        admin.create_topic(f"{topic}b", 1)
    produce(node.server, topic, [(0, b"x"), (1, b"y")])
    produce(node.server, f"{topic}b", [(0, b"z")])
    assert query.run(readMode="service") == [(topic, 0, 90), (topic, 1, 0), (f"{topic}b", 0, 0)]
    assert query.run() == []


def test_a_stream_stops_at_deleted_records_unless_loss_is_allowed(
    spark: Any, node: NodeProcess, new_topic: NewTopic, tmp_path: Path
) -> None:
    topic = new_topic(1)
    produce(node.server, topic, _values(10, 1))
    query = Query(spark, node, tmp_path, subscribe=topic)
    assert len(query.run()) == 10
    produce(node.server, topic, _values(10, 1))
    with Admin(node.server) as admin:
        admin.delete_records(topic, 0, 15)
    with pytest.raises(Exception, match=r"offsets 10 to 15 of .* were deleted"):
        query.run()
    assert query.run(failOnDataLoss="false") == [(topic, 0, n) for n in range(15, 20)]


def test_a_partition_that_appears_while_a_query_runs(
    spark: Any, node: NodeProcess, new_topic: NewTopic, tmp_path: Path
) -> None:
    topic = new_topic(1)
    produce(node.server, topic, [(0, b"a")])
    name = f"view_{topic}"
    query = (
        spark.readStream.format("streamlog")
        .options(server=node.server, subscribe=topic, startingOffsets="earliest")
        .load()
        .writeStream.format("memory")
        .queryName(name)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    try:
        query.processAllAvailable()
        with Admin(node.server) as admin:
            admin.create_partitions(topic, 2)
        produce(node.server, topic, [(0, b"b"), (1, b"c")])
        for _ in range(20):
            query.processAllAvailable()
            found = {row.value for row in spark.sql(f"select value from {name}").collect()}
            if len(found) == 3:
                break
        assert {bytes(one) for one in found} == {b"a", b"b", b"c"}
    finally:
        query.stop()
