"""Source, sink and a job on real Spark, with a node whose objects lie on a real S3 server."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from streamlog.client import Admin
from streamlog.spark.jobs.scrub.node import scrub_node
from tests.spark.reading import consumed, produce, rows
from tests.support.node import NodeProcess
from tests.support.s3 import S3Tests

pytestmark = [
    pytest.mark.xdist_group("spark"),
    pytest.mark.slow,
    pytest.mark.timeout(900),
]


@pytest.fixture(scope="module")
def s3_node(
    tmp_path_factory: pytest.TempPathFactory, spark: Any, s3_tests: S3Tests
) -> Iterator[NodeProcess]:
    """Executors find the store by the node's own URL, its credentials in their environment."""
    folder = tmp_path_factory.mktemp("s3-node")
    places = ("--store", s3_tests.new_url(), "--meta", f"rocksdb://{folder}/meta")
    with NodeProcess(folder / "data", wal="object", places=places) as running:
        yield running


def _topic(server: str, name: str, partitions: int) -> str:
    with Admin(server) as admin:
        admin.create_topic(name, partitions)
    return name


def test_a_batch_read_from_the_bucket_equals_a_consumers_read(
    spark: Any, s3_node: NodeProcess
) -> None:
    topic = _topic(s3_node.server, "read", 2)
    produce(s3_node.server, topic, [(n % 2, b"value %d" % n) for n in range(300)])
    frame = (
        spark.read.format("streamlog")
        .options(server=s3_node.server, subscribe=topic, readMode="store", includeHeaders="true")
        .load()
    )
    table = frame.orderBy("topic", "partition", "offset").toArrow()
    assert rows(table) == consumed(s3_node.server, topic, 2)
    assert table.num_rows == 300


def test_a_stream_copies_a_topic_through_the_bucket_once(
    spark: Any, s3_node: NodeProcess, tmp_path: Path
) -> None:
    source, target = _topic(s3_node.server, "from", 2), _topic(s3_node.server, "into", 3)
    for round_ in range(2):
        produce(s3_node.server, source, [(n % 2, b"%d %d" % (round_, n)) for n in range(100)])
        query = (
            spark.readStream.format("streamlog")
            .options(server=s3_node.server, subscribe=source, startingOffsets="earliest")
            .options(readMode="store", maxOffsetsPerTrigger="70")
            .load()
            .selectExpr("key", "value")
            .writeStream.format("streamlog")
            .options(server=s3_node.server, topic=target)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    copied = Counter(row[5] for row in consumed(s3_node.server, target, 3))
    assert copied == Counter(b"%d %d" % (round_, n) for round_ in range(2) for n in range(100))


def test_a_scrub_on_executors_reads_every_object_of_the_bucket(
    spark: Any, s3_node: NodeProcess, s3: S3Tests
) -> None:
    topic = _topic(s3_node.server, "scrubbed", 1)
    produce(s3_node.server, topic, [(0, b"x" * 100)] * 50)
    report = asyncio.run(scrub_node(spark, s3_node.server))
    assert report.is_clean
    assert report.counts["records"] >= 50
