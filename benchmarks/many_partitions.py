"""A node with 10,000 open partitions: the first record to each of many topics, a clean stop, and
all topics consumed once after a restart.

The figures are wall-clock seconds. CPU seconds of node and client, and the node's commits and WAL
writes are shown beside them: on a busy machine these are more reliable.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.node import RunningNode, own_cpu_s, running_node
from benchmarks.report import Report, Row
from streamlog.client import Admin, Consumer, Producer

TOPICS = 2400
PARTITIONS = 10_000
WIDE = "wide"
"""The topic with the remaining partitions."""
AIM_S = 5.0
COUNTED = {
    "commits": "streamlog_metadata_commit_seconds_count",
    "WAL writes": "streamlog_wal_group_bytes_count",
    "PUTs": "streamlog_engine_put_seconds_count",
}


class Step:
    """One measured part of the run."""

    def __init__(self, node: RunningNode) -> None:
        self._node = node
        self._counts = {name: node.metric(metric) for name, metric in COUNTED.items()}
        self._cpu_s = node.cpu_s()
        self._own_cpu_s = own_cpu_s()
        self._began = time.perf_counter()

    def row(self, case: str) -> Row:
        seconds = time.perf_counter() - self._began
        facts = {
            "node_cpu_s": self._node.cpu_s() - self._cpu_s,
            "client_cpu_s": own_cpu_s() - self._own_cpu_s,
        }
        for name, metric in COUNTED.items():
            facts[name] = self._node.metric(metric) - self._counts[name]
        return _row(case, seconds, facts)


def _row(case: str, seconds: float, facts: dict[str, float]) -> Row:
    return Row(
        "partitions", case, seconds, "s", aim=AIM_S, less_is_better=True, facts=facts
    )  # fmt: skip


def run(report: Report, folder: Path, *, scale: float) -> None:
    """`scale` 1: 2,400 topics of one partition, and one topic with the rest of 10,000."""
    topics = [f"topic-{number:05d}" for number in range(max(1, int(TOPICS * scale)))]
    rest = max(1, int(PARTITIONS * scale) - len(topics))
    for wal in ("disk", "object"):
        data = folder / wal
        stopping: list[float] = []
        with _timed_stop(data, wal, stopping) as node:
            with Admin(node.server) as admin:
                step = Step(node)
                for topic in topics:
                    admin.create_topic(topic, 1)
                admin.create_topic(WIDE, rest)
                row = step.row(f"{len(topics)} topics made one by one, {wal}")
                row.aim = None
                report.add(row)
            with Producer(node.server) as producer:
                step = Step(node)
                for topic in topics:
                    producer.send(topic, b"first")
                producer.flush(120)
                report.add(step.row(f"first record to each of {len(topics)} topics, {wal}"))
                for partition in range(rest):
                    producer.send(WIDE, b"first", partition=partition)
                producer.flush(120)
            node.wait_until_idle()
        seconds, cpu_s = stopping
        case = f"clean stop of {len(topics) + rest} open partitions, {wal}"
        report.add(_row(case, seconds, {"node_cpu_s": cpu_s}))
        with running_node(data, wal=wal) as node:
            step = Step(node)
            with Consumer(node.server, auto_offset_reset="earliest") as consumer:
                consumer.assign([(topic, 0) for topic in topics])
                found = 0
                while found < len(topics):
                    found += len(consumer.poll(10))
            report.add(step.row(f"{len(topics)} topics consumed after a restart, {wal}"))


@contextmanager
def _timed_stop(data: Path, wal: str, stopping: list[float]) -> Iterator[RunningNode]:
    """Adds seconds and CPU seconds from SIGTERM to the end to `stopping`."""
    with running_node(data, wal=wal) as node:
        yield node
        process = node.process
        began, before = time.perf_counter(), sum(process.cpu_times()[:2])
        process.terminate()
        cpu_s = before
        while process.is_running() and process.status() != "zombie":
            cpu_s = max(cpu_s, sum(process.cpu_times()[:2]))
            time.sleep(0.01)
        stopping += [time.perf_counter() - began, cpu_s - before]
