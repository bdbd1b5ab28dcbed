"""Fetch from the earliest offset, cold (the node has just started) and cached."""

from __future__ import annotations

import time
from pathlib import Path

from benchmarks.floors import BareServer
from benchmarks.node import RunningNode, running_node
from benchmarks.produce import PARTITIONS, RECORD_BYTES, example_values
from benchmarks.report import Report, Row
from streamlog.client import Admin, Consumer, Producer

CACHED_BYTES = 48 << 20
"""Fits into the tail cache of a node with default settings."""


def run(report: Report, folder: Path, *, scale: float) -> None:
    """`scale` 1 reads 512 MiB cold, and 48 MiB ten times from the cache."""
    total = int(512 * scale) << 20
    with BareServer() as bare:
        floor = bare.fetch_mb_s(8 << 20, total)
    data = folder / "fetch"
    with running_node(data, wal="disk") as node:
        _fill(node, "cold", total)
    with running_node(data, wal="disk") as node:
        cold = _read(node, "cold", total)
        report.add(Row("fetch", "cold, from earliest", cold, "MB/s", floor, "gRPC"))
        _fill(node, "cached", CACHED_BYTES)
        best = max(_read(node, "cached", CACHED_BYTES) for _ in range(2))
        rounds = max(1, int(10 * scale))
        began = time.perf_counter()
        for _ in range(rounds):
            _read(node, "cached", CACHED_BYTES)
        cached = rounds * CACHED_BYTES / (time.perf_counter() - began) / 1e6
        report.add(
            Row(
                "fetch", "cached, from earliest", cached, "MB/s", floor, "gRPC", 0.75,
                facts={"best_mb_s": best, "rss_mb": node.rss_bytes() / 1e6},
            )
        )  # fmt: skip


def _fill(node: RunningNode, topic: str, total: int) -> None:
    with Admin(node.server) as admin:
        admin.create_topic(topic, PARTITIONS)
    values = example_values(1 << 20)
    with Producer(node.server) as producer:
        for _ in range(total // (len(values) * RECORD_BYTES)):
            producer.send_many(topic, values)
        producer.flush()


def _read(node: RunningNode, topic: str, total: int) -> float:
    with Consumer(node.server, auto_offset_reset="earliest") as consumer:
        consumer.assign([(topic, partition) for partition in range(PARTITIONS)])
        seen = records = 0
        expected = total // RECORD_BYTES
        began = time.perf_counter()
        while records < expected:
            for batch in consumer.poll_batches(1.0):
                records += batch.record_count
                seen += len(batch.data)
        return seen / (time.perf_counter() - began) / 1e6
