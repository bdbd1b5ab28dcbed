"""Record batches encoded beforehand, over Kafka's protocol and over gRPC, beside the bare server.

Each round sends the same bytes with the same window to each server in turn, when that server is
idle. The ratio of CPU seconds is what a busy machine leaves comparable.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from benchmarks.kafka.servers import BARE, NODE, PARTITIONS, Server
from benchmarks.kafka.wire import KafkaConnection, produce_frame
from benchmarks.node import own_cpu_s
from benchmarks.produce import GIB, RECORD_BYTES, EncodedLoad, example_values
from benchmarks.report import Measured, Report, Row, percentile
from benchmarks.streaming import window
from streamlog.codec.batch import Producer as ProducerState
from streamlog.codec.batch import with_producer
from streamlog.codec.records import encode_values

ROUNDS = 5
SIZES = {1 << 20: 512 << 20, 128 << 10: 256 << 20, 16 << 10: 64 << 20}
"""Bytes of a batch, and of a round at scale 1."""
CPU_AIMS = {1 << 20: 0.8, 128 << 10: 0.6, 16 << 10: 0.4}
"""Server CPU through Kafka's protocol by that through gRPC."""
BARE_AIM = {1 << 20: 0.85}
SMALL_BYTES = 1 << 10
SMALL_WINDOW = 64
SMALL_AIM = 15_000
SMALL_REQUESTS = 40_000
HALF_LOAD_S = 4.0


def run(report: Report, servers: Mapping[str, Server], scale: float) -> None:
    for size, total in SIZES.items():
        _size(report, servers, size, int(total * scale))
    _small(report, servers, max(1000, int(SMALL_REQUESTS * scale)))


def frames_of(connection: KafkaConnection, topic: str, size: int, total: int) -> list[bytes]:
    """Idempotent produce requests, one batch each, over the topic's partitions in turn."""
    producer_id, epoch = connection.new_producer()
    record = min(RECORD_BYTES, size - 100)
    values = example_values(max(RECORD_BYTES, size))
    count = max(1, (size - 2048) // (RECORD_BYTES + 16))
    template = encode_values(
        [value[:record] for value in values[:count]], timestamp_ms=int(time.time() * 1000)
    )
    frames = []
    for number in range(max(PARTITIONS, total // size)):
        sequence = number // PARTITIONS * template.record_count
        state = ProducerState(producer_id, epoch, sequence)
        batch = bytes(with_producer(template.data, state))
        frames.append(produce_frame(topic, number % PARTITIONS, batch, number))
    return frames


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


def _size(report: Report, servers: Mapping[str, Server], size: int, total: int) -> None:
    label = f"{size >> 10} KiB"
    bare, node = servers[BARE], servers[NODE]
    assert node.node is not None
    grpc = EncodedLoad(node.node)
    measured = {name: Measured() for name in ("bare", "kafka", "gRPC")}
    cpu_ratios: list[float] = []
    for server in (bare, node):
        send(server, size, total // 8, window(size))
    for number in range(ROUNDS):
        floor, floor_facts = send(bare, size, total, window(size))
        mb_s, facts = send(node, size, total, window(size))
        node.wait_until_idle()
        batches = grpc.batches(f"grpc-{size}-{number}", size, total)
        node.wait_until_idle()
        grpc_mb_s, grpc_facts = grpc.send(batches, size)
        measured["bare"].add(floor, floor, floor_facts)
        measured["kafka"].add(mb_s, floor, facts)
        measured["gRPC"].add(grpc_mb_s, floor, grpc_facts)
        cpu_ratios.append(grpc_facts["server_cpu_s_per_gib"] / facts["server_cpu_s_per_gib"])
    report.add(measured["bare"].row("encoded", f"bare server, {label}", 1.0, "", None))
    floor = sorted(measured["bare"].mb_s)[ROUNDS // 2]
    for name in ("kafka", "gRPC"):
        aim = BARE_AIM.get(size) if name == "kafka" else None
        report.add(measured[name].row("encoded", f"node, {name}, {label}", floor, "bare", aim))
    cpu = Row(
        "encoded", f"node, server CPU, kafka by gRPC, {label}",
        sorted(measured["kafka"].facts["server_cpu_s_per_gib"])[ROUNDS // 2], "s/GiB",
        sorted(measured["gRPC"].facts["server_cpu_s_per_gib"])[ROUNDS // 2], "gRPC",
        1 / CPU_AIMS[size], less_is_better=True,
    )  # fmt: skip
    cpu.ratios = cpu_ratios
    report.add(cpu)
    _half_load(report, servers, size, sorted(measured["kafka"].mb_s)[ROUNDS // 2] / 2)


def _half_load(report: Report, servers: Mapping[str, Server], size: int, mb_s: float) -> None:
    """Acks of every server at half of what this node takes: the same rate for all."""
    for server in servers.values():
        topic = server.new_topic(f"half-{size}")
        with KafkaConnection(server.address) as connection:
            frames = frames_of(connection, topic, size, int(mb_s * 1e6 * HALF_LOAD_S))
            server.wait_until_idle()
            latencies = connection.blast(frames, window(size), len(frames[0]) / (mb_s * 1e6))
        row = Row(
            "encoded", f"{server.name}, ack at half load, {size >> 10} KiB",
            percentile(latencies, 0.5), "ms p50",
        )  # fmt: skip
        row.facts = {
            "p99_ms": percentile(latencies, 0.99),
            "mb_s": mb_s,
            "rss_mb": server.rss_bytes() / 1e6,
        }
        report.add(row)


def _small(report: Report, servers: Mapping[str, Server], requests: int) -> None:
    """Requests of one batch of 1 KiB, pipelined."""
    for server in (servers[BARE], servers[NODE]):
        found = [
            send(server, SMALL_BYTES, requests * SMALL_BYTES, SMALL_WINDOW)[1]
            for _ in range(ROUNDS)
        ]
        found.sort(key=lambda facts: facts["requests_s"])
        middle = found[ROUNDS // 2]
        aim = SMALL_AIM if server.name == NODE else None
        row = Row("encoded", f"{server.name}, 1 KiB a request", middle["requests_s"], "1/s")
        row.aim, row.facts = aim, middle
        report.add(row)
