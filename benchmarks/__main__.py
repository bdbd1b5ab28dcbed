"""`python -m benchmarks [NAME[@minio] …] [--scale X] [--json FILE] [--data DIR]`."""

from __future__ import annotations

import argparse
import importlib
import shutil
import tempfile
from pathlib import Path

from benchmarks.report import HEADER, Report

NAMES = (
    "produce", "records", "fetch", "library", "streams", "objects", "metadata", "footprint",
    "lagging", "codec", "s3_append", "s3_latency", "s3_catchup", "s3_cost",
)  # fmt: skip
ON_S3 = ("s3_append", "s3_latency", "s3_catchup", "s3_cost")
ON_MINIO = tuple(f"{name}@minio" for name in ON_S3)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    known = (*NAMES, *ON_MINIO)
    parser.add_argument("names", nargs="*", help=f"some of {', '.join(known)}; all by default")
    parser.add_argument("--scale", type=float, default=1.0, help="0.1 is a quick look")
    parser.add_argument("--json", type=Path, default=Path("bench-results/latest.json"))
    parser.add_argument("--data", type=Path, help="a folder on the disk to measure")
    options = parser.parse_args()
    unknown = set(options.names) - set(known)
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    report = Report()
    print(HEADER)
    for wanted in options.names or known:
        name, _, server = wanted.partition("@")
        report.variant = server
        folder = Path(tempfile.mkdtemp(prefix=f"bench-{name}-", dir=options.data))
        try:
            importlib.import_module(f"benchmarks.{name}").run(report, folder, scale=options.scale)
        finally:
            shutil.rmtree(folder)
    report.save(options.json)
    print(f"saved as {options.json}")


if __name__ == "__main__":
    main()
