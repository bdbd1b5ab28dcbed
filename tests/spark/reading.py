"""Reads as Spark would, without a JVM: plans and carries out all tasks in this process."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from streamlog.client import Admin, Consumer, Producer
from streamlog.spark.arrow import COLUMNS
from streamlog.spark.options import parse_read_options
from streamlog.spark.plan.offsets import batch_windows
from streamlog.spark.plan.session import Planned, opened_cluster, plan_read
from streamlog.spark.read.task import read_task
from tests.support.node import NodeProcess

SCHEMA = pa.schema([pa.field(name, kind) for name, kind in COLUMNS.items()])
ORDER = [("topic", "ascending"), ("partition", "ascending"), ("offset", "ascending")]
UPLOAD_AT_ONCE = ("--set", "engine.upload.upload_interval_ms=50")


def plan(**options: str) -> Planned:
    parsed = parse_read_options(options, streaming=False)
    with opened_cluster(parsed) as cluster:
        return plan_read(parsed, cluster, batch_windows(parsed, cluster))


def carry_out(planned: Planned, schema: pa.Schema = SCHEMA) -> pa.Table:
    """As tasks that came over a wire."""
    batches: list[pa.RecordBatch] = []
    for task in planned.plan.tasks:
        sent_task, place = pickle.loads(pickle.dumps((task, planned.place), 5))  # noqa: S301 - own bytes
        task_batches = list(read_task(sent_task, place, schema))
        _check_order(task_batches)
        batches += task_batches
    return pa.Table.from_batches(batches, schema).sort_by(ORDER)


def read(**options: str) -> pa.Table:
    return carry_out(plan(**options))


def _check_order(batches: Iterable[pa.RecordBatch]) -> None:
    last: dict[tuple[str, int], int] = {}
    for batch in batches:
        columns = (batch.column(name).to_pylist() for name in ("topic", "partition", "offset"))
        for topic, partition, offset in zip(*columns, strict=True):
            assert offset > last.get((topic, partition), -1)
            last[topic, partition] = offset


def rows(table: pa.Table) -> list[tuple[Any, ...]]:
    """(topic, partition, offset, timestamp ms, key, value, headers), as `consumed` has them."""
    stamps = table.column("timestamp").cast(pa.int64()).to_pylist()
    headers = [
        tuple((one["key"], one["value"]) for one in found or ())
        for found in table.column("headers").to_pylist()
    ]
    plain = [table.column(name).to_pylist() for name in ("topic", "partition", "offset")]
    bytes_ = [table.column(name).to_pylist() for name in ("key", "value")]
    millis = [stamp // 1000 for stamp in stamps]
    return list(zip(*plain, millis, *bytes_, headers, strict=True))


def consumed(server: str, topic: str, partitions: int) -> list[tuple[Any, ...]]:
    """All that a consumer gets, sorted as `rows`."""
    with Admin(server) as admin:
        ends = {
            partition.partition: (partition.log_start_offset, partition.high_watermark)
            for partition in admin.describe_topic(topic).partitions
        }
    records: list[tuple[Any, ...]] = []
    with Consumer(server, isolation_level="read_committed") as consumer:
        consumer.assign([(topic, n) for n in range(partitions)])
        while any(
            start < end and consumer.position(topic, n) < end for n, (start, end) in ends.items()
        ):
            for record in consumer.poll(5, max_records=5000):
                headers = tuple((name, value) for name, value in record.headers)
                records.append(
                    (
                        record.topic,
                        record.partition,
                        record.offset,
                        record.timestamp_ms,
                        record.key,
                        record.value,
                        headers,
                    )
                )
    return sorted(records, key=lambda row: row[:3])


def produce(
    server: str, topic: str, values: Iterable[tuple[int, bytes | None]], **settings: Any
) -> None:
    """(partition, value); every second one has a key and headers."""
    with Producer(server, **settings) as producer:
        for number, (partition, value) in enumerate(values):
            producer.send(
                topic,
                value=value,
                key=b"k%d" % number if number % 2 else None,
                headers=[("h", b"x"), ("h", None)] if number % 2 else [],
                partition=partition,
            )
        producer.flush()


def uploaded(server: str, topic: str) -> None:
    """Waits until every record lies in an object."""
    for _ in range(10_000):
        if plan(server=server, subscribe=topic, readMode="store").plan.service_records == 0:
            return
    raise AssertionError("records were not uploaded")


@contextmanager
def started(folder: Path, *arguments: str, **settings: Any) -> Iterator[NodeProcess]:
    with NodeProcess(folder, arguments=arguments, **settings) as node:
        yield node
