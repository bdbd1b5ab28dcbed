"""7: start-up time and memory of `streamlog dev`, idle and under the load of benchmark 1."""

from __future__ import annotations

from pathlib import Path

from benchmarks.node import running_node
from benchmarks.produce import SETTINGS, WAL_BYTES_MAX, _encoded
from benchmarks.report import Report, Row, percentile


def run(report: Report, folder: Path, *, scale: float) -> None:
    """`scale` 1 writes ten times the WAL bound."""
    starts = []
    idle = 0.0
    for _ in range(5):
        with running_node(folder / "start", wal="disk") as node:
            starts.append(node.started_in_s)
            idle = node.rss_bytes() / 1e6
    report.add(
        Row(
            "footprint", "start-up until the banner", percentile(starts, 0.5), "s",
            aim=1.5, less_is_better=True,
        )
    )  # fmt: skip
    report.add(Row("footprint", "RSS idle", idle, "MB"))
    for wal in ("disk", "object"):
        with running_node(folder / f"load-{wal}", wal=wal, settings=SETTINGS) as node:
            _, facts = _encoded(node, 1 << 20, int(10 * WAL_BYTES_MAX * scale))
            peak = float(facts["rss_mb"])
            report.add(
                Row("footprint", f"RSS under load, {wal}", peak, "MB", aim=250, less_is_better=True)
            )
