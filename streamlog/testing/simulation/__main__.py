"""`python -m streamlog.testing.simulation --seeds N | --seed S`: histories of the engine.

Whether the histories find what they should is asked by `python -m tests.simulation`.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import time
from pathlib import Path

from streamlog.testing.simulation.history import (
    COMPACTED_PLAN,
    PLAN,
    TRANSACTIONS_PLAN,
    Failed,
    Report,
    mode_of,
)
from streamlog.testing.simulation.local.history import (
    TIERED_PLAN,
    TIERED_TOPIC_PLAN,
    UNIFIED_PLAN,
)
from streamlog.testing.simulation.many import AnyPlan, Total, run_many, run_planned
from streamlog.wal.config import WalMode

MODES: tuple[WalMode, ...] = ("disk", "object")


def main(arguments: list[str] | None = None) -> int:
    """Runs histories; 1 when one of them broke a promise."""
    parser = argparse.ArgumentParser(prog="python -m streamlog.testing.simulation")
    parser.add_argument("--seeds", type=int, default=100, help="how many histories (100)")
    parser.add_argument("--seed", type=int, help="this history alone")
    parser.add_argument("--first", type=int, default=0, help="seed of the first history (0)")
    parser.add_argument("--wal", choices=MODES, help="one mode instead of both in turn")
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument(
        "--transactions", action="store_true", help="smaller histories, of transactions alone"
    )
    kinds.add_argument(
        "--compacted", action="store_true", help="smaller histories, of a compacted topic alone"
    )
    kinds.add_argument(
        "--unified", action="store_true", help="histories of topics in local files (no engine)"
    )
    kinds.add_argument(
        "--tiered", action="store_true", help="histories of a topic with a remote tier (no engine)"
    )
    kinds.add_argument(
        "--tiered-topic",
        action="store_true",
        help="as --tiered, with an engine: the tier's metadata are in a shared topic",
    )
    parser.add_argument("--jobs", type=int, default=1, help="processes (1)")
    parser.add_argument("--trace", action="store_true", help="print every event")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the summary there")
    options = parser.parse_args(arguments)
    logging.disable(logging.CRITICAL)
    plan: AnyPlan = TRANSACTIONS_PLAN if options.transactions else PLAN
    if options.compacted:
        plan = COMPACTED_PLAN
    elif options.unified:
        plan = UNIFIED_PLAN
    elif options.tiered:
        plan = TIERED_PLAN
    elif options.tiered_topic:
        plan = TIERED_TOPIC_PLAN
    if options.seed is not None:
        return _run_one(options.seed, options.wal, plan, is_traced=options.trace)
    began = time.perf_counter()
    seeds = range(options.first, options.first + options.seeds)
    total = run_many(seeds, options.wal, options.jobs, plan=plan, is_traced=options.trace)
    elapsed = time.perf_counter() - began
    print(summary(total, elapsed))
    if options.json is not None:
        options.json.write_text(json.dumps(total.as_dict(elapsed), indent=1) + "\n")
    return 1 if total.failed else 0


def _run_one(seed: int, wal: WalMode | None, plan: AnyPlan, *, is_traced: bool) -> int:
    try:
        report = run_planned(seed, wal, plan, keep_trace=is_traced)
    except Failed as failure:
        print("\n".join(failure.trace if is_traced else failure.tail))
        sys.excepthook(type(failure), failure, failure.__traceback__)
        return 1
    print("\n".join(report.trace), end="\n" if report.trace else "")
    print(_line(report))
    return 0


def _line(report: Report) -> str:
    return (
        f"seed {report.seed}, wal={report.wal}: {report.operations} operations, "
        f"{report.fault_count} faults, {report.crashes} crashes, {report.virtual_s:.0f} s simulated"
    )


def summary(total: Total, elapsed_s: float) -> str:
    """A few lines for people."""
    return "\n".join(
        [
            f"{total.seeds} seeds in {elapsed_s:.1f} s ({total.seeds / elapsed_s:.2f} seeds/s), "
            f"{total.virtual_s / 3600:.2f} h simulated",
            f"operations {total.operations} (least in a seed: {total.operations_min}): "
            + ", ".join(f"{kind} {count}" for kind, count in total.by_kind.most_common()),
            f"faults {total.faults.total()} (least in a seed: {total.faults_min}): "
            + ", ".join(f"{kind} {count}" for kind, count in total.faults.most_common()),
            f"failed: {total.failed or 'none'}",
        ]
    )


__all__ = ["main", "mode_of"]

if __name__ == "__main__":
    sys.exit(main())
