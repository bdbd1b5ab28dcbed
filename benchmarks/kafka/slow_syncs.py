"""Node (both kinds of topic) and fsynced Kafka on a disk whose syncs take milliseconds, as one
behind a network.

Where a sync takes 0.1 ms, what is synced costs nothing, and fsynced Kafka is hardly slower than
Kafka as it comes. So both run with a library (slow_sync.c) that makes each sync of theirs
`DELAY_MS` slower; nothing else changes. It counts the syncs that it made slower: a server that had
none is not measured, and fails its case. Both are fresh processes: each is warmed up first.
"""

from __future__ import annotations

import shutil
import struct
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median

from benchmarks.kafka import librdkafka
from benchmarks.kafka.bench import Bench
from benchmarks.kafka.clients import BATCHES, PLAIN, SETTINGS, by, in_turns, label_of
from benchmarks.kafka.encoded import acks_at, half_of
from benchmarks.kafka.kinds import DURABLE_SETTINGS as UNIFIED_SETTINGS
from benchmarks.kafka.kinds import UNIFIED
from benchmarks.kafka.librdkafka import Figures
from benchmarks.kafka.servers import (
    FSYNC_EACH_REQUEST,
    FSYNCED,
    NODE,
    Server,
    kafka_server,
    node_server,
)
from streamlog.errors import Unavailable

GROUP = "slow-syncs"
DELAY_MS = 2
RECORD_BYTES = 1024
TOTAL_BYTES = 128 << 20
"""Of a round at scale 1."""
WARM_BYTES = 256 << 20
WARM = "128 KiB"
AIMED = ("default", "128 KiB", f"default{PLAIN}", f"128 KiB{PLAIN}")
UNIFIED_AIMED = "128 KiB"
ACK_SIZES = (128 << 10, 16 << 10)
SOURCE = Path(__file__).with_name("slow_sync.c")
_COUNT = struct.Struct("=Q")


class SlowSyncs:
    """What makes a server's syncs slower, and how many it had."""

    def __init__(self, library: Path, name: str) -> None:
        self._count = library.with_name(f"{name}.count".replace(" ", "-"))
        self._count.write_bytes(bytes(_COUNT.size))
        self.environment = {
            "LD_PRELOAD": str(library),
            "SLOW_SYNC_US": str(DELAY_MS * 1000),
            "SLOW_SYNC_COUNT": str(self._count),
        }

    def syncs(self) -> int:
        return int(_COUNT.unpack(self._count.read_bytes())[0])


def run(bench: Bench) -> None:
    bench.attempt(GROUP, "all", lambda: _run(bench))


def _run(bench: Bench) -> None:
    if FSYNCED not in bench.servers or not librdkafka.is_there():
        bench.report.note("slow syncs are left out: they need Apache Kafka and confluent-kafka")
        return
    compiler = shutil.which("gcc")
    if compiler is None:
        bench.report.note("slow syncs are left out: there is no gcc")
        return
    # On the disk that is measured.
    with tempfile.TemporaryDirectory(prefix="slow-", dir=bench.folder) as folder:
        library = built(compiler, Path(folder))
        with _servers(Path(folder), library, int(WARM_BYTES * bench.scale)) as (servers, slow):
            for batch in AIMED:
                label = label_of(RECORD_BYTES, batch)
                bench.attempt(GROUP, label, lambda b=batch: _produce(bench, servers, slow, b))  # type: ignore[misc]
            p99: list[float] = []
            for size in ACK_SIZES:
                label = f"acks, {size >> 10} KiB"
                bench.attempt(GROUP, label, lambda s=size: p99.append(_acks(bench, servers, s)))  # type: ignore[misc]
            if len(p99) == len(ACK_SIZES):
                bench.meet("slow p99", max(p99), {"least": min(p99)})


def built(compiler: str, folder: Path) -> Path:
    library = folder / "slow_sync.so"
    command = [compiler, "-O2", "-shared", "-fPIC", "-o", str(library), str(SOURCE), "-ldl"]
    subprocess.run(command, check=True)
    return library


@contextmanager
def _servers(
    folder: Path, library: Path, warm_bytes: int
) -> Iterator[tuple[Mapping[str, Server], Mapping[str, SlowSyncs]]]:
    """Errors: Unavailable, OSError."""
    slow = {name: SlowSyncs(library, name) for name in (NODE, FSYNCED)}
    with ExitStack() as stack:
        node = stack.enter_context(node_server(folder / "node", slow[NODE].environment))
        kafka = stack.enter_context(kafka_server(folder / "kafka", slow[FSYNCED].environment))
        # Kafka's code is compiled by then, which at its rate with fsync takes longer than a run.
        for server in (node, kafka):
            topic = server.new_topic("warm")
            librdkafka.produce(server.address, topic, RECORD_BYTES, warm_bytes, BATCHES[WARM])
        unified = replace(node, name=UNIFIED, topic_settings=dict(UNIFIED_SETTINGS), kept=[])
        fsynced = replace(kafka, name=FSYNCED, topic_settings=dict(FSYNC_EACH_REQUEST), kept=[])
        slow[UNIFIED] = slow[NODE]
        yield {NODE: node, UNIFIED: unified, FSYNCED: fsynced}, slow


def _produce(
    bench: Bench, servers: Mapping[str, Server], slow: Mapping[str, SlowSyncs], batch: str
) -> None:
    def produce(server: Server, topic: str, size: int) -> Figures:
        before = slow[server.name].syncs()
        done = librdkafka.produce(server.address, topic, RECORD_BYTES, size, SETTINGS[batch])
        syncs = slow[server.name].syncs() - before
        if not syncs:
            raise Unavailable(f"no sync of {server.name} was made slower")
        return {**done, "syncs_per_mib": syncs / done["bytes"] * (1 << 20)}

    total = int(TOTAL_BYTES * bench.scale)
    subjects = (NODE, UNIFIED)
    label = label_of(RECORD_BYTES, batch)
    rates = in_turns(bench, GROUP, label, servers, total, produce, subjects=subjects)
    bench.meet(f"slow {batch}", by(rates, NODE, FSYNCED))
    if batch.startswith(UNIFIED_AIMED):
        name = f"slow unified{batch.removeprefix(UNIFIED_AIMED)}"
        bench.meet(name, by(rates, UNIFIED, FSYNCED))


def _acks(bench: Bench, servers: Mapping[str, Server], size: int) -> float:
    """Acks at half of what fsynced Kafka takes. Returns the node's p99 by Kafka's."""
    half = half_of(bench, servers[FSYNCED], size)
    compared = [servers[NODE], servers[FSYNCED]]
    found = acks_at(bench, compared, size, half, f"half load of {FSYNCED}", GROUP)
    ratios = zip(found[NODE].p99_ms, found[FSYNCED].p99_ms, strict=True)
    return median([ours / theirs for ours, theirs in ratios])
