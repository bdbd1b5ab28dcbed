"""`python -m tests.kafka_clients.differential.transactions [--sequences N] [--first SEED]`.

Prints each difference and ends with exit code 1 if there was any. `--self` compares Kafka with
itself, which shows whether the test is at fault. `--version 2`: a Kafka with that version of
transactions, whose coordinator does more as a node's does; clients of a node use version 1.
`--log-type unified`: the node's topics are local files.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from tests.kafka_clients.brokers import running_kafka, running_node
from tests.kafka_clients.differential.transactions.sequence import Difference, run
from tests.kafka_clients.differential.transactions.side import TransactionalSide
from tests.support.kafka_server import FEATURES, NEWEST_FEATURES

PROGRESS = 50
VERSIONS = {1: FEATURES, 2: NEWEST_FEATURES}
"""Kafka's features by its version of transactions."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sequences", type=int, default=1000)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--calls", type=int, default=60)
    parser.add_argument("--self", action="store_true", dest="with_itself")
    parser.add_argument("--version", type=int, default=1, choices=VERSIONS)
    parser.add_argument("--log-type", choices=("shared", "unified"), default="shared")
    given = parser.parse_args()
    let_pass: Counter[str] = Counter()
    differences: list[Difference] = []
    began = time.monotonic()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        start_kafka = partial(running_kafka, features=VERSIONS[given.version])
        kafka = stack.enter_context(start_kafka(folder / "kafka"))
        place = folder / "other"
        started = (
            start_kafka(place)
            if given.with_itself
            else running_node(place, log_type=given.log_type)
        )
        other = stack.enter_context(started)
        first = TransactionalSide("kafka", kafka.server)
        second = TransactionalSide(other.name, other.server)
        for seed in range(given.first, given.first + given.sequences):
            found = run(seed, given.calls, first, second, let_pass, given.version)
            if found is not None:
                differences.append(found)
                print(found, flush=True)
            if (seed - given.first) % PROGRESS == PROGRESS - 1:
                _say(seed - given.first + 1, differences, began)
        first.close()
        second.close()
    for what, count in let_pass.most_common():
        print(f"let pass {count} times: {what}")
    _say(given.sequences, differences, began)
    return 1 if differences else 0


def _say(sequences: int, differences: list[Difference], began: float) -> None:
    seconds = time.monotonic() - began
    print(f"{sequences} sequences, {len(differences)} differ, {seconds:.0f} s", flush=True)


if __name__ == "__main__":
    sys.exit(main())
