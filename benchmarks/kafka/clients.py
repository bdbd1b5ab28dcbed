"""The same librdkafka producer and consumer against each server, in turns."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from statistics import median

from benchmarks.kafka import librdkafka
from benchmarks.kafka.bench import Bench
from benchmarks.kafka.librdkafka import Figures
from benchmarks.kafka.servers import BARE, FSYNCED, KAFKA, NODE, PARTITIONS, Server
from benchmarks.produce import GIB
from benchmarks.report import Row

BATCHES = {
    "16 KiB": {"batch.size": "16384"},
    "128 KiB": {"batch.size": "131072", "linger.ms": "5"},
    "1 MiB": {"batch.size": "1000000", "linger.ms": "20"},
    "default": {},
}
PLAIN = ", not idempotent"
"""What librdkafka is unless it is told otherwise. It leaves as many requests unanswered as it has,
where an idempotent one has one batch of a partition under way."""
PLAIN_BATCHES = {
    f"{name}{PLAIN}": {**settings, "enable.idempotence": "false"}
    for name, settings in BATCHES.items()
}
SETTINGS = BATCHES | PLAIN_BATCHES
TOTAL_BYTES = {100: 64 << 20, 1024: 256 << 20}
"""Bytes of a round at scale 1, by the size of a record."""
CATCH_UP_BYTES = 512 << 20
"""Read in a second, at scale 1."""
CATCH_UP_ROUNDS = 9
"""Both are as fast as the client is: three rounds could not tell them apart."""
FSYNCED_PART = 4
"""Of the bytes, for the server that syncs after each request and takes longer for them. Less would
be a run of a third of a second, where its start counts."""
AIMED_BYTES = 1024
"""The records that the aims are about."""
BY_BARE = 0.9
"""Of the bare server's: enough where the client's own core is the limit."""

Rates = dict[str, list[float]]
"""MB/s in each round, by the server's name."""
Produce = Callable[[Server, str, int], Figures]
"""(server, topic, bytes)"""
Case = Callable[[Bench, int, str], None]
"""(bench, bytes of a record, name of the batches)"""


def run(bench: Bench) -> None:
    if not librdkafka.is_there():
        bench.report.note("librdkafka is left out: confluent-kafka is not installed")
        return
    attempt_cases(bench, "librdkafka", BATCHES, _case)
    attempt_cases(bench, "librdkafka", PLAIN_BATCHES, _case, (AIMED_BYTES,))
    bench.attempt("librdkafka", "catch-up", lambda: _catch_up(bench))


def attempt_cases(
    bench: Bench,
    group: str,
    batches: Iterable[str],
    case: Case,
    sizes: Iterable[int] = tuple(TOTAL_BYTES),
) -> None:
    """Each size of records in each kind of batches."""
    for record_bytes in sizes:
        for batch in batches:
            work = partial(case, bench, record_bytes, batch)
            bench.attempt(group, label_of(record_bytes, batch), work)


def label_of(record_bytes: int, batch: str) -> str:
    return f"{record_bytes} B, batches of {batch}"


def _case(bench: Bench, record_bytes: int, batch: str) -> None:
    def produce(server: Server, topic: str, size: int) -> Figures:
        return librdkafka.produce(server.address, topic, record_bytes, size, SETTINGS[batch])

    label = label_of(record_bytes, batch)
    total = int(TOTAL_BYTES[record_bytes] * bench.scale)
    rates = in_turns(bench, "librdkafka", label, bench.servers, total, produce)
    if record_bytes != AIMED_BYTES:
        return
    if batch.startswith("1 MiB") and KAFKA in rates:
        by_kafka, by_bare = by(rates, NODE, KAFKA), median(by(rates, NODE, BARE))
        is_reached = median(by_kafka) >= 1.5 or by_bare >= BY_BARE
        name = f"durable{batch.removeprefix('1 MiB')}"
        bench.meet(name, by_kafka, {"by_bare": by_bare}, is_reached=is_reached)
    elif FSYNCED in rates:
        bench.meet(f"fsynced {batch}", by(rates, NODE, FSYNCED), of_bare(rates))


