"""`python -m tests.kafka_clients.outages --wal object --fault store-refuses --seconds 600`."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.kafka_clients.outages.checks import check
from tests.kafka_clients.outages.report import report
from tests.kafka_clients.outages.run import LONG_PACE, SHORT_PACE, Fault, Plan, run
from tests.kafka_clients.outages.world import FAULTS


def main() -> None:
    """Prints what was seen. Errors: AssertionError, with what did not go on or is not there."""
    parser = argparse.ArgumentParser(prog="make outage-kafka", description=__doc__)
    parser.add_argument("--wal", choices=("object", "disk"), default="object")
    parser.add_argument("--fault", choices=FAULTS, action="append", required=True)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument(
        "--short", action="store_true", help="clients and node with short time-outs"
    )
    parser.add_argument("--out", type=Path, help="file for what was seen, beside stdout")
    chosen = parser.parse_args()
    plan = Plan(
        wal=chosen.wal,
        faults=[Fault(name, chosen.seconds) for name in chosen.fault],
        pace=SHORT_PACE if chosen.short else LONG_PACE,
        warm_records=20 if chosen.short else 120,
        patience_s=60.0 if chosen.short else 300.0,
    )
    with tempfile.TemporaryDirectory(prefix="streamlog-outage-") as folder:
        outcome = run(plan, Path(folder), lambda text: print(text, file=sys.stderr, flush=True))
        said = report(outcome)
        print(said, flush=True)
        if chosen.out is not None:
            chosen.out.write_text(said)
        check(outcome, may_give_up=not chosen.short)


if __name__ == "__main__":
    main()
