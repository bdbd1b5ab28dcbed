"""The same librdkafka producer and consumer against each server, in turns."""

from __future__ import annotations

import time
from collections.abc import Mapping
from statistics import median

from benchmarks.kafka import librdkafka
from benchmarks.kafka.servers import BARE, FSYNCED, KAFKA, NODE, PARTITIONS, Server
from benchmarks.produce import GIB
from benchmarks.report import Report, Row

ROUNDS = 3
BATCHES = {
    "16 KiB": {"batch.size": "16384"},
    "128 KiB": {"batch.size": "131072", "linger.ms": "5"},
    "1 MiB": {"batch.size": "1000000", "linger.ms": "20"},
    "default": {},
}
TOTAL_BYTES = {100: 64 << 20, 1024: 256 << 20}
"""Bytes of a round at scale 1, by the size of a record."""
CATCH_UP_RECORD_BYTES = 1024
AIMS = {
    (KAFKA, "1 MiB"): 1.5,
    (BARE, "1 MiB"): 0.9,
    (FSYNCED, "default"): 8.0,
    (FSYNCED, "128 KiB"): 2.5,
}
"""Least MB/s of this node by that of another server, with records of 1 KiB. Of the first two one is
enough: where the client's own core is the limit, no server can be much faster than another."""


def run(report: Report, servers: Mapping[str, Server], scale: float) -> None:
    if not librdkafka.is_there():
        report.note("librdkafka is left out: confluent-kafka is not installed")
        return
    for record_bytes, total in TOTAL_BYTES.items():
        for name, settings in BATCHES.items():
            _produce(report, servers, record_bytes, name, settings, int(total * scale))
    _catch_up(report, servers, int(TOTAL_BYTES[CATCH_UP_RECORD_BYTES] * scale))


def _produce(
    report: Report,
    servers: Mapping[str, Server],
    record_bytes: int,
    batch: str,
    settings: Mapping[str, str],
    total: int,
) -> None:
    rates: dict[str, list[float]] = {name: [] for name in servers}
    facts: dict[str, list[dict[str, float]]] = {name: [] for name in servers}
    for _ in range(ROUNDS):
        for name, server in servers.items():
            topic = server.new_topic(f"rdkafka-{record_bytes}")
            server.wait_until_idle()
            # fsync after each request: a tenth of the bytes takes as long.
            size = total // 10 if name == FSYNCED else total
            cpu = server.cpu_s()
            done = librdkafka.produce(server.address, topic, record_bytes, size, settings)
            rates[name].append(done["bytes"] / done["seconds"] / 1e6)
            facts[name].append(
                {
                    "server_cpu_s_per_gib": (server.cpu_s() - cpu) / done["bytes"] * GIB,
                    "client_cpu_s_per_gib": done["cpu_s"] / done["bytes"] * GIB,
                    "records_s": done["records"] / done["seconds"],
                    "rss_mb": server.rss_bytes() / 1e6,
                }
            )
    label = f"{record_bytes} B, batches of {batch}"
    for name in servers:
        row = Row("librdkafka", f"{name}, {label}", median(rates[name]), "MB/s")
        row.facts = {fact: median(one[fact] for one in facts[name]) for fact in facts[name][0]}
        report.add(row)
    for name in servers:
        if name == NODE:
            continue
        aim = AIMS.get((name, batch)) if record_bytes == CATCH_UP_RECORD_BYTES else None
        row = Row(
            "librdkafka", f"node by {name}, {label}",
            median(rates[NODE]), "MB/s", median(rates[name]), name, aim,
        )  # fmt: skip
        row.ratios = [a / b for a, b in zip(rates[NODE], rates[name], strict=True)]
        report.add(row)


def _catch_up(report: Report, servers: Mapping[str, Server], total: int) -> None:
    """Reading a topic from its beginning, after it was written."""
    rates: dict[str, list[float]] = {}
    for name, server in servers.items():
        if name in (BARE, FSYNCED):
            continue
        topic = server.new_topic("catch-up")
        done = librdkafka.produce(
            server.address, topic, CATCH_UP_RECORD_BYTES, total, BATCHES["128 KiB"]
        )
        server.wait_until_idle()
        for _ in range(ROUNDS):
            cpu, began = server.cpu_s(), time.perf_counter()
            read = librdkafka.consume(server.address, topic, PARTITIONS, int(done["records"]))
            rates.setdefault(name, []).append(read["bytes"] / read["seconds"] / 1e6)
            row = Row("librdkafka", f"{name}, catch-up", rates[name][-1], "MB/s")
            row.facts = {
                "server_cpu_s_per_gib": (server.cpu_s() - cpu) / read["bytes"] * GIB,
                "client_cpu_s_per_gib": read["cpu_s"] / read["bytes"] * GIB,
                "with_start_s": time.perf_counter() - began,
            }
        report.add(row)
    if KAFKA in rates:
        row = Row(
            "librdkafka", "node by kafka, catch-up",
            median(rates[NODE]), "MB/s", median(rates[KAFKA]), KAFKA, 1.0,
        )  # fmt: skip
        report.add(row)
