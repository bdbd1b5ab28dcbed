"""1: produce through gRPC, 1 KiB records, 4 partitions, idempotent, durable acks, both modes.

The floor is the lower of two measured in the same run: a bare gRPC stream of the same messages,
and a plain file synced at the same group size, divided by what the mode writes per byte appended.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import psutil

from benchmarks.floors import UNLIMITED, BareServer, SyncedFile
from benchmarks.node import RunningNode, running_node
from benchmarks.report import Report, Row, percentile
from streamlog.client import Admin, Producer
from streamlog.codec.batch import Producer as ProducerState
from streamlog.codec.batch import with_producer
from streamlog.codec.records import encode_values
from streamlog.v1 import log_pb2, log_pb2_grpc

RECORD_BYTES = 1024
PARTITIONS = 4
WINDOW = 8
WAL_BYTES_MAX = 64 << 20
WRITTEN_PER_BYTE = {"disk": 2.0, "object": 1.0}
SETTINGS = {"engine.wal.wal_bytes_max": str(WAL_BYTES_MAX)}


def run(report: Report, folder: Path, *, scale: float) -> None:
    """`scale` 1 writes ten times the WAL bound per case."""
    total = int(10 * WAL_BYTES_MAX * scale)
    values = _values(1 << 20)
    with BareServer() as bare:
        file = SyncedFile(folder)
        floors = {}
        for size in (1 << 20, 128 << 10):
            floors[size] = bare.produce_mb_s(size, total), file.mb_s(4 << 20, total)
        file.close()
    for wal in ("disk", "object"):
        for size in (1 << 20, 128 << 10):
            floor, name = _lower(floors[size], wal)
            label = f"{size >> 10} KiB"
            with running_node(folder / f"{wal}{size}", wal=wal, settings=SETTINGS) as node:
                aim = 0.9 if size == 1 << 20 else 0.65
                figure, facts = _encoded(node, size, total)
                report.add(
                    Row("produce", f"{wal}, encoded, {label}", figure, "MB/s", floor, name, aim)
                )
                report.rows[-1].facts = facts
                for method, aim in (("send_many", 0.5), ("send", 0.35)):
                    figure, facts = _with_client(node, method, values, size, total // 4)
                    report.add(
                        Row(
                            "produce",
                            f"{wal}, {method}(), {label}",
                            figure,
                            "MB/s",
                            floor,
                            name,
                            aim,
                        )
                    )
                    report.rows[-1].facts = facts
                p50, p99, rate = _at_half_load(node, values, size)
                report.add(
                    Row(
                        "produce", f"{wal}, ack at half load, {label}", p50, "ms p50",
                        facts={"p99_ms": p99, "mb_s": rate},
                    )
                )  # fmt: skip


def _lower(floors: tuple[float, float], wal: str) -> tuple[float, str]:
    grpc_floor, disk_floor = floors[0], floors[1] / WRITTEN_PER_BYTE[wal]
    if grpc_floor <= disk_floor:
        return grpc_floor, "gRPC"
    return disk_floor, "disk"


def _values(total_bytes: int) -> list[bytes]:
    """Records of 1 KiB that differ and compress a little, as log lines do."""
    lines = []
    for number in range(total_bytes // RECORD_BYTES):
        head = b"2026-11-21T10:%02d:%02d INFO worker-%d handled request %d " % (
            number % 60, number % 59, number % 7, number * 7919,
        )  # fmt: skip
        lines.append((head * 20)[:RECORD_BYTES])
    return lines


def _encoded(node: RunningNode, size: int, total: int) -> tuple[float, dict[str, Any]]:
    """Batches encoded beforehand, sent as ordinary generated messages over one stream."""
    topic = f"encoded-{size}-{time.monotonic_ns()}"
    with Admin(node.server) as admin:
        admin.create_topic(topic, PARTITIONS)
    channel = grpc.insecure_channel(node.server, options=UNLIMITED)
    stub = log_pb2_grpc.LogServiceStub(channel)
    producer = stub.InitProducerId(log_pb2.InitProducerIdRequest())
    count = (size - 2048) // (RECORD_BYTES + 16)
    template = encode_values(_values(count * RECORD_BYTES), timestamp_ms=1_700_000_000_000)
    messages = total // size
    batches = []
    for number in range(messages):
        sequence = number // PARTITIONS * template.record_count
        state = ProducerState(producer.producer_id, producer.producer_epoch, sequence)
        batches.append(bytes(with_producer(template.data, state)))
    room = threading.Semaphore(WINDOW)
    sent_at: dict[int, float] = {}
    latencies: list[float] = []

    def requests() -> Iterator[log_pb2.ProduceStreamRequest]:
        for number, data in enumerate(batches):
            room.acquire()
            partition = log_pb2.ProducePartition(partition=number % PARTITIONS, record_batches=data)
            request = log_pb2.ProduceRequest(
                topics=[log_pb2.ProduceTopic(topic=topic, partitions=[partition])]
            )
            sent_at[number] = time.perf_counter()
            yield log_pb2.ProduceStreamRequest(correlation_id=number, request=request)

    cpu_before, own_before = node.cpu_s(), sum(psutil.Process().cpu_times()[:2])
    began = time.perf_counter()
    for message in stub.ProduceStream(requests()):
        now = time.perf_counter()
        for answer in message.answers:
            room.release()
            latencies.append((now - sent_at.pop(answer.correlation_id)) * 1e3)
            result = answer.response.topics[0].partitions[0]
            if result.HasField("error") or answer.HasField("error"):
                raise RuntimeError(f"refused: {answer}")
    elapsed = time.perf_counter() - began
    stored = sum(len(batch) for batch in batches)
    gib = stored / (1 << 30)
    facts = {
        "p50_ms": percentile(latencies, 0.5),
        "p99_ms": percentile(latencies, 0.99),
        "server_cpu_s_per_gib": (node.cpu_s() - cpu_before) / gib,
        "client_cpu_s_per_gib": (sum(psutil.Process().cpu_times()[:2]) - own_before) / gib,
        "rss_mb": node.rss_bytes() / 1e6,
    }
    channel.close()
    return stored / elapsed / 1e6, facts


def _with_client(
    node: RunningNode, method: str, values: list[bytes], size: int, total: int
) -> tuple[float, dict[str, Any]]:
    """The client's own encoding, one producer, every result looked at."""
    topic = f"{method.replace('_', '-')}-{size}"
    with Admin(node.server) as admin:
        admin.create_topic(topic, PARTITIONS)
    rounds = max(1, total // (len(values) * RECORD_BYTES))
    cpu_before, own_before = node.cpu_s(), sum(psutil.Process().cpu_times()[:2])
    with Producer(node.server, batch_size_bytes=size, batch_size_max_bytes=size) as producer:
        began = time.perf_counter()
        if method == "send":
            views = []
            for _ in range(rounds):
                views.extend([producer.send(topic, value) for value in values])
            producer.flush()
            last = views[-1].result().offset
        else:
            sent = [producer.send_many(topic, values) for _ in range(rounds)]
            producer.flush()
            last = sent[-1].result()
        elapsed = time.perf_counter() - began
    assert last is not None
    stored = rounds * len(values) * RECORD_BYTES
    gib = stored / (1 << 30)
    facts = {
        "server_cpu_s_per_gib": (node.cpu_s() - cpu_before) / gib,
        "client_cpu_s_per_gib": (sum(psutil.Process().cpu_times()[:2]) - own_before) / gib,
    }
    return stored / elapsed / 1e6, facts


def _at_half_load(
    node: RunningNode, values: list[bytes], size: int, seconds: float = 4.0
) -> tuple[float, float, float]:
    """Ack p50 and p99 (ms) of send_many at about half of the full rate."""
    topic = f"half-{size}"
    with Admin(node.server) as admin:
        admin.create_topic(topic, PARTITIONS)
    piece = values[: max(1, size // (RECORD_BYTES + 16) - 2)]
    latencies: list[float] = []
    with Producer(node.server, batch_size_bytes=size, batch_size_max_bytes=size) as producer:
        began = time.perf_counter()
        for _ in range(20):
            producer.send_many(topic, piece).result()
        full_s = (time.perf_counter() - began) / 20
        began = following = time.perf_counter()
        sent = 0
        while (now := time.perf_counter()) - began < seconds:
            if now < following:
                time.sleep(following - now)
            following += 2 * full_s
            at = time.perf_counter()
            view = producer.send_many(topic, piece)
            view.add_done_callback(
                lambda _view, at=at: latencies.append((time.perf_counter() - at) * 1e3)
            )
            sent += len(piece) * RECORD_BYTES
        producer.flush()
        elapsed = time.perf_counter() - began
    return percentile(latencies, 0.5), percentile(latencies, 0.99), sent / elapsed / 1e6
