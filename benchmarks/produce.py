"""Produce through gRPC, 1 KiB records, 4 partitions, idempotent, durable acks, both modes.

Each round measures the bare gRPC stream, encoded batches, send_many() and send() one after another,
so that variations of the machine's speed affect all of them; the ratio is the median of the rounds'
ratios. Floor and measured run send the same bytes with the same window, and each starts when the
node is idle.

The floor is the lower of two, both shown: the bare stream, which stores nothing, and a plain file
that is written and synced in groups of the node's size, as often as the mode writes a byte: WAL and
object with wal=disk, only the object with wal=object.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from statistics import median

import grpc

from benchmarks.floors import UNLIMITED, BareServer, SyncedFile
from benchmarks.node import RunningNode, own_cpu_s, running_node
from benchmarks.report import Measured, Report, Row, percentile
from benchmarks.streaming import stream_batches, window
from streamlog.client import Admin, Producer, Tls
from streamlog.codec.batch import BatchProducer, with_producer
from streamlog.codec.records import encode_values
from streamlog.v1 import log_pb2, log_pb2_grpc

GIB = 1 << 30
RECORD_BYTES = 1024
PARTITIONS = 4
WAL_BYTES_MAX = 64 << 20
SETTINGS = {"engine.wal.wal_bytes_max": str(WAL_BYTES_MAX)}
ROUNDS = 5
AIMS = {"encoded, 1024 KiB": 0.9, "encoded, 128 KiB": 0.65, "send_many()": 0.5, "send()": 0.35}


def run(report: Report, folder: Path, *, scale: float) -> None:
    """`scale` 1 writes ten times the WAL bound in each round of encoded batches."""
    for wal in ("disk", "object"):
        for size in (1 << 20, 128 << 10):
            data = folder / f"{wal}{size}"
            _case(report, data, wal, size, scale)
            shutil.rmtree(data)


def _case(report: Report, folder: Path, wal: str, size: int, scale: float) -> None:
    total = int(10 * WAL_BYTES_MAX * scale)
    label = f"{size >> 10} KiB"
    values = example_values(1 << 20)
    encoded, many, single = Measured(), Measured(), Measured()
    bare_mb_s: list[float] = []
    disk_mb_s: list[float] = []
    floor_facts: dict[str, list[float]] = {}
    with BareServer() as bare, running_node(folder, wal=wal, settings=SETTINGS) as node:
        load = EncodedLoad(node)
        load.send(load.batches(f"warm-{size}", size, 32 << 20), size)
        bare.produce(load.batches(f"warm-bare-{size}", size, 32 << 20), window(size))
        file = SyncedFile(folder / "floor")
        for number in range(ROUNDS):
            batches = load.batches(f"encoded-{size}-{number}", size, total)
            node.wait_until_idle()
            grpc_floor, cpu_facts = bare.produce(batches, window(size))
            bare_mb_s.append(grpc_floor)
            for name, value in cpu_facts.items():
                floor_facts.setdefault(name, []).append(value)
            mb_s, facts = load.send(batches, size)
            node.wait_until_idle()
            written = node.written_groups(wal)
            # The seconds per byte add up over the times that a byte is written.
            disk_floor = 1 / sum(1 / file.mb_s(group, 64 << 20) for group in written)
            disk_mb_s.append(disk_floor)
            floor = min(grpc_floor, disk_floor)
            facts["group_kib"] = written[0] / 1024
            encoded.add(mb_s, floor, facts)
            for method, measured in (("send_many", many), ("send", single)):
                mb_s, facts = with_client(node, method, values, size, total // 2)
                measured.add(mb_s, floor, facts)
                node.wait_until_idle()
        file.close()
        floors = {"gRPC": median(bare_mb_s), "disk": median(disk_mb_s)}
        name = min(floors, key=lambda one: floors[one])
        for floor_name, value in floors.items():
            row = Row("produce", f"floor, {wal}, {floor_name}, {label}", value, "MB/s")
            if floor_name == "gRPC":
                row.facts = {fact: median(found) for fact, found in floor_facts.items()}
            else:
                row.facts = {"times_written": float(len(written))}
            report.add(row)
        for case, measured in (("encoded", encoded), ("send_many()", many), ("send()", single)):
            aim = AIMS.get(case) or AIMS[f"{case}, {label}"]
            case = f"{wal}, {case}, {label}"
            report.add(measured.row("produce", case, floors[name], name, aim))
        half = median(encoded.mb_s) / 2
        p50, p99, rate = load.paced(f"half-{size}", size, half, 4.0)
        report.add(
            Row(
                "produce", f"{wal}, ack at half load, {label}", p50, "ms p50",
                facts={"p99_ms": p99, "mb_s": rate, "window": float(window(size))},
            )
        )  # fmt: skip


def example_values(total_bytes: int) -> list[bytes]:
    """Records of 1 KiB that differ and compress a little, as log lines do."""
    lines = []
    for number in range(total_bytes // RECORD_BYTES):
        head = b"2026-11-21T10:%02d:%02d INFO worker-%d handled request %d " % (
            number % 60, number % 59, number % 7, number * 7919,
        )  # fmt: skip
        lines.append((head * 20)[:RECORD_BYTES])
    return lines


Batches = list[tuple[str, int, bytes]]
"""(topic, partition, encoded batch) in the order of sending."""


class EncodedLoad:
    """Batches encoded beforehand, sent as ordinary generated messages over one stream."""

    def __init__(self, node: RunningNode, tls: Tls | None = None) -> None:
        self._node = node
        self._tls = tls
        if tls is None:
            self._channel = grpc.insecure_channel(node.server, options=UNLIMITED)
        else:
            self._channel = grpc.secure_channel(node.server, tls.credentials(), options=UNLIMITED)
        self.stub = log_pb2_grpc.LogServiceStub(self._channel)

    def batches(self, topic: str, size: int, total: int) -> Batches:
        """About `total` bytes for a new topic, from a new idempotent producer."""
        with Admin(self._node.server, tls=self._tls) as admin:
            admin.create_topic(topic, PARTITIONS)
        producer = self.stub.InitProducerId(log_pb2.InitProducerIdRequest())
        count = (size - 2048) // (RECORD_BYTES + 16)
        template = encode_values(
            example_values(count * RECORD_BYTES), timestamp_ms=1_700_000_000_000
        )
        found = []
        for number in range(max(PARTITIONS, total // size)):
            sequence = number // PARTITIONS * template.record_count
            state = BatchProducer(producer.producer_id, producer.producer_epoch, sequence)
            data = bytes(with_producer(template.data, state))
            found.append((topic, number % PARTITIONS, data))
        return found

    def send(
        self, batches: Batches, size: int, unanswered_max: int | None = None
    ) -> tuple[float, dict[str, float]]:
        """MB/s and CPU cost. `unanswered_max`: messages; None: the producer's default."""
        node = self._node
        cpu_before, own_before = node.cpu_s(), own_cpu_s()
        began = time.perf_counter()
        latencies = stream_batches(self.stub, batches, unanswered_max or window(size))
        elapsed = time.perf_counter() - began
        stored = sum(len(data) for _, _, data in batches)
        return stored / elapsed / 1e6, {
            "p50_ms": percentile(latencies, 0.5),
            "p99_ms": percentile(latencies, 0.99),
            "server_cpu_s_per_gib": (node.cpu_s() - cpu_before) / stored * GIB,
            "client_cpu_s_per_gib": (own_cpu_s() - own_before) / stored * GIB,
            "rss_mb": node.rss_bytes() / 1e6,
        }

    def paced(
        self, topic: str, size: int, mb_s: float, seconds: float
    ) -> tuple[float, float, float]:
        """Ack p50 and p99 (ms) at a steady rate, and the actual rate."""
        batches = self.batches(topic, size, int(mb_s * 1e6 * seconds))
        self._node.wait_until_idle()
        began = time.perf_counter()
        distance = len(batches[0][2]) / (mb_s * 1e6)
        latencies = stream_batches(self.stub, batches, window(size), distance)
        elapsed = time.perf_counter() - began
        rate = sum(len(data) for _, _, data in batches) / elapsed / 1e6
        return percentile(latencies, 0.5), percentile(latencies, 0.99), rate


