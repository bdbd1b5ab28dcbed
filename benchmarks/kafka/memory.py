"""Resident memory of a fresh node and of a fresh Kafka under half load, and of nothing else.

What a server keeps of floods before would be measured otherwise. Memory is looked at all the time
and not at the end alone: a node's compactor is a process of its own, which comes and goes, and a
Java heap grows until it is collected. The median counts; `start` and `most` stand beside it. A
node's processes are added up, pages that they share twice.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from statistics import median
from threading import Event, Thread

from benchmarks.kafka.bench import Bench
from benchmarks.kafka.encoded import GROUP, endless_frames
from benchmarks.kafka.servers import KAFKA, Server, kafka_server, node_server
from benchmarks.kafka.wire import KafkaConnection
from benchmarks.report import Row
from benchmarks.streaming import window

BATCH_BYTES = 128 << 10
SECONDS = 20
"""Of load at scale 1."""
QUICK_S = 1
SAMPLED_EVERY_S = 0.25


def run(bench: Bench, mb_s: float) -> None:
    """`mb_s`: half of what the node takes of these batches."""
    # On the disk that is measured.
    with tempfile.TemporaryDirectory(prefix="memory-", dir=bench.folder) as folder:
        with node_server(Path(folder, "node")) as node:
            ours = _under_load(bench, node, mb_s)
        if KAFKA not in bench.servers:
            return
        with kafka_server(Path(folder, "kafka")) as kafka:
            theirs = _under_load(bench, kafka, mb_s)
    bench.meet("rss", ours / theirs)


def _under_load(bench: Bench, server: Server, mb_s: float) -> float:
    """The median of the bytes, in MB."""
    seconds = bench.number(SECONDS, QUICK_S)
    start = server.rss_bytes() / 1e6
    topic = server.new_topic("memory")
    with KafkaConnection(server.address) as connection:
        wanted = max(1, int(mb_s * 1e6 * seconds / BATCH_BYTES))
        frames = islice(endless_frames(connection, topic, BATCH_BYTES), wanted)
        with _sampled(server) as found:
            connection.blast(frames, window(BATCH_BYTES), BATCH_BYTES / (mb_s * 1e6))
    case = f"{server.name}, RSS at half load, fresh, {BATCH_BYTES >> 10} KiB"
    row = Row(GROUP, case, median(found), "MB", less_is_better=True)
    row.facts = {"start_mb": start, "most_mb": max(found), "mb_s": mb_s, "load_s": seconds}
    bench.report.add(row)
    return row.value


@contextmanager
def _sampled(server: Server) -> Iterator[Sequence[float]]:
    """MB, at least once, while the block runs."""
    found: list[float] = []
    over = Event()

    def sample() -> None:
        while True:
            found.append(server.rss_bytes() / 1e6)
            if over.wait(SAMPLED_EVERY_S):
                return

    sampling = Thread(target=sample, name="rss")
    sampling.start()
    try:
        yield found
    finally:
        over.set()
        sampling.join()
