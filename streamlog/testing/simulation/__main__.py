"""`python -m streamlog.testing.simulation --seeds N [--first S] [--wal disk|object] [--trace]`."""

from __future__ import annotations

import argparse
import logging
import sys
import time
import traceback
from collections import Counter

from streamlog.testing.simulation.history import Report, WalMode, run_history

MODES: tuple[WalMode, ...] = ("disk", "object")


def mode_of(seed: int) -> WalMode:
    """Seeds alternate between the two modes."""
    return MODES[seed % 2]


def main(arguments: list[str] | None = None) -> int:
    """Runs histories; 1 when one of them broke a promise."""
    parser = argparse.ArgumentParser(prog="python -m streamlog.testing.simulation")
    parser.add_argument("--seeds", type=int, default=100, help="how many histories")
    parser.add_argument("--first", "--seed", type=int, default=0, help="seed of the first one")
    parser.add_argument("--wal", choices=MODES, help="one mode instead of both in turn")
    parser.add_argument("--trace", action="store_true", help="print every event")
    options = parser.parse_args(arguments)
    logging.disable(logging.CRITICAL)
    began = time.perf_counter()
    total: Counter[str] = Counter()
    faults: Counter[str] = Counter()
    failed: list[int] = []
    virtual_s = 0.0
    for seed in range(options.first, options.first + options.seeds):
        report = _one(seed, options.wal or mode_of(seed), failed)
        if report is None:
            continue
        total.update(report.by_kind)
        faults.update(report.faults)
        virtual_s += report.virtual_s
        if options.trace:
            print("\n".join(report.trace))
    elapsed = time.perf_counter() - began
    print(f"{options.seeds} seeds in {elapsed:.1f} s ({options.seeds / elapsed:.1f} seeds/s)")
    print(f"virtual time {virtual_s / 3600:.2f} h")
    print("operations " + ", ".join(f"{kind} {count}" for kind, count in total.most_common()))
    print("faults " + ", ".join(f"{kind} {count}" for kind, count in faults.most_common()))
    print(f"failed: {failed if failed else 'none'}")
    return 1 if failed else 0


def _one(seed: int, wal: WalMode, failed: list[int]) -> Report | None:
    try:
        return run_history(seed, wal)
    except Exception:  # noqa: BLE001 - whatever broke is the finding; it is printed and counted
        failed.append(seed)
        traceback.print_exc(file=sys.stdout)
        return None


if __name__ == "__main__":
    sys.exit(main())
