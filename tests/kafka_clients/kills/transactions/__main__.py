"""`python -m tests.kafka_clients.kills.transactions [--rounds N] [--store s3]`.

Kills broker and copiers N times with each mode of the WAL, or, with `--broker kafka`, a Kafka.
Prints what became of the transactions and all that is wrong, and ends with exit code 1 if anything
was. `--seed` sets the moments of the kills and what is killed; a run of many rounds is made of runs
of ROUNDS_AT_ONCE, each with the next seed and a broker of its own, so that copiers find their
places quickly.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from tests.kafka_clients.kills.transactions.copiers import CLIENTS
from tests.kafka_clients.kills.transactions.rounds import Report, kill_under_copiers
from tests.kafka_clients.kills.victims import (
    KilledKafka,
    KilledNode,
    Victim,
    s3_places,
    s3_server,
)

SHOWN_MAX = 20
WALS = ("disk", "object")
ROUNDS_AT_ONCE = 25


def main() -> int:
    given = _arguments()
    names = ["Kafka"] if given.broker == "kafka" else [f"wal={wal}" for wal in given.wal or WALS]
    return 1 if sum(_run_all(name, given) for name in names) else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--clients", default=",".join(CLIENTS))
    parser.add_argument("--wal", choices=WALS, action="append")
    parser.add_argument("--broker", choices=("streamlog", "kafka"), default="streamlog")
    parser.add_argument("--store", choices=("files", "s3"), default="files")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def _run_all(name: str, given: argparse.Namespace) -> int:
    """The count of findings."""
    findings = 0
    left, seed = given.rounds, given.seed
    while left > 0:
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            began = time.monotonic()
            victim = _victim(name, folder, given.store, stack)
            rounds = min(left, ROUNDS_AT_ONCE)
            report = kill_under_copiers(victim, given.clients.split(","), rounds, seed, folder)
        _print(f"{name}, seed {seed}", report, time.monotonic() - began)
        findings += len(report.findings)
        left, seed = left - rounds, seed + 1
    return findings


def _victim(name: str, folder: Path, store: str, stack: ExitStack) -> Victim:
    if name == "Kafka":
        return KilledKafka(folder)
    wal = name.removeprefix("wal=")
    places = s3_places(s3_server(folder, stack), wal, folder) if store == "s3" else ()
    return KilledNode(folder, wal, places)


def _print(name: str, report: Report, seconds: float) -> None:
    killed = ", ".join(f"{what} {count}" for what, count in sorted(report.killed.items()))
    print(
        f"{name}: {report.rounds} rounds in {seconds:.0f} s ({killed}); {report.under_way} "
        f"transactions were under way, {report.undecided} of them undecided; {report.records} "
        "records came to the end"
    )
    for client in sorted(report.commits):
        print(
            f"  {client}: {report.commits[client]} committed, {report.aborts[client]} aborted; "
            f"gave up {report.refused[client]} times"
        )
    for reason, count in report.reasons.most_common():
        print(f"    {count} times: {reason}")
    for finding in report.findings[:SHOWN_MAX]:
        print(f"  {finding.kind}: {finding.text}")
    if len(report.findings) > SHOWN_MAX:
        print(f"  and {len(report.findings) - SHOWN_MAX} more findings")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
