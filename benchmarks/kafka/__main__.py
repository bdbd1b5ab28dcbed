"""`python -m benchmarks.kafka [NAME …] [--scale X] [--json FILE] [--data DIR]`.

`kafka` beside other names: Apache Kafka takes its turns, too; it needs Java 17 and, once, Maven.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from benchmarks.command import options
from benchmarks.kafka import clients, encoded, idle
from benchmarks.kafka.servers import servers
from benchmarks.report import HEADER, Report, Row
from streamlog.runtime.allocator import collect_rarely, keep_large_blocks

NAMES = ("encoded", "clients", "idle", "kafka")


def main() -> None:
    taken = options("python -m benchmarks.kafka", __doc__, NAMES, "bench-results/kafka.json")
    keep_large_blocks()
    collect_rarely()
    report = Report()
    print(HEADER)
    folder = Path(tempfile.mkdtemp(prefix="bench-kafka-", dir=taken.data))
    try:
        with servers(report, folder, with_kafka="kafka" in taken.names) as found:
            for server in found.values():
                row = Row("start-up", server.name, server.started_in_s, "s", less_is_better=True)
                row.facts = {"rss_mb": server.rss_bytes() / 1e6}
                report.add(row)
            if "encoded" in taken.names:
                encoded.run(report, found, taken.scale)
            if "clients" in taken.names:
                clients.run(report, found, taken.scale)
            if "idle" in taken.names:
                idle.run(report, found, taken.scale)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        report.save(taken.json)
    print(f"saved as {taken.json}")


if __name__ == "__main__":
    main()
