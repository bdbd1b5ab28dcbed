"""Start-up time and memory of `streamlog dev`: idle, under the load of `produce`, and after ten
consumers have caught up with 800 MB of 100 partitions on S3.
"""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.node import RunningNode, running_node
from benchmarks.produce import SETTINGS, WAL_BYTES_MAX, EncodedLoad
from benchmarks.report import Report, Row, percentile
from benchmarks.s3 import BUCKET, s3_server
from streamlog.client import Admin, Consumer, Producer

CATCH_UP_PARTITIONS = 100
CATCH_UP_BYTES = 800_000_000
CONSUMERS = 10
RECORD_BYTES = 64 << 10
RETURNED_AFTER_S = 5.0
"""The node returns free heap memory after two of its checks."""


class PeakRss:
    """The highest resident memory of a node, sampled 20 times a second."""

    def __init__(self, node: RunningNode) -> None:
        self._node = node
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self.peak_bytes = 0

    def _watch(self) -> None:
        while not self._ended.wait(0.05):
            self.peak_bytes = max(self.peak_bytes, self._node.rss_bytes())

    def __enter__(self) -> PeakRss:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()


def run(report: Report, folder: Path, *, scale: float) -> None:
    """`scale` 1 writes ten times the WAL bound."""
    starts = []
    idle = 0.0
    for _ in range(5):
        with running_node(folder / "start", wal="disk") as node:
            starts.append(node.started_in_s)
            idle = node.rss_bytes() / 1e6
    report.add(
        Row(
            "footprint", "start-up until the banner", percentile(starts, 0.5), "s",
            aim=1.5, less_is_better=True,
        )
    )  # fmt: skip
    report.add(Row("footprint", "RSS idle", idle, "MB"))
    for wal in ("disk", "object"):
        with running_node(folder / f"load-{wal}", wal=wal, settings=SETTINGS) as node:
            load = EncodedLoad(node)
            peak = 0.0
            for size in (1 << 20, 128 << 10):
                batches = load.batches(f"load-{size}", size, int(10 * WAL_BYTES_MAX * scale))
                with PeakRss(node) as measured:
                    load.send(batches, size)
                peak = max(peak, measured.peak_bytes / 1e6)
            report.add(
                Row("footprint", f"RSS under load, {wal}", peak, "MB", aim=250, less_is_better=True)
            )
    _catch_up(report, folder, scale=scale)


def _catch_up(report: Report, folder: Path, *, scale: float) -> None:
    """A freshly started node reads everything from the store, for gRPC clients."""
    with s3_server(folder) as server:
        places = {"store": server.url(BUCKET, "footprint"), "meta": f"rocksdb://{folder}/s3-meta"}
        with running_node(folder / "s3-fill", wal="object", **places) as node:
            count = _fill(node, int(CATCH_UP_BYTES * scale))
        with running_node(folder / "s3-read", wal="object", **places) as node:
            with PeakRss(node) as measured, ThreadPoolExecutor(CONSUMERS) as pool:
                read = sum(pool.map(lambda number: _read(node, number), range(CONSUMERS)))
            ended = node.rss_bytes() / 1e6
            assert read == count, f"{read} of {count} records came"
            time.sleep(RETURNED_AFTER_S)
            row = Row(
                "footprint", "RSS after a catch-up read, S3", node.rss_bytes() / 1e6, "MB",
                aim=300, less_is_better=True,
            )  # fmt: skip
            row.facts = {"peak_mb": measured.peak_bytes / 1e6, "at_its_end_mb": ended}
            report.add(row)


def _fill(node: RunningNode, total: int) -> int:
    """Produces records; returns their number."""
    with Admin(node.server) as admin:
        admin.create_topic("catch-up", CATCH_UP_PARTITIONS)
    value, count = os.urandom(RECORD_BYTES), total // RECORD_BYTES
    with Producer(node.server) as producer:
        for number in range(count):
            producer.send("catch-up", value, partition=number % CATCH_UP_PARTITIONS)
        producer.flush()
    return count


def _read(node: RunningNode, number: int) -> int:
    """Consumes every tenth partition to its end; returns the number of records."""
    mine = range(number, CATCH_UP_PARTITIONS, CONSUMERS)
    with Admin(node.server) as admin:
        found = admin.describe_topic("catch-up").partitions
    left = sum(found[partition].high_watermark for partition in mine)
    read = 0
    with Consumer(node.server, auto_offset_reset="earliest") as consumer:
        consumer.assign([("catch-up", partition) for partition in mine])
        while read < left:
            read += len(consumer.poll(5))
    return read
