"""Kafka's own Java producer, ProducerPerformance, against each server, in turns.

It counts what its broker has acknowledged: page-cache Kafka before it is on disk, the others after.
"""

from __future__ import annotations

import re
import resource
import shutil
import subprocess
import tempfile
from pathlib import Path

from benchmarks.kafka import clients
from benchmarks.kafka.bench import Bench
from benchmarks.kafka.clients import TOTAL_BYTES, attempt_cases, in_turns, label_of
from benchmarks.kafka.librdkafka import Figures
from benchmarks.kafka.servers import BARE, Server
from benchmarks.spark.jars import kafka_jars

TIMEOUT_S = 300.0
HEAP = "512m"
BATCHES = {name: settings for name, settings in clients.BATCHES.items() if name != "16 KiB"}
"""16 KiB are this client's default."""
_LINE = re.compile(
    r"^(\d+) records sent, ([\d.]+) records/sec .* ([\d.]+) ms avg latency, "
    r"([\d.]+) ms max latency, (\d+) ms 50th, (\d+) ms 95th, (\d+) ms 99th"
)


def run(bench: Bench) -> None:
    if shutil.which("java") is None:
        bench.report.note("Kafka's Java producer is left out: there is no java")
        return
    attempt_cases(bench, "java", BATCHES, _case)


def _case(bench: Bench, record_bytes: int, batch: str) -> None:
    def produce(server: Server, topic: str, size: int) -> Figures:
        return _produce(server.address, topic, record_bytes, size, batch)

    # The bare server's ApiVersions is too old for this client.
    servers = {name: one for name, one in bench.servers.items() if name != BARE}
    total = int(TOTAL_BYTES[record_bytes] * bench.scale)
    in_turns(bench, "java", label_of(record_bytes, batch), servers, total, produce)


def _produce(address: str, topic: str, record_bytes: int, total: int, batch: str) -> Figures:
    properties = {"bootstrap.servers": address, "enable.idempotence": "true", **BATCHES[batch]}
    records = max(1, total // record_bytes)
    arguments = [
        *("--topic", topic, "--num-records", str(records), "--record-size", str(record_bytes)),
        *("--throughput", "-1", "--producer-props"),
        *(f"{name}={value}" for name, value in properties.items()),
    ]
    before = _children_cpu_s()
    said = _java("org.apache.kafka.tools.ProducerPerformance", arguments)
    cpu_s = _children_cpu_s() - before
    found = [match for line in said.splitlines() if (match := _LINE.match(line))]
    if not found or int(found[-1][1]) != records:
        raise RuntimeError(f"ProducerPerformance did not send {records} records: {said[-500:]}")
    last = found[-1]
    return {
        "records": float(records),
        "bytes": float(records * record_bytes),
        "seconds": records / float(last[2]),
        "cpu_s": cpu_s,
        "p50_ms": float(last[5]),
        "p99_ms": float(last[7]),
    }


def _children_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _java(program: str, arguments: list[str]) -> str:
    """What the program prints."""
    class_path = ":".join(map(str, kafka_jars().paths))
    with tempfile.NamedTemporaryFile("w", suffix=".properties") as quiet:
        Path(quiet.name).write_text("rootLogger.level = error\n")
        logging = f"-Dlog4j2.configurationFile={quiet.name}"
        done = subprocess.run(
            ["java", f"-Xmx{HEAP}", logging, "-cp", class_path, program, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    if done.returncode:
        raise RuntimeError(f"{program} ended with {done.returncode}: {done.stdout[-500:]}")
    return done.stdout
