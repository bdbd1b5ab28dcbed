"""`python -m benchmarks.spark [NAME …] [--scale X] [--json FILE] [--data DIR]`."""

from __future__ import annotations

import argparse
import importlib
import shutil
import tempfile
from pathlib import Path

from benchmarks.report import HEADER, Report
from benchmarks.spark.world import world

NAMES = ("reading", "writing", "latency", "jobs")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spark", description=__doc__)
    parser.add_argument("names", nargs="*", help=f"some of {', '.join(NAMES)}; all by default")
    parser.add_argument("--scale", type=float, default=1.0, help="0.1 is a quick look")
    parser.add_argument("--json", type=Path, default=Path("bench-results/spark.json"))
    parser.add_argument("--data", type=Path, help="a folder on the disk to measure")
    options = parser.parse_args()
    unknown = set(options.names) - set(NAMES)
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}")
    report = Report()
    print(HEADER)
    folder = Path(tempfile.mkdtemp(prefix="bench-spark-", dir=options.data))
    try:
        with world(report, folder, options.scale) as made:
            for name in options.names or NAMES:
                importlib.import_module(f"benchmarks.spark.{name}").run(made)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        report.save(options.json)
    print(f"saved as {options.json}")


if __name__ == "__main__":
    main()