def in_turns(
    bench: Bench,
    group: str,
    label: str,
    servers: Mapping[str, Server],
    total: int,
    produce: Produce,
    *,
    subjects: Sequence[str] = (NODE,),
) -> Rates:
    """A row for each server, and one for each subject by each of the others; once for a pair."""
    rates: Rates = {name: [] for name in servers}
    facts: dict[str, list[Figures]] = {name: [] for name in servers}
    for _ in bench.rounds():
        for name, server in servers.items():
            topic = server.new_topic(group)
            server.wait_until_idle()
            size = total // FSYNCED_PART if name == FSYNCED else total
            cpu = server.cpu_s()
            done = produce(server, topic, size)
            rates[name].append(done["bytes"] / done["seconds"] / 1e6)
            facts[name].append(
                {
                    "server_cpu_s_per_gib": (server.cpu_s() - cpu) / done["bytes"] * GIB,
                    "client_cpu_s_per_gib": done["cpu_s"] / done["bytes"] * GIB,
                    "records_s": done["records"] / done["seconds"],
                    "rss_mb": server.rss_bytes() / 1e6,
                    **{
                        fact: value
                        for fact, value in done.items()
                        if fact.endswith(("_ms", "_per_mib"))
                    },
                }
            )
    for name in servers:
        row = Row(group, f"{name}, {label}", median(rates[name]), "MB/s")
        row.facts = {fact: median(one[fact] for one in facts[name]) for fact in facts[name][0]}
        bench.report.add(row)
    for number, subject in enumerate(subjects):
        for name in servers:
            if name in subjects[: number + 1]:
                continue
            row = Row(group, f"{subject} by {name}, {label}", median(rates[subject]), "MB/s")
            row.floor, row.floor_name = median(rates[name]), name
            row.ratios = by(rates, subject, name)
            bench.report.add(row)
    return rates


def by(rates: Rates, subject: str, other: str) -> list[float]:
    """The subject's MB/s by the other's, in each round."""
    return [a / b for a, b in zip(rates[subject], rates[other], strict=True)]


def of_bare(rates: Rates) -> dict[str, float]:
    """What this client, disk and machine let a server have that only syncs: an aim above it is out
    of anybody's reach."""
    return {"bare_by_fsynced_kafka": median(by(rates, BARE, FSYNCED))}


def _catch_up(bench: Bench) -> None:
    """Reading a topic from its beginning, after it was written; in turns."""
    total = int(CATCH_UP_BYTES * bench.scale)
    servers = [one for name, one in bench.servers.items() if name not in (BARE, FSYNCED)]
    topics: dict[str, tuple[str, int]] = {}
    for server in servers:
        topic = server.new_topic("catch-up")
        settings = BATCHES["128 KiB"]
        done = librdkafka.produce(server.address, topic, AIMED_BYTES, total, settings)
        topics[server.name] = topic, int(done["records"])
    rows = {one.name: Row("librdkafka", f"{one.name}, catch-up", 0.0, "MB/s") for one in servers}
    rates: Rates = {one.name: [] for one in servers}
    for number in bench.rounds(CATCH_UP_ROUNDS):
        for server in servers if number % 2 == 0 else reversed(servers):
            server.wait_until_idle()
            cpu, began = server.cpu_s(), time.perf_counter()
            topic, records = topics[server.name]
            read = librdkafka.consume(server.address, topic, PARTITIONS, records)
            rates[server.name].append(read["bytes"] / read["seconds"] / 1e6)
            rows[server.name].facts = {
                "server_cpu_s_per_gib": (server.cpu_s() - cpu) / read["bytes"] * GIB,
                "client_cpu_s_per_gib": read["cpu_s"] / read["bytes"] * GIB,
                "with_start_s": time.perf_counter() - began,
            }
    for name, row in rows.items():
        row.value = median(rates[name])
        bench.report.add(row)
    if KAFKA in rates:
        bench.meet("catch-up", by(rates, NODE, KAFKA))
