"""Record batches encoded beforehand, over Kafka's protocol and over gRPC, beside the bare server.

Each round sends the same bytes with the same window to each server in turn, when that server is
idle. The ratio of CPU seconds is what a busy machine leaves comparable.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count, islice
from statistics import median

from benchmarks.kafka.bench import Bench
from benchmarks.kafka.servers import BARE, FSYNCED, NODE, PARTITIONS, Server
from benchmarks.kafka.wire import KafkaConnection, produce_frame
from benchmarks.node import own_cpu_s
from benchmarks.produce import GIB, RECORD_BYTES, EncodedLoad, example_values
from benchmarks.report import Measured, Row, percentile
from benchmarks.streaming import window
from streamlog.codec.batch import BatchProducer as ProducerState
from streamlog.codec.batch import with_producer
from streamlog.codec.records import encode_values

GROUP = "encoded"
ROUNDS = 5
SIZES = {1 << 20: 512 << 20, 128 << 10: 256 << 20, 16 << 10: 64 << 20}
"""Bytes of a batch, and of a round at scale 1."""
LEAST_BYTES = 16 << 20
"""Of a round: a server's CPU time is known by the hundredth of a second."""
BARE_AIM = {1 << 20: 0.85}
SMALL_BYTES = 1 << 10
SMALL_WINDOW = 64
SMALL_REQUESTS = 40_000
HALF_LOAD_S = 4.0
HALF_LOAD_ROUNDS = 3
FSYNCED_BYTES = 16 << 20
"""Of a round that finds out what fsynced Kafka takes, at scale 1."""


def run(bench: Bench) -> dict[int, float]:
    """Half of the MB/s that the node takes, by the bytes of a batch."""
    loads: dict[int, float] = {}
    for size in SIZES:
        label = f"{size >> 10} KiB"
        bench.attempt("encoded", label, lambda size=size: loads.update(_size(bench, size)))  # type: ignore[misc]
    bench.attempt("encoded", "1 KiB a request", lambda: _small(bench))
    p99: list[float] = []
    for size, mb_s in loads.items():
        case = f"half load, {size >> 10} KiB"
        bench.attempt("encoded", case, lambda s=size, m=mb_s: _half_load(bench, s, m))  # type: ignore[misc]
        if FSYNCED in bench.servers:
            case = f"half load of {FSYNCED}, {size >> 10} KiB"
            bench.attempt("encoded", case, lambda s=size, m=mb_s: p99.extend(_acks(bench, s, m)))  # type: ignore[misc]
    if len(p99) == len(SIZES):
        bench.meet("p99", max(p99), {"least": min(p99)})
    return loads


