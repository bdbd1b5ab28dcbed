"""`python -m benchmarks.kafka [NAME …] [--scale X] [--quick] [--json FILE] [--data DIR]`.

`kafka` beside other names: Apache Kafka takes its turns, too; it needs Java 17 and, once, Maven.
`--quick` shows in minutes that every row can be measured; its figures mean nothing.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from benchmarks.command import parsed, parser
from benchmarks.kafka import (
    clients,
    encoded,
    idle,
    java,
    kinds,
    memory,
    slow_syncs,
    stages,
    transactions,
)
from benchmarks.kafka.bench import Bench
from benchmarks.kafka.servers import servers
from benchmarks.report import HEADER, Report, Row
from streamlog.runtime.allocator import collect_rarely, keep_large_blocks


class _Group(NamedTuple):
    run: Callable[[Bench], None]
    minutes: float
    """After which, and what those before it left of theirs, its cases get one round each."""


def _encoded(bench: Bench) -> None:
    loads = encoded.run(bench)
    mb_s = loads.get(memory.BATCH_BYTES)
    if mb_s is not None:
        bench.attempt(encoded.GROUP, "RSS at half load", lambda: memory.run(bench, mb_s))


GROUPS = {
    "encoded": _Group(_encoded, 4.5),
    "clients": _Group(clients.run, 6),
    "java": _Group(java.run, 3),
    "kinds": _Group(kinds.run, 4.5),
    "transactions": _Group(transactions.run, 5),
    "slow-syncs": _Group(slow_syncs.run, 3.5),
    "idle": _Group(idle.run, 1),
    "stages": _Group(stages.run, 0.5),
}
KAFKA = "kafka"
QUICK_SCALE = 0.01


def main() -> None:
    names = (*GROUPS, KAFKA)
    options = parser("python -m benchmarks.kafka", __doc__, names, "bench-results/kafka.json")
    options.add_argument("--quick", action="store_true", help="one round of tiny rows")
    taken = parsed(options, names)
    keep_large_blocks()
    collect_rarely()
    report, began = Report(), time.monotonic()
    print(HEADER)
    folder = Path(tempfile.mkdtemp(prefix="bench-kafka-", dir=taken.data))
    try:
        with servers(report, folder, with_kafka=KAFKA in taken.names) as found:
            for server in found.values():
                row = Row("start-up", server.name, server.started_in_s, "s", less_is_better=True)
                row.facts = {"rss_mb": server.rss_bytes() / 1e6}
                report.add(row)
            scale, rounds = (QUICK_SCALE, 1) if taken.quick else (taken.scale, None)
            bench = Bench(report, found, folder, scale, rounds)
            took: list[str] = []
            for name, group in GROUPS.items():
                if name in taken.names:
                    bench.begin_slot(group.minutes)
                    group_began = time.monotonic()
                    group.run(bench)
                    took.append(f"{name} {(time.monotonic() - group_began) / 60:.1f}")
            bench.add_aims(taken.names)
            minutes = (time.monotonic() - began) / 60
            report.note(f"{minutes:.1f} minutes ({', '.join(took)}), scale {scale}")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        report.save(taken.json)
    print(f"saved as {taken.json}")


if __name__ == "__main__":
    main()
