"""The sink on real Spark: batch writes, streams, restarts, a driver and a node that are killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from streamlog.client import Admin, TransactionalStagedWriter
from streamlog.client.produce.partitioner import partition_for_key
from streamlog.client.staging import StagedWriter, WriterStatus
from streamlog.spark.functions import partition_of
from tests.spark.conftest import ROOT
from tests.spark.reading import consumed, produce
from tests.spark.standalone import environment
from tests.support.node import NodeProcess

pytestmark = [
    pytest.mark.xdist_group("spark"),
    pytest.mark.slow,
    pytest.mark.timeout(900),
]

NewTopic = Callable[..., str]
WAIT_S = 600


def _write(frame: Any, server: str, **options: str) -> None:
    frame.write.format("streamlog").mode("append").options(server=server, **options).save()


def _copy(
    spark: Any,
    server: str,
    source: str,
    target: str,
    checkpoint: Path,
    *,
    columns: Sequence[str] = ("key", "value"),
    **options: str,
) -> Any:
    """A query that copies what there is, and has ended."""
    rows = (
        spark.readStream.format("streamlog")
        .options(server=server, subscribe=source, startingOffsets="earliest")
        .option("maxOffsetsPerTrigger", "100")
        .load()
    )
    query = (
        rows.selectExpr(*columns)
        .writeStream.format("streamlog")
        .options(server=server, topic=target, checkpointLocation=str(checkpoint), **options)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return query


def _values(server: str, topic: str, partitions: int) -> list[bytes]:
    return sorted(row[5] for row in consumed(server, topic, partitions))


def _status(server: str, writer_id: str) -> WriterStatus:
    with StagedWriter(server, writer_id) as writer:
        return writer.status()


def _wait_for(path: Path, is_going_on: Callable[[], bool]) -> None:
    ends_at = time.monotonic() + WAIT_S
    while not path.exists():
        assert is_going_on(), "the write ended before its commit"
        assert time.monotonic() < ends_at
        time.sleep(0.05)


def test_a_batch_write_equals_a_consumers_read(
    spark: Any, node: NodeProcess, new_topic: NewTopic
) -> None:
    keyed, other = new_topic(3), new_topic(2)
    frame = spark.range(0, 2000, 1, 3).selectExpr(
        f"if(id % 4 = 0, '{other}', '{keyed}') topic",
        "cast(id % 50 as string) key",
        "cast(cast(id as string) as binary) value",
        "if(id % 4 = 0, cast(id % 2 as int), null) partition",
        "if(id % 4 = 1, array(named_struct('key', 'h', 'value', cast('x' as binary))), null)"
        " headers",
        "id",
        "map('a', id) other",
    )
    _write(frame, node.server, compression="zstd")
    rows = consumed(node.server, keyed, 3) + consumed(node.server, other, 2)
    assert Counter(int(row[5]) for row in rows) == Counter(range(2000))
    for topic, partition, _, _, key, value, headers in rows:
        number = int(value)
        assert topic == (other if number % 4 == 0 else keyed)
        assert key == b"%d" % (number % 50)
        assert partition == (
            number % 2 if number % 4 == 0 else partition_for_key(b"%d" % (number % 50), 3)
        )
        assert headers == ((("h", b"x"),) if number % 4 == 1 else ())


def test_rows_that_are_brought_together_by_their_partition_lie_in_few_objects(
    spark: Any, node: NodeProcess, new_topic: NewTopic
) -> None:
    topic = new_topic(8)
    rows = spark.range(0, 800, 1, 4).selectExpr(
        "if(id % 10 = 0, null, cast(id as string)) key", "cast(id as string) value"
    )
    placed = rows.withColumn("partition", partition_of("key", 8))
    with_key = {
        row.value: row.partition for row in placed.where("key is not null").toLocalIterator()
    }
    assert with_key == {str(n): partition_for_key(b"%d" % n, 8) for n in range(800) if n % 10}
    _write(placed.repartition(4, "partition"), node.server, topic=topic)
    stored = consumed(node.server, topic, 8)
    assert Counter(int(row[5]) for row in stored) == Counter(range(800))
    assert all(row[1] == with_key[row[5].decode()] for row in stored if row[4] is not None)


def test_an_unwritable_row_is_named_and_leaves_nothing(
    spark: Any, node: NodeProcess, new_topic: NewTopic
) -> None:
    topic = new_topic()
    frame = spark.range(10).selectExpr("id", "cast(id as string) value")
    with pytest.raises(Exception, match="there is no column value"):
        _write(frame.select("id"), node.server, topic=topic)
    with pytest.raises(Exception, match="option compression is 'best'"):
        _write(frame, node.server, topic=topic, compression="best")
    with pytest.raises(Exception, match="a topic can only be appended to"):
        frame.write.format("streamlog").mode("overwrite").options(
            server=node.server, topic=topic
        ).save()
    # One task fails: nothing of the others is seen.
    half = spark.range(0, 100, 1, 2).selectExpr(
        "cast(id as string) value", f"if(id = 99, null, '{topic}') topic"
    )
    with pytest.raises(Exception, match="column topic is null in a row"):
        _write(half, node.server)
    large = frame.selectExpr("repeat('x', 2000000) value")
    with pytest.raises(Exception, match=r"the topic takes 1048588 \(max.message.bytes\)"):
        _write(large, node.server, topic=topic)
    # Of no rows nothing comes, and no error.
    for empty in (frame.where("id < 0"), spark.range(0).selectExpr("'x' value")):
        _write(empty, node.server, topic=topic)
    assert consumed(node.server, topic, 2) == []


def test_a_named_batch_write_is_done_once(
    spark: Any, node: NodeProcess, new_topic: NewTopic
) -> None:
    topic = new_topic()
    for part in range(2):
        frame = spark.range(10).selectExpr(f"cast(id + 100 * {part} as string) value")
        for _ in range(2):
            _write(frame, node.server, topic=topic, writerId=f"job-{topic}", writerEpoch=str(part))
    assert Counter(int(value) for value in _values(node.server, topic, 2)) == Counter(
        n + 100 * part for part in range(2) for n in range(10)
    )
    with pytest.raises(Exception, match="has committed epoch 1, and now 0 comes"):
        _write(frame, node.server, topic=topic, writerId=f"job-{topic}")


def test_a_stream_goes_on_and_a_batch_that_is_replayed_is_written_once(
    spark: Any, node: NodeProcess, new_topic: NewTopic, tmp_path: Path
) -> None:
    source, target, checkpoint = new_topic(), new_topic(3), tmp_path / "check"
    values = [b"%05d" % n for n in range(250)]
    produce(node.server, source, [(n % 2, value) for n, value in enumerate(values)])
    query = _copy(spark, node.server, source, target, checkpoint)
    assert _values(node.server, target, 3) == values
    writer_id = f"spark-query-{query.id}"
    last = _status(node.server, writer_id).last_epoch
    assert last is not None
    assert last >= 2
    # As if the driver had died between the sink's commit and Spark's note of it.
    for name in (f"{last}", f".{last}.crc"):
        (checkpoint / "commits" / name).unlink(missing_ok=True)
    more = [b"%05d" % n for n in range(250, 300)]
    produce(node.server, source, [(0, value) for value in more])
    # The query has another column by now, which does not matter to what was committed.
    headers = "array(named_struct('key', 'v', 'value', cast('2' as binary))) headers"
    _copy(spark, node.server, source, target, checkpoint, columns=("value", headers))
    with_headers = [row[5] for row in consumed(node.server, target, 3) if row[6]]
    assert sorted(with_headers) == more
    assert _values(node.server, target, 3) == values + more
    status = _status(node.server, writer_id)
    assert (status.last_epoch, status.staged_objects) == (last + 1, 0)


def test_transactions_commit_batches_and_streams_once(
    spark: Any, node: NodeProcess, new_topic: NewTopic, tmp_path: Path
) -> None:
    source, target, checkpoint = new_topic(), new_topic(3), tmp_path / "check"
    values = [b"%05d" % n for n in range(250)]
    frame = spark.range(0, 250, 1, 3).selectExpr("format_string('%05d', id) value")
    for _ in range(2):  # The second one finds the first.
        _write(frame, node.server, topic=source, commit="transaction", writerId=f"job-{source}")
    assert _values(node.server, source, 2) == values
    query = _copy(spark, node.server, source, target, checkpoint, commit="transaction")
    assert _values(node.server, target, 3) == values
    last = max(int(one.name) for one in (checkpoint / "commits").iterdir() if one.name.isdigit())
    assert last >= 2
    with TransactionalStagedWriter(node.server, f"spark-query-{query.id}") as writer:
        assert writer.last_epoch() == last
    # As if the driver had died between the sink's commit and Spark's note of it.
    for name in (f"{last}", f".{last}.crc"):
        (checkpoint / "commits" / name).unlink(missing_ok=True)
    _copy(spark, node.server, source, target, checkpoint, commit="transaction")
    assert _values(node.server, target, 3) == values
    seen = spark.read.format("streamlog").options(server=node.server, subscribe=target).load()
    assert sorted(row.value for row in seen.select("value").collect()) == values
    with pytest.raises(Exception, match="choose one of node, transaction"):
        _write(frame, node.server, topic=source, commit="twice")


def test_a_stream_without_a_name_is_refused(
    spark: Any, node: NodeProcess, new_topic: NewTopic, tmp_path: Path
) -> None:
    topic = new_topic()
    rows = spark.readStream.format("rate").load().selectExpr("cast(value as string) value")
    writer = rows.writeStream.format("streamlog").options(server=node.server, topic=topic)
    spark.conf.set("spark.sql.streaming.checkpointLocation", str(tmp_path))
    try:
        query = writer.trigger(availableNow=True).start()
        with pytest.raises(Exception, match="option checkpointLocation is missing"):
            query.awaitTermination()
    finally:
        spark.conf.unset("spark.sql.streaming.checkpointLocation")


def test_a_node_that_is_killed_before_the_commit_has_all_rows_once(
    spark: Any, tmp_path: Path
) -> None:
    from tests.spark.held_source import HeldSource

    spark.dataSource.register(HeldSource)
    with NodeProcess(tmp_path / "data") as node:
        with Admin(node.server) as admin:
            admin.create_topic("t", 2)
        frame = spark.range(0, 500, 1, 2).selectExpr("cast(id as string) value")
        seen: list[list[Any]] = []

        def restart() -> None:
            """In a thread: Spark finds registered sources in the thread that has the session."""
            _wait_for(tmp_path / "held", writing.is_set)
            seen.append(consumed(node.server, "t", 2))
            node.kill()
            (tmp_path / "go").touch()
            node.start()

        writing = threading.Event()
        writing.set()
        with ThreadPoolExecutor(1) as pool:
            restarting = pool.submit(restart)
            try:
                frame.write.format("held").mode("append").options(
                    server=node.server, topic="t", hold=str(tmp_path)
                ).save()
            finally:
                writing.clear()
                restarting.result(WAIT_S)
        assert seen == [[]]
        assert Counter(map(int, _values(node.server, "t", 2))) == Counter(range(500))


def test_a_driver_that_is_killed_before_its_commit_is_followed_by_another(
    spark: Any, tmp_path: Path
) -> None:
    checkpoint = tmp_path / "check"
    values = [b"%05d" % n for n in range(80)]
    with NodeProcess(tmp_path / "data") as node:
        with Admin(node.server) as admin:
            admin.create_topic("source", 2)
            admin.create_topic("target", 2)
        produce(node.server, "source", [(n % 2, value) for n, value in enumerate(values)])
        with (tmp_path / "driver.log").open("wb") as log:
            driver = subprocess.Popen(
                [
                    *(sys.executable, "-m", "tests.spark.driver", node.server),
                    *("source", "target", str(checkpoint), str(tmp_path)),
                ],
                cwd=ROOT,
                env=environment(),
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
            try:
                _wait_for(tmp_path / "held", lambda: driver.poll() is None)
            finally:
                os.killpg(driver.pid, signal.SIGKILL)
                driver.wait(WAIT_S)
        query_id = json.loads((checkpoint / "metadata").read_text())["id"]
        writer_id = f"spark-query-{query_id}"
        node.kill()
        node.start()
        status = _status(node.server, writer_id)
        assert status.last_epoch is None
        assert status.staged_objects > 0
        assert consumed(node.server, "target", 2) == []
        _copy(spark, node.server, "source", "target", checkpoint)
        assert _values(node.server, "target", 2) == values
        assert _status(node.server, writer_id).last_epoch == 0
