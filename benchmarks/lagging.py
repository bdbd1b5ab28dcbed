"""Acks and tail reads of a node while eight readers, far behind, read another topic.

The node, its loader, its tail reader and the lagging readers are one process each. The loader sends
a quarter of the node's measured maximum. Rounds without and with the lagging readers alternate. Ack
times count from when a batch was due, tail read times from then until the reader has the batch. At
scale 1 the old data is larger than all caches of the node.

The lagging readers' process runs at nice 19: in production their CPU is on another machine, and
here it would be taken from the node. The node's work for them is not niced. They read at full speed
before a round begins, so that the round starts with large answers under way.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from benchmarks.node import RunningNode, cpu_s_of, running_node
from benchmarks.produce import PARTITIONS, EncodedLoad
from benchmarks.report import Report, Row, percentile
from benchmarks.s3 import BUCKET, s3_server
from benchmarks.streaming import stream_batches, window
from streamlog.client import Consumer
from streamlog.demo.child import kill

MIB = 1 << 20
READERS = 8
MESSAGE_BYTES = 128 << 10
OLD = "old"
ROUNDS = 6
SECONDS = 5.0
TAIL_MARGIN_S = 2.0
SETTINGS = {"engine.compaction.compaction_process": '"off"'}


def run(report: Report, folder: Path, *, scale: float) -> None:
    """`scale` 1 has 1 GiB of old data, and 6 rounds of 5 s of each kind."""
    for wal in ("disk", "object"):
        with running_node(folder / wal, wal=wal, settings=SETTINGS) as node:
            _case(report, node, folder, f"local, wal={wal}", scale)
    with (
        s3_server(folder) as server,
        running_node(
            folder / "s3wal",
            wal="object",
            settings=SETTINGS,
            store=server.url(BUCKET, "lagging"),
            meta=f"rocksdb://{folder}/meta",
            command="serve",
        ) as node,
    ):
        _case(report, node, folder, "S3, wal=object", scale)


@dataclass
class _Seen:
    """Milliseconds of all rounds of one kind, and their costs."""

    acks: list[float] = field(default_factory=list)
    tails: list[float] = field(default_factory=list)
    ack_p99s: list[float] = field(default_factory=list)
    tail_p99s: list[float] = field(default_factory=list)
    node_cores: list[float] = field(default_factory=list)
    cpu_pressure: list[float] = field(default_factory=list)
    """Share of the time in which something runnable had to wait for a core (the kernel's PSI)."""
    io_pressure: list[float] = field(default_factory=list)
    read_mb_s: list[float] = field(default_factory=list)


def _case(report: Report, node: RunningNode, folder: Path, label: str, scale: float) -> None:
    load = EncodedLoad(node)
    total = int(1024 * MIB * scale)
    old = load.batches(OLD, 1 << 20, total)
    maximum, _ = load.send(old, 1 << 20)
    batches = load.batches("most", MESSAGE_BYTES, int(256 * MIB * scale))
    maximum, _ = load.send(batches, MESSAGE_BYTES)
    alone, beside = _Seen(), _Seen()
    for number in range(max(1, round(2 * ROUNDS * scale))):
        seen = beside if number % 2 else alone
        node.wait_until_idle()
        if seen is beside:
            with _lagging(node, folder) as readers:
                _round(node, load, f"round-{number}", maximum / 4, seen, readers)
        else:
            _round(node, load, f"round-{number}", maximum / 4, seen, None)
    for what, ones, others in (
        ("ack", beside.ack_p99s, alone.ack_p99s),
        ("tail read", beside.tail_p99s, alone.tail_p99s),
    ):
        ratios = [slow / max(fast, 1e-3) for slow, fast in zip(ones, others, strict=False)]
        row = Row(
            "lagging", f"{what} p99 beside {READERS} lagging readers, {label}", median(ones), "ms"
        )
        row.floor, row.floor_name, row.aim, row.less_is_better = median(others), "alone", 0.5, True
        row.ratios = [1 / ratio for ratio in ratios]
        own = (beside.acks, alone.acks) if what == "ack" else (beside.tails, alone.tails)
        row.facts = {
            "p50_ms": percentile(own[0], 0.5),
            "alone_p50_ms": percentile(own[1], 0.5),
            "produced_mb_s": maximum / 4,
            "lagging_mb_s": median(beside.read_mb_s),
            "node_cores": median(beside.node_cores),
            "alone_node_cores": median(alone.node_cores),
            "cpu_pressure": median(beside.cpu_pressure),
            "alone_cpu_pressure": median(alone.cpu_pressure),
            "io_pressure": median(beside.io_pressure),
            "alone_io_pressure": median(alone.io_pressure),
        }
        report.add(row)


def _round(
    node: RunningNode,
    load: EncodedLoad,
    topic: str,
    mb_s: float,
    seen: _Seen,
    readers: _Readers | None,
) -> None:
    batches = load.batches(topic, MESSAGE_BYTES, int(mb_s * 1e6 * SECONDS))
    distance = len(batches[0][2]) / (mb_s * 1e6)
    with _child("tail", node.server, topic, str(len(batches))) as child:
        assert child.stdout is not None
        child.stdout.readline()
        pressures = _pressure("cpu"), _pressure("io")
        read_before = readers.bytes() if readers is not None else 0
        cpu_before, began = cpu_s_of(node.process), time.perf_counter()
        acks = stream_batches(load.stub, batches, window(MESSAGE_BYTES), distance)
        node_s = cpu_s_of(node.process) - cpu_before
        elapsed = time.perf_counter() - began
        if readers is not None:
            seen.read_mb_s.append((readers.bytes() - read_before) / elapsed / 1e6)
        seen.node_cores.append(node_s / elapsed)
        seen.cpu_pressure.append((_pressure("cpu") - pressures[0]) / elapsed)
        seen.io_pressure.append((_pressure("io") - pressures[1]) / elapsed)
        received: dict[str, float] = json.loads(child.stdout.readline())
    # perf_counter is one clock for all processes; messages go over the partitions in turn.
    tails = [(at - began - int(number) * distance) * 1e3 for number, at in received.items()]
    seen.acks += acks
    seen.tails += tails
    seen.ack_p99s.append(percentile(acks, 0.99))
    seen.tail_p99s.append(percentile(tails, 0.99))


def _pressure(what: str) -> float:
    """Seconds so far in which a task of this machine waited; 0 if the kernel does not measure
    it."""
    path = Path(f"/proc/pressure/{what}")
    if not path.exists():
        return 0.0
    return int(path.read_text().split()[4].partition("=")[2]) / 1e6


class _Readers:
    """Bytes that the lagging readers have read; their process reports after each poll."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def bytes(self) -> int:
        return int(self._path.read_text())


@contextmanager
def _lagging(node: RunningNode, folder: Path) -> Iterator[_Readers]:
    path = folder / f"lagging-{time.monotonic_ns()}"
    path.write_text("0")
    try:
        with _child("lag", node.server, str(path)) as child:
            assert child.stdout is not None
            child.stdout.readline()
            yield _Readers(path)
    finally:
        path.unlink()
        Path(f"{path}.new").unlink(missing_ok=True)


@contextmanager
def _child(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    child = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.lagging", *arguments], stdout=subprocess.PIPE, text=True
    )
    try:
        yield child
    finally:
        kill(child)


def _tail(server: str, topic: str, count: str) -> None:
    """Prints when each message came, by its number in the order of sending."""
    received: dict[int, float] = {}
    counts = [0] * PARTITIONS
    with Consumer(server, auto_offset_reset="earliest") as consumer:
        consumer.assign([(topic, partition) for partition in range(PARTITIONS)])
        consumer.poll_batches(0.2)
        print("ready", flush=True)
        while len(received) < int(count):
            batches = consumer.poll_batches(1.0)
            now = time.perf_counter()
            for batch in batches:
                received[counts[batch.partition] * PARTITIONS + batch.partition] = now
                counts[batch.partition] += 1
    print(json.dumps(received), flush=True)


def _lag(server: str, path: str) -> None:
    """Eight readers in threads, each from the earliest offset again and again; niced."""
    import threading

    os.nice(19)
    seen = [0] * READERS

    def read(number: int) -> None:
        while True:
            with Consumer(server, auto_offset_reset="earliest") as consumer:
                consumer.assign([(OLD, number % PARTITIONS)])
                while batches := consumer.poll_batches(1.0):
                    seen[number] += sum(len(batch.data) for batch in batches)

    for number in range(READERS):
        threading.Thread(target=read, args=(number,), daemon=True).start()
    while not all(seen):
        time.sleep(0.05)
    print("ready", flush=True)
    new = Path(f"{path}.new")
    while True:
        # Replaced, not overwritten, so that readers see a whole number.
        new.write_text(str(sum(seen)))
        new.replace(path)
        time.sleep(0.1)


if __name__ == "__main__":
    if sys.argv[1] == "tail":
        _tail(*sys.argv[2:])
    else:
        _lag(*sys.argv[2:])