def with_client(
    node: RunningNode, method: str, values: list[bytes], size: int, total: int
) -> tuple[float, dict[str, float]]:
    """The client's own encoding, one producer, every result checked."""
    topic = f"{method.replace('_', '-')}-{size}-{time.monotonic_ns()}"
    with Admin(node.server) as admin:
        admin.create_topic(topic, PARTITIONS)
    rounds = max(1, total // (len(values) * RECORD_BYTES))
    with Producer(node.server, batch_size_bytes=size, batch_size_max_bytes=size) as producer:
        producer.send(topic, values[0]).result()
        cpu_before, own_before = node.cpu_s(), own_cpu_s()
        began = time.perf_counter()
        if method == "send":
            views = []
            for _ in range(rounds):
                views.extend([producer.send(topic, value) for value in values])
            producer.flush()
            stored_all = all(view.exception() is None for view in views[:: len(values) // 16])
        else:
            sent = [producer.send_many(topic, values) for _ in range(rounds)]
            producer.flush()
            stored_all = all(view.exception() is None for view in sent)
        elapsed = time.perf_counter() - began
    if not stored_all:
        raise RuntimeError(f"{method}() lost records")
    stored = rounds * len(values) * RECORD_BYTES
    return stored / elapsed / 1e6, {
        "server_cpu_s_per_gib": (node.cpu_s() - cpu_before) / stored * GIB,
        "client_cpu_s_per_gib": (own_cpu_s() - own_before) / stored * GIB,
    }
