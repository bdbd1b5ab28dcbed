"""Start-up time and memory of `streamlog dev`, idle and under the load of `produce`."""

from __future__ import annotations

import threading
from pathlib import Path

from benchmarks.node import RunningNode, running_node
from benchmarks.produce import SETTINGS, WAL_BYTES_MAX, EncodedLoad
from benchmarks.report import Report, Row, percentile


class PeakRss:
    """The highest resident memory of a node, looked at 20 times a second."""

    def __init__(self, node: RunningNode) -> None:
        self._node = node
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self.peak_bytes = 0

    def _watch(self) -> None:
        while not self._ended.wait(0.05):
            self.peak_bytes = max(self.peak_bytes, self._node.rss_bytes())

    def __enter__(self) -> PeakRss:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()


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
            load = EncodedLoad(node)
            peak = 0.0
            for size in (1 << 20, 128 << 10):
                batches = load.batches(f"load-{size}", size, int(10 * WAL_BYTES_MAX * scale))
                with PeakRss(node) as measured:
                    load.send(batches, size)
                peak = max(peak, measured.peak_bytes / 1e6)
            report.add(
                Row("footprint", f"RSS under load, {wal}", peak, "MB", aim=250, less_is_better=True)
            )