def frames_of(connection: KafkaConnection, topic: str, size: int, total: int) -> list[bytes]:
    """Idempotent produce requests, one batch each, over the topic's partitions in turn."""
    return list(islice(endless_frames(connection, topic, size), max(PARTITIONS, total // size)))


def endless_frames(connection: KafkaConnection, topic: str, size: int) -> Iterator[bytes]:
    """As `frames_of`, made when they are asked for."""
    producer_id, epoch = connection.new_producer()
    record = min(RECORD_BYTES, size - 100)
    values = example_values(max(RECORD_BYTES, size))
    length = max(1, (size - 2048) // (RECORD_BYTES + 16))
    template = encode_values(
        [value[:record] for value in values[:length]], timestamp_ms=int(time.time() * 1000)
    )
    for number in count():
        sequence = number // PARTITIONS * template.record_count
        state = ProducerState(producer_id, epoch, sequence)
        batch = bytes(with_producer(template.data, state))
        yield produce_frame(topic, number % PARTITIONS, batch, number)


def send(
    server: Server, size: int, total: int, unanswered_max: int
) -> tuple[float, dict[str, float]]:
    """MB/s and the costs of `total` bytes through Kafka's protocol."""
    topic = server.new_topic(f"encoded-{size}")
    with KafkaConnection(server.address) as connection:
        frames = frames_of(connection, topic, size, total)
        server.wait_until_idle()
        sent = sum(map(len, frames))
        cpu, own, began = server.cpu_s(), own_cpu_s(), time.perf_counter()
        latencies = connection.blast(frames, unanswered_max)
        seconds = time.perf_counter() - began
        facts = {
            "p50_ms": percentile(latencies, 0.5),
            "p99_ms": percentile(latencies, 0.99),
            "server_cpu_s_per_gib": (server.cpu_s() - cpu) / sent * GIB,
            "client_cpu_s_per_gib": (own_cpu_s() - own) / sent * GIB,
            "requests_s": len(frames) / seconds,
            "rss_mb": server.rss_bytes() / 1e6,
        }
    return sent / seconds / 1e6, facts


def _size(bench: Bench, size: int) -> dict[int, float]:
    """The MB/s that are half of what the node takes."""
    label, total = f"{size >> 10} KiB", max(LEAST_BYTES, int(SIZES[size] * bench.scale))
    bare, node = bench.servers[BARE], bench.servers[NODE]
    assert node.node is not None
    grpc = EncodedLoad(node.node)
    measured = {name: Measured() for name in ("bare", "kafka", "gRPC")}
    cpu_ratios: list[float] = []
    for server in (bare, node):
        send(server, size, total // 8, window(size))
    for number in bench.rounds(ROUNDS):
        floor, floor_facts = send(bare, size, total, window(size))
        mb_s, facts = send(node, size, total, window(size))
        node.wait_until_idle()
        batches = grpc.batches(f"grpc-{size}-{number}", size, total)
        node.wait_until_idle()
        grpc_mb_s, grpc_facts = grpc.send(batches, size)
        measured["bare"].add(floor, floor, floor_facts)
        measured["kafka"].add(mb_s, floor, facts)
        measured["gRPC"].add(grpc_mb_s, floor, grpc_facts)
        cpu_ratios.append(facts["server_cpu_s_per_gib"] / grpc_facts["server_cpu_s_per_gib"])
    report = bench.report
    report.add(measured["bare"].row("encoded", f"bare server, {label}", 1.0, "", None))
    floor = median(measured["bare"].mb_s)
    for name in ("kafka", "gRPC"):
        aim = BARE_AIM.get(size) if name == "kafka" else None
        report.add(measured[name].row("encoded", f"node, {name}, {label}", floor, "bare", aim))
    bench.meet(f"cpu {label}", cpu_ratios)
    if size in BARE_AIM:
        bench.meet("bare", measured["kafka"].ratios)
    return {size: median(measured["kafka"].mb_s) / 2}


def _half_load(bench: Bench, size: int, mb_s: float) -> None:
    """Acks at half of what this node takes: the same rate for all servers but the one that could
    not keep up."""
    servers = [server for server in bench.servers.values() if server.name != FSYNCED]
    acks_at(bench, servers, size, mb_s, "half load")


def _acks(bench: Bench, size: int, mb_s: float) -> list[float]:
    """Acks at half of what fsynced Kafka takes. Returns the node's p99 by Kafka's."""
    fsynced, node = bench.servers[FSYNCED], bench.servers[NODE]
    half = min(mb_s, half_of(bench, fsynced, size))
    found = acks_at(bench, [node, fsynced], size, half, f"half load of {FSYNCED}")
    ratios = zip(found[NODE].p99_ms, found[FSYNCED].p99_ms, strict=True)
    return [median([ours / theirs for ours, theirs in ratios])]


def half_of(bench: Bench, fsynced: Server, size: int) -> float:
    """Of the MB/s that fsynced Kafka takes: a median, since a slow moment of the disk would make
    its own load a light one."""
    total = int(max(FSYNCED_BYTES, 48 * size) * bench.scale)
    return median(send(fsynced, size, total, window(size))[0] for _ in bench.rounds()) / 2


@dataclass
class Acks:
    """One server's, by round."""

    p50_ms: list[float] = field(default_factory=list)
    p99_ms: list[float] = field(default_factory=list)
    rss_mb: list[float] = field(default_factory=list)


def acks_at(
    bench: Bench,
    servers: Sequence[Server],
    size: int,
    mb_s: float,
    load: str,
    group: str = GROUP,
) -> dict[str, Acks]:
    """By server; they take turns, since a slow moment of the disk would be one server's alone."""
    found = {server.name: Acks() for server in servers}
    seconds = max(1.0, HALF_LOAD_S * min(1.0, bench.scale))
    for _ in bench.rounds(HALF_LOAD_ROUNDS):
        for server in servers:
            topic = server.new_topic(f"half-{size}")
            with KafkaConnection(server.address) as connection:
                frames = frames_of(connection, topic, size, int(mb_s * 1e6 * seconds))
                server.wait_until_idle()
                latencies = connection.blast(frames, window(size), len(frames[0]) / (mb_s * 1e6))
            acks = found[server.name]
            acks.p50_ms.append(percentile(latencies, 0.5))
            acks.p99_ms.append(percentile(latencies, 0.99))
            acks.rss_mb.append(server.rss_bytes() / 1e6)
    for name, acks in found.items():
        label = f"{name}, ack at {load}, {size >> 10} KiB"
        row = Row(group, label, median(acks.p50_ms), "ms p50")
        row.facts = {
            "p99_ms": median(acks.p99_ms),
            "p99_ms_least": min(acks.p99_ms),
            "p99_ms_most": max(acks.p99_ms),
            "mb_s": mb_s,
            "rss_mb": median(acks.rss_mb),
        }
        bench.report.add(row)
    return found


def _small(bench: Bench) -> None:
    """Requests of one batch of 1 KiB, pipelined."""
    requests = max(1000, int(SMALL_REQUESTS * bench.scale))
    for server in (bench.servers[BARE], bench.servers[NODE]):
        found = [
            send(server, SMALL_BYTES, requests * SMALL_BYTES, SMALL_WINDOW)[1]
            for _ in bench.rounds(ROUNDS)
        ]
        found.sort(key=lambda facts: facts["requests_s"])
        middle = found[len(found) // 2]
        row = Row("encoded", f"{server.name}, 1 KiB a request", middle["requests_s"], "1/s")
        row.facts = middle
        bench.report.add(row)
        if server.name == NODE:
            bench.meet("small", [facts["requests_s"] for facts in found])
