"""Topics of both kinds and Kafka's, under the same librdkafka, in turns: what local files give."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from statistics import median

from benchmarks.kafka import librdkafka, neighbours
from benchmarks.kafka.bench import Bench
from benchmarks.kafka.clients import (
    BATCHES,
    CATCH_UP_BYTES,
    PLAIN,
    SETTINGS,
    TOTAL_BYTES,
    attempt_cases,
    by,
    in_turns,
    label_of,
    of_bare,
)
from benchmarks.kafka.librdkafka import Figures
from benchmarks.kafka.servers import BARE, FSYNCED, KAFKA, NODE, PARTITIONS, Server
from benchmarks.report import Row

UNIFIED, LAZY = "unified", "lazy unified"
DURABLE_SETTINGS = {"log.type": "unified"}
LAZY_SETTINGS = {**DURABLE_SETTINGS, "flush.ms": "1000"}
"""Acknowledged out of the page cache, as Kafka's."""
AIMED = "128 KiB"
CASES = (AIMED, "default")
AIMED_BYTES = 1024


def run(bench: Bench) -> None:
    if not librdkafka.is_there():
        bench.report.note("librdkafka is left out: confluent-kafka is not installed")
        return
    servers = servers_of(bench)
    attempt_cases(bench, "kinds", CASES, partial(_case, servers))
    attempt_cases(bench, "kinds", (AIMED + PLAIN,), partial(_case, servers), (AIMED_BYTES,))
    bench.attempt("kinds", "catch-up", lambda: _catch_up(bench, servers))
    beside = {
        "shared": (servers[NODE], "beside unified"),
        UNIFIED: (servers[UNIFIED], "beside shared"),
    }
    bench.attempt("kinds", "neighbours", lambda: neighbours.run(bench, beside))


def servers_of(bench: Bench) -> dict[str, Server]:
    """The node with topics of each kind, then the others."""
    node = bench.servers[NODE]
    kinds = {
        UNIFIED: replace(node, name=UNIFIED, topic_settings=DURABLE_SETTINGS, kept=[]),
        LAZY: replace(node, name=LAZY, topic_settings=LAZY_SETTINGS, kept=[]),
        NODE: node,
    }
    others = (BARE, KAFKA, FSYNCED)
    return kinds | {name: bench.servers[name] for name in others if name in bench.servers}


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
    bench.meet(f"unified durable{client}", by(rates, UNIFIED, FSYNCED), of_bare(rates))
    bench.meet(f"unified lazy{client}", by(rates, LAZY, KAFKA))


def _catch_up(bench: Bench, servers: Mapping[str, Server]) -> None:
    """Reading a topic from its beginning, right after it was written."""
    total = int(CATCH_UP_BYTES * bench.scale)
    chosen = {name: one for name, one in servers.items() if name not in (BARE, LAZY, FSYNCED)}
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
