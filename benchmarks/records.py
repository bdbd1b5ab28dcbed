"""100-byte records, one client process, results observable: records a second."""

from __future__ import annotations

import time
from pathlib import Path

from benchmarks.node import RunningNode, running_node
from benchmarks.report import Report, Row
from streamlog.client import Admin, Consumer, Producer

RECORD_BYTES = 100


def run(report: Report, folder: Path, *, scale: float) -> None:
    """`scale` 1 sends two million records per case."""
    count = int(2_000_000 * scale)
    values = [b"%099d\n" % number for number in range(100_000)]
    keys = [b"key-%d" % number for number in range(100_000)]
    with running_node(folder / "records", wal="disk") as node:
        for name, aim, keyed in (("send", 500_000.0, False), ("send keyed", 300_000.0, True)):
            figure = _send(node, name, values, keys if keyed else None, count)
            report.add(Row("records", f"{name}() with results", figure, "records/s", aim=aim))
        figure = _send_many(node, values, count)
        report.add(Row("records", "send_many()", figure, "records/s", aim=1_500_000.0))
        figure = _iterate(node, count)
        report.add(Row("records", "consumer iteration", figure, "records/s", aim=300_000.0))
        figure = _poll_batches(node, count)
        report.add(Row("records", "poll_batches()", figure, "records/s", aim=1_000_000.0))


def _topic(node: RunningNode, name: str) -> str:
    with Admin(node.server) as admin:
        admin.create_topic(name, 4)
    return name


def _send(
    node: RunningNode, name: str, values: list[bytes], keys: list[bytes] | None, count: int
) -> float:
    topic = _topic(node, name.replace(" ", "-"))
    rounds = max(1, count // len(values))
    with Producer(node.server) as producer:
        lasts = []
        began = time.perf_counter()
        for _ in range(rounds):
            if keys is None:
                views = [producer.send(topic, value) for value in values]
            else:
                pairs = zip(values, keys, strict=True)
                views = [producer.send(topic, value, key=key) for value, key in pairs]
            # An application checks results as it goes, and does not keep millions of them.
            lasts.append(views[-1])
        producer.flush()
        assert all(last.result().offset >= 0 for last in lasts)
        return rounds * len(values) / (time.perf_counter() - began)


def _send_many(node: RunningNode, values: list[bytes], count: int) -> float:
    topic = _topic(node, "many")
    rounds = max(1, count // len(values))
    with Producer(node.server) as producer:
        began = time.perf_counter()
        sent = [producer.send_many(topic, values) for _ in range(rounds)]
        producer.flush()
        for view in sent:
            view.result()
        return rounds * len(values) / (time.perf_counter() - began)


def _iterate(node: RunningNode, count: int) -> float:
    with Consumer(node.server, auto_offset_reset="earliest") as consumer:
        consumer.subscribe(["many"])
        began = time.perf_counter()
        seen = 0
        for record in consumer:
            assert record.value is not None
            seen += 1
            if seen >= count // 2:
                break
        return seen / (time.perf_counter() - began)


def _poll_batches(node: RunningNode, count: int) -> float:
    with Consumer(node.server, auto_offset_reset="earliest") as consumer:
        consumer.subscribe(["many"])
        began = time.perf_counter()
        seen = 0
        while seen < count * 3 // 4:
            for batch in consumer.poll_batches(1.0):
                seen += batch.record_count
        return seen / (time.perf_counter() - began)
