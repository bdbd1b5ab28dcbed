"""What a byte costs by TLS: the same load on a plain node and on one with TLS, in turns.

CPU seconds of the node for each GiB count; both nodes and the client share the machine, so MB/s say
less. The certificate is elliptic (P-256), the cipher what both sides prefer (AES-GCM).
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median

import trustme

from benchmarks.kafka.encoded import frames_of
from benchmarks.kafka.wire import KafkaConnection
from benchmarks.node import RunningNode, running_node
from benchmarks.produce import GIB, PARTITIONS, EncodedLoad, example_values
from benchmarks.report import Report, Row
from benchmarks.streaming import window
from streamlog.client import Admin, Consumer, Producer, Tls
from streamlog.codec.batch import HEADER_BYTES, parse_header
from streamlog.kafka.messages.fetch_request import FetchPartition, FetchRequest, FetchTopic
from streamlog.kafka.protocol.apis import ApiKey

ROUNDS = 3
FETCHED_BYTES = 48 << 20
"""Fits into the tail cache of a node with default settings."""
CONNECTIONS = 50


def run(report: Report, folder: Path, *, scale: float) -> None:
    """`scale` 1 writes 512 MiB in each round of large batches."""
    authority = trustme.CA()
    leaf = authority.issue_cert("localhost", "127.0.0.1")
    ca, certificate = folder / "ca.pem", folder / "node.pem"
    authority.cert_pem.write_to_path(ca)
    leaf.private_key_and_cert_chain_pem.write_to_path(certificate)
    secured = {"tls.certificate": f'"{certificate}"'}
    with ExitStack() as stack:
        nodes: dict[str, tuple[RunningNode, Tls | None]] = {
            "plain": (stack.enter_context(running_node(folder / "plain", wal="disk")), None),
            "TLS": (
                stack.enter_context(running_node(folder / "tls", wal="disk", settings=secured)),
                Tls(ca=str(ca)),
            ),
        }
        for size in (1 << 20, 128 << 10, 16 << 10):
            total = int((512 << 20 if size > 16 << 10 else 64 << 20) * scale)
            _produce(report, nodes, size, total)
            _produce_kafka(report, nodes, size, total)
        _fetch(report, nodes, max(1, int(10 * scale)))
        _fetch_kafka(report, nodes, max(1, int(10 * scale)))
        _connect(report, nodes)


def _produce(
    report: Report, nodes: dict[str, tuple[RunningNode, Tls | None]], size: int, total: int
) -> None:
    label = f"gRPC produce, {size >> 10} KiB"
    found: dict[str, list[dict[str, float]]] = {name: [] for name in nodes}
    loads = {name: EncodedLoad(node, tls) for name, (node, tls) in nodes.items()}
    for number in range(-1, ROUNDS):
        for name, load in loads.items():
            batches = load.batches(f"p{size}-{number}", size, total if number >= 0 else size * 32)
            nodes[name][0].wait_until_idle()
            mb_s, facts = load.send(batches, size)
            nodes[name][0].wait_until_idle()
            if number >= 0:
                found[name].append({**facts, "mb_s": mb_s})
    for name, rounds in found.items():
        _add(report, f"{label}, {name}", rounds)


def _fetch(
    report: Report, nodes: dict[str, tuple[RunningNode, Tls | None]], repetitions: int
) -> None:
    found: dict[str, list[dict[str, float]]] = {name: [] for name in nodes}
    values = example_values(1 << 20)
    for node, tls in nodes.values():
        with Admin(node.server, tls=tls) as admin:
            admin.create_topic("fetched", PARTITIONS)
        with Producer(node.server, tls=tls) as producer:
            for _ in range(FETCHED_BYTES // (1 << 20)):
                producer.send_many("fetched", values)
            producer.flush()
    for _ in range(ROUNDS):
        for name, (node, tls) in nodes.items():
            node.wait_until_idle()
            before, began = node.cpu_s(), time.perf_counter()
            seen = sum(_read(node, tls) for _ in range(repetitions))
            elapsed = time.perf_counter() - began
            cpu = (node.cpu_s() - before) / seen * GIB
            found[name].append({"server_cpu_s_per_gib": cpu, "mb_s": seen / elapsed / 1e6})
    for name, rounds in found.items():
        _add(report, f"gRPC fetch, cached, {name}", rounds)


def _read(node: RunningNode, tls: Tls | None) -> int:
    with Consumer(node.server, auto_offset_reset="earliest", tls=tls) as consumer:
        consumer.assign([("fetched", partition) for partition in range(PARTITIONS)])
        seen = records = 0
        while records < FETCHED_BYTES // 1024:
            for batch in consumer.poll_batches(1.0):
                records += batch.record_count
                seen += len(batch.data)
        return seen


def _connection(node: RunningNode, tls: Tls | None) -> KafkaConnection:
    return KafkaConnection(node.kafka, None if tls is None else tls.context())


def _produce_kafka(
    report: Report, nodes: dict[str, tuple[RunningNode, Tls | None]], size: int, total: int
) -> None:
    found: dict[str, list[dict[str, float]]] = {name: [] for name in nodes}
    for number in range(-1, ROUNDS):
        for name, (node, tls) in nodes.items():
            with _connection(node, tls) as connection:
                topic = f"k{size}-{number}"
                connection.make_topic(topic, PARTITIONS)
                wanted = total if number >= 0 else size * 32
                frames = frames_of(connection, topic, size, wanted)
                sent = sum(map(len, frames))
                node.wait_until_idle()
                before, began = node.cpu_s(), time.perf_counter()
                connection.blast(frames, window(size))
                elapsed = time.perf_counter() - began
                node.wait_until_idle()
                cpu = (node.cpu_s() - before) / sent * GIB
                if number >= 0:
                    found[name].append({"server_cpu_s_per_gib": cpu, "mb_s": sent / elapsed / 1e6})
    for name, rounds in found.items():
        _add(report, f"Kafka produce, {size >> 10} KiB, {name}", rounds)


def _fetch_kafka(
    report: Report, nodes: dict[str, tuple[RunningNode, Tls | None]], repetitions: int
) -> None:
    """Partition 0 of the topic of `_fetch`, 1 MiB an answer as clients ask for it."""
    found: dict[str, list[dict[str, float]]] = {name: [] for name in nodes}
    for _ in range(ROUNDS):
        for name, (node, tls) in nodes.items():
            with _connection(node, tls) as connection:
                node.wait_until_idle()
                before, began = node.cpu_s(), time.perf_counter()
                seen = sum(_read_kafka(connection) for _ in range(repetitions * PARTITIONS))
                elapsed = time.perf_counter() - began
                cpu = (node.cpu_s() - before) / seen * GIB
                found[name].append({"server_cpu_s_per_gib": cpu, "mb_s": seen / elapsed / 1e6})
    for name, rounds in found.items():
        _add(report, f"Kafka fetch, cached, {name}", rounds)


def _read_kafka(connection: KafkaConnection) -> int:
    offset = seen = 0
    while True:
        partition = FetchPartition(
            partition=0, fetch_offset=offset, partition_max_bytes=1 << 20, current_leader_epoch=-1
        )
        topic = FetchTopic(topic="fetched", partitions=[partition])
        request = FetchRequest(
            max_wait_ms=0, min_bytes=0, max_bytes=50 << 20, session_id=0, session_epoch=-1,
            topics=[topic],
        )  # fmt: skip
        answer = connection.ask(ApiKey.FETCH, request)
        part = answer.responses[0].partitions[0]
        data = memoryview(part.records or b"")
        if part.error_code or not len(data):
            return seen
        seen += len(data)
        at = 0
        while at + HEADER_BYTES <= len(data):
            header = parse_header(data, at)
            at += header.size_bytes
            offset = header.last_offset + 1


def _connect(report: Report, nodes: dict[str, tuple[RunningNode, Tls | None]]) -> None:
    """A new connection and one call on it."""
    for name, (node, tls) in nodes.items():
        node.wait_until_idle()
        before = node.cpu_s()
        for _ in range(CONNECTIONS):
            with Admin(node.server, tls=tls) as admin:
                admin.list_topics()
        cpu_ms = (node.cpu_s() - before) / CONNECTIONS * 1e3
        report.add(Row("tls", f"gRPC connection and one call, {name}", cpu_ms, "ms of CPU"))


def _add(report: Report, case: str, rounds: list[dict[str, float]]) -> None:
    facts = {name: median(one[name] for one in rounds) for name in rounds[0]}
    cpu = facts.pop("server_cpu_s_per_gib")
    report.add(Row("tls", case, cpu, "CPU s/GiB", less_is_better=True, facts=facts))
