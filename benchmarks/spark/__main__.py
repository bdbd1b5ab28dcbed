"""`python -m benchmarks.spark [NAME …] [--scale X] [--json FILE] [--data DIR]`."""

from __future__ import annotations

import importlib
import shutil
import tempfile
from pathlib import Path

from benchmarks.command import options
from benchmarks.report import HEADER, Report
from benchmarks.spark.world import world

NAMES = ("reading", "writing", "commits", "latency", "tasks", "jobs")


def main() -> None:
    taken = options("python -m benchmarks.spark", __doc__, NAMES, "bench-results/spark.json")
    report = Report()
    print(HEADER)
    folder = Path(tempfile.mkdtemp(prefix="bench-spark-", dir=taken.data))
    try:
        with world(report, folder, taken.scale) as made:
            for name in taken.names:
                importlib.import_module(f"benchmarks.spark.{name}").run(made)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        report.save(taken.json)
    print(f"saved as {taken.json}")


if __name__ == "__main__":
    main()
