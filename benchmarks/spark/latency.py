"""The floor of a micro-batch: a trickle into a topic, a query into nothing, ms a trigger.

Batches without a row are not counted. The query starts its next trigger at once.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from aiokafka import AIOKafkaProducer

from benchmarks.report import Row, percentile
from benchmarks.spark.world import World
from streamlog.client import Producer

BATCHES = 40
"""Batches at scale 1; half as many come first, to warm up."""
BATCHES_MIN = 20
BATCHES_KEPT = 100
"""Batches of a query's progress that Spark keeps."""
RECORDS_PER_S = 50
TIMEOUT_S = 300.0
NAME = "latency"


def run(world: World) -> None:
    topic = "trickle"
    world.make_topic(topic)
    rate = world.spark.readStream.format("rate").option("rowsPerSecond", str(RECORDS_PER_S))
    _case(world, "rate source", rate, None)
    floor = world.report.rows[-1].value
    kafka: float | None = None
    with ExitStack() as stack:
        if world.kafka is not None:
            stack.enter_context(_trickle(lambda: _to_kafka(world, topic)))
            source = world.spark.readStream.format("kafka").option("subscribe", topic)
            source = source.option("kafka.bootstrap.servers", world.kafka.server)
            _case(world, "Kafka source", source, floor)
            kafka = world.report.rows[-1].value
    with _trickle(lambda: _to_node(world, topic)):
        for mode in ("service", "store"):
            source = world.spark.readStream.format("streamlog").option("subscribe", topic)
            source = source.option("server", world.node.server).option("readMode", mode)
            _case(world, mode, source, floor, kafka)


def _case(
    world: World, label: str, source: Any, rate: float | None, kafka: float | None = None
) -> None:
    wanted = max(BATCHES_MIN, int(BATCHES * world.scale))
    check = world.folder / f"check-{label.replace(' ', '-')}"
    writer = source.load().writeStream.format("noop").option("checkpointLocation", str(check))
    query = writer.start()
    try:
        found = _progress(query, wanted // 2 + wanted)[wanted // 2 :]
    finally:
        query.stop()
    times = [one["durationMs"]["triggerExecution"] for one in found]
    row = Row(NAME, f"trigger: {label}", percentile(times, 0.5), "ms p50", less_is_better=True)
    row.facts = {"p99": percentile(times, 0.99), "batches": len(times)}
    for part in ("latestOffset", "queryPlanning", "addBatch", "walCommit", "commitOffsets"):
        row.facts[part] = percentile([one["durationMs"].get(part, 0) for one in found], 0.5)
    if kafka is not None:
        row.floor, row.floor_name = kafka, "Kafka source"
    if rate is not None:
        row.facts["rate_source_ms"] = rate
    world.report.add(row)


def _progress(query: Any, count: int) -> list[Any]:
    """Of the first `count` batches that had rows."""
    found: dict[int, Any] = {}
    give_up_at = time.monotonic() + TIMEOUT_S
    while len(found) < count:
        if not query.isActive or time.monotonic() > give_up_at:
            raise AssertionError(f"{len(found)} of {count} batches came: {query.exception()}")
        time.sleep(0.5)
        for one in query.recentProgress[-BATCHES_KEPT:]:
            if one["numInputRows"] > 0:
                found[one["batchId"]] = one
    return [found[batch] for batch in sorted(found)][:count]


@contextmanager
def _trickle(opened: Callable[[], Any]) -> Iterator[None]:
    """Calls what `opened` enters, RECORDS_PER_S times a second, in a thread."""
    ended, failed = threading.Event(), []

    def work() -> None:
        try:
            with opened() as send:
                while not ended.wait(1 / RECORDS_PER_S):
                    send()
        except Exception as error:  # noqa: BLE001 - raised below
            failed.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
    if failed:
        raise failed[0]


@contextmanager
def _to_node(world: World, topic: str) -> Iterator[Callable[[], object]]:
    with Producer(world.node.server) as producer:
        yield lambda: producer.send(topic, b"one of a trickle").result()


@contextmanager
def _to_kafka(world: World, topic: str) -> Iterator[Callable[[], object]]:
    assert world.kafka is not None
    server = world.kafka.server

    async def started() -> AIOKafkaProducer:
        made = AIOKafkaProducer(bootstrap_servers=server, acks="all")
        await made.start()
        return made

    with asyncio.Runner() as runner:
        producer = runner.run(started())
        try:
            yield lambda: runner.run(producer.send_and_wait(topic, b"one of a trickle"))
        finally:
            runner.run(producer.stop())
