"""`python -m benchmarks [NAME[@minio] …] [--scale X] [--json FILE] [--data DIR]`."""

from __future__ import annotations

import importlib
import shutil
import tempfile
from pathlib import Path

from benchmarks.command import options
from benchmarks.report import HEADER, Report
from streamlog.runtime.allocator import collect_rarely, keep_large_blocks

NAMES = (
    "produce", "records", "fetch", "library", "streams", "objects", "metadata", "footprint",
    "lagging", "many_partitions", "codec", "tls", "tiered", "tiered_idle", "quotas", "cleaner",
    "unified", "busy_loop",
    "s3_append", "s3_latency", "s3_catchup", "s3_cost",
)  # fmt: skip
ON_S3 = ("s3_append", "s3_latency", "s3_catchup", "s3_cost", "tiered")
ON_MINIO = tuple(f"{name}@minio" for name in ON_S3)


def main() -> None:
    taken = options(
        "python -m benchmarks", __doc__, (*NAMES, *ON_MINIO), "bench-results/latest.json"
    )
    # As a node does; floors have them, too.
    keep_large_blocks()
    collect_rarely()
    report = Report()
    print(HEADER)
    for wanted in taken.names:
        name, _, server = wanted.partition("@")
        report.variant = server
        folder = Path(tempfile.mkdtemp(prefix=f"bench-{name}-", dir=taken.data))
        try:
            importlib.import_module(f"benchmarks.{name}").run(report, folder, scale=taken.scale)
        finally:
            shutil.rmtree(folder)
    report.save(taken.json)
    print(f"saved as {taken.json}")


if __name__ == "__main__":
    main()
