"""Topics of both kinds and Kafka's, under the same librdkafka, in turns: what local files give."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from statistics import median

from benchmarks.kafka import librdkafka
from benchmarks.kafka.bench import Bench
from benchmarks.kafka.clients import (
    BATCHES,
    PLAIN,
    SETTINGS,
    TOTAL_BYTES,
    attempt_cases,
    by,
    in_turns,
    label_of,
)
from benchmarks.kafka.encoded import frames_of
from benchmarks.kafka.librdkafka import Figures
from benchmarks.kafka.neighbour import neighbour
from benchmarks.kafka.servers import FSYNCED, KAFKA, NODE, PARTITIONS, Server
from benchmarks.kafka.wire import KafkaConnection
from benchmarks.report import Row, percentile

UNIFIED, LAZY = "unified", "lazy unified"
DURABLE_SETTINGS = {"log.type": "unified"}
LAZY_SETTINGS = {**DURABLE_SETTINGS, "flush.ms": "1000"}
"""Acknowledged out of the page cache, as Kafka's."""
AIMED = "128 KiB"
CASES = (AIMED, "default")
AIMED_BYTES = 1024
NEIGHBOURS = {NODE: 16.0, UNIFIED: 32.0}
"""MB/s of a neighbour. A shared topic's bytes go to the disk twice, as WAL and as object."""
NEIGHBOUR_BYTES = 128 << 20
"""Of the topic that is measured, of a round at scale 1."""
NEIGHBOUR_BATCH = 128 << 10
NEIGHBOUR_UNANSWERED = 8
NEIGHBOUR_ROUNDS = 9
_KINDS = {NODE: "shared", UNIFIED: UNIFIED}
_FACTS = ("mb_s", "p50_ms", "server_cpu_percent", "neighbour_mb_s", "neighbour_p50_ms")


def run(bench: Bench) -> None:
    if not librdkafka.is_there():
        bench.report.note("librdkafka is left out: confluent-kafka is not installed")
        return
    servers = servers_of(bench)
    attempt_cases(bench, "kinds", CASES, partial(_case, servers))
    attempt_cases(bench, "kinds", (AIMED + PLAIN,), partial(_case, servers), (AIMED_BYTES,))
    bench.attempt("kinds", "catch-up", lambda: _catch_up(bench, servers))
    bench.attempt("kinds", "neighbours", lambda: _neighbours(bench, servers))


def servers_of(bench: Bench) -> dict[str, Server]:
    """The node with topics of each kind, then Kafka."""
    node = bench.servers[NODE]
    kinds = {
        UNIFIED: replace(node, name=UNIFIED, topic_settings=DURABLE_SETTINGS, kept=[]),
        LAZY: replace(node, name=LAZY, topic_settings=LAZY_SETTINGS, kept=[]),
        NODE: node,
    }
    return kinds | {name: bench.servers[name] for name in (KAFKA, FSYNCED) if name in bench.servers}


def _case(servers: Mapping[str, Server], bench: Bench, record_bytes: int, batch: str) -> None:
    def produce(server: Server, topic: str, size: int) -> Figures:
        return librdkafka.produce(server.address, topic, record_bytes, size, SETTINGS[batch])

    label = label_of(record_bytes, batch)
    total = int(TOTAL_BYTES[record_bytes] * bench.scale)
    subjects = (UNIFIED, LAZY)
    rates = in_turns(bench, "kinds", label, servers, total, produce, subjects=subjects)
    if record_bytes != AIMED_BYTES or not batch.startswith(AIMED) or KAFKA not in rates:
        return
    client = batch.removeprefix(AIMED)
    bench.meet(f"unified durable{client}", by(rates, UNIFIED, FSYNCED))
    bench.meet(f"unified lazy{client}", by(rates, LAZY, KAFKA))


