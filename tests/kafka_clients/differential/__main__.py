"""`python -m tests.kafka_clients.differential --sequences N [--first SEED] [--calls N] [--self]
[--log-type unified]`.

Prints each difference and ends with exit code 1 if there was any. `--self` compares Kafka with
itself, which shows whether the test is at fault.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

from tests.kafka_clients.brokers import running_kafka, running_node
from tests.kafka_clients.differential.sequence import Difference, run
from tests.kafka_clients.differential.side import Side


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sequences", type=int, default=1000)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--calls", type=int, default=200)
    parser.add_argument("--self", action="store_true", dest="with_itself")
    parser.add_argument("--log-type", choices=("shared", "unified"), default="shared")
    given = parser.parse_args()
    let_pass: Counter[str] = Counter()
    differences: list[Difference] = []
    began = time.monotonic()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        kafka = stack.enter_context(running_kafka(folder / "kafka"))
        place = folder / "other"
        started = (
            running_kafka(place)
            if given.with_itself
            else running_node(place, log_type=given.log_type)
        )
        other = stack.enter_context(started)
        first, second = Side("kafka", kafka.server), Side(other.name, other.server)
        for seed in range(given.first, given.first + given.sequences):
            found = run(seed, given.calls, first, second, let_pass)
            if found is not None:
                differences.append(found)
                print(found, flush=True)
        first.close()
        second.close()
    for what, count in let_pass.most_common():
        print(f"let pass {count} times: {what}")
    seconds = time.monotonic() - began
    print(f"{given.sequences} sequences, {len(differences)} differ, {seconds:.0f} s")
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
