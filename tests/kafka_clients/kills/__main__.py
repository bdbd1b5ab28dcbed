"""`python -m tests.kafka_clients.kills [--rounds N] [--broker streamlog|kafka] [--store files|s3]`.

Kills the broker N times with each mode of the WAL, or a Kafka N times, under all clients at once.
Prints what became of each client's records and all that is wrong, and ends with exit code 1 if
anything was. `--seed` sets the moments of the kills, `--log-type` the kind of the topic's logs.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from tests.kafka_clients.kills.history import Kind
from tests.kafka_clients.kills.rounds import Report, kill_under_writers
from tests.kafka_clients.kills.victims import (
    KilledKafka,
    KilledNode,
    Victim,
    s3_places,
    s3_server,
)
from tests.kafka_clients.kills.writers import CLIENTS

SHOWN_MAX = 20
WALS = ("disk", "object")
FIGURES = (Kind.LOST, Kind.DOUBLED, Kind.REORDERED)
"""What is printed also where there are none."""


def main() -> int:
    given = _arguments()
    clients = given.clients.split(",")
    findings = 0
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for name, victim, place in _victims(given, folder, stack):
            began = time.monotonic()
            configs = {"log.type": given.log_type} if given.log_type != "shared" else {}
            report = kill_under_writers(victim, clients, given.rounds, given.seed, place, configs)
            _print(name, report, time.monotonic() - began)
            findings += len(report.findings)
    return 1 if findings else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--clients", default=",".join(CLIENTS))
    parser.add_argument("--wal", choices=WALS, action="append")
    parser.add_argument("--broker", choices=("streamlog", "kafka"), default="streamlog")
    parser.add_argument("--store", choices=("files", "s3"), default="files")
    parser.add_argument("--log-type", choices=("shared", "unified"), default="shared")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def _victims(
    given: argparse.Namespace, folder: Path, stack: ExitStack
) -> Iterator[tuple[str, Victim, Path]]:
    """Each with its name and a folder of its own."""
    if given.broker == "kafka":
        yield "Kafka", KilledKafka(folder), folder
        return
    s3 = s3_server(folder, stack) if given.store == "s3" else None
    for wal in given.wal or WALS:
        place = folder / wal
        place.mkdir()
        places = s3_places(s3, wal, place) if s3 else ()
        yield f"wal={wal}, {given.store}", KilledNode(place, wal, places), place


def _print(name: str, report: Report, seconds: float) -> None:
    print(
        f"{name}: killed {report.rounds} times in {seconds:.0f} s; at least {report.duplicates} "
        "retries found their originals stored"
    )
    for history in report.histories:
        kinds = [finding.kind for finding in report.findings if finding.writer == history.writer]
        counts = ", ".join(
            f"{kinds.count(kind)} {kind}" for kind in Kind if kind in FIGURES or kind in kinds
        )
        print(
            f"  {history.writer}: {history.sent * history.partitions} sent, "
            f"{len(history.acknowledged)} acknowledged, {counts}; "
            f"{report.under_way[history.writer]} kills met records under way"
        )
    for finding in report.findings[:SHOWN_MAX]:
        print(f"  {finding.kind}: {finding.writer}: {finding.text}")
    if len(report.findings) > SHOWN_MAX:
        print(f"  and {len(report.findings) - SHOWN_MAX} more findings")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