def _neighbours(bench: Bench, servers: Mapping[str, Server]) -> None:
    """What a topic of one kind costs one of the other: more than one of its own kind would?

    The neighbour has a steady load, which puts the same bytes on the disk whatever its kind is. The
    measured topic gets as much as a client with few unanswered batches sends: what it waits for,
    neighbour included, decides, and not how much the disk takes. Both are batches encoded
    beforehand, so that the clients leave the cores to the node. What is compared is measured one
    after the other.
    """
    found: dict[tuple[str, str], list[Figures]] = {}
    pairs = [(of, beside) for of in NEIGHBOURS for beside in sorted(NEIGHBOURS, key=of.__ne__)]
    for number in bench.rounds(NEIGHBOUR_ROUNDS):
        for of, beside in pairs if number % 2 == 0 else reversed(pairs):
            done = _beside(servers[of], servers[beside], int(NEIGHBOUR_BYTES * bench.scale))
            found.setdefault((of, beside), []).append(done)
    for of, beside in pairs:
        figures = {fact: median(one[fact] for one in found[of, beside]) for fact in _FACTS}
        case = f"{_KINDS[of]} topic beside a {_KINDS[beside]} one"
        row = Row("kinds", case, figures.pop("mb_s"), "MB/s")
        row.facts = figures
        bench.report.add(row)
    for of, other, aim in ((NODE, UNIFIED, "beside unified"), (UNIFIED, NODE, "beside shared")):
        rounds = list(zip(found[of, other], found[of, of], strict=True))
        facts = {"p50_ms_by_own_kind": median(a["p50_ms"] / b["p50_ms"] for a, b in rounds)}
        bench.meet(aim, [a["mb_s"] / b["mb_s"] for a, b in rounds], facts)


def _beside(server: Server, other: Server, total: int) -> Figures:
    """Of the first server's topic; `neighbour_…`: of the other one's."""
    topic, others = server.new_topic("neighbours"), other.new_topic("neighbours")
    with KafkaConnection(server.address) as connection:
        frames = frames_of(connection, topic, NEIGHBOUR_BATCH, total)
        size = sum(map(len, frames))
        server.wait_until_idle()
        loading = neighbour(other.address, others, NEIGHBOUR_BATCH, NEIGHBOURS[other.name])
        with loading as loaded:
            cpu, began = server.cpu_s(), time.perf_counter()
            latencies = connection.blast(frames, NEIGHBOUR_UNANSWERED)
            seconds = time.perf_counter() - began
            cpu = server.cpu_s() - cpu
    return {
        "mb_s": size / seconds / 1e6,
        "p50_ms": percentile(latencies, 0.5),
        "server_cpu_percent": cpu / seconds * 100,
        "neighbour_mb_s": loaded["mb_s"],
        "neighbour_p50_ms": loaded["p50_ms"],
    }


def _catch_up(bench: Bench, servers: Mapping[str, Server]) -> None:
    """Reading a topic from its beginning, right after it was written."""
    total = int(TOTAL_BYTES[AIMED_BYTES] * bench.scale)
    chosen = {name: one for name, one in servers.items() if name not in (LAZY, FSYNCED)}
    topics: dict[str, tuple[str, int]] = {}
    for name, server in chosen.items():
        topic = server.new_topic("catch-up")
        done = librdkafka.produce(server.address, topic, AIMED_BYTES, total, BATCHES["128 KiB"])
        topics[name] = topic, int(done["records"])
    rates: dict[str, list[float]] = {name: [] for name in chosen}
    for _ in bench.rounds():
        for name, server in chosen.items():
            server.wait_until_idle()
            read = librdkafka.consume(server.address, topics[name][0], PARTITIONS, topics[name][1])
            rates[name].append(read["bytes"] / read["seconds"] / 1e6)
    for name, found in rates.items():
        bench.report.add(Row("kinds", f"{name}, catch-up", median(found), "MB/s"))
    by_shared = [a / b for a, b in zip(rates[UNIFIED], rates[NODE], strict=True)]
    bench.meet("unified catch-up", by_shared)
