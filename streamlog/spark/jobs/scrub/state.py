"""The state of a scrub, as JSON in a file that is replaced whole.

    {"version": 1, "cluster_id": "…", "done_to": 123, "counts": {…}, "findings": [{…}]}

`done_to`: objects with this id and lower ids are done. Newer objects with a lower id are left to
the next scrub.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from streamlog.errors import Corrupt, ForeignCluster
from streamlog.repair.findings import Finding, FindingKind, Range, RepairReport, Severity
from streamlog.spark.jobs.files import replace_file

VERSION = 1


@dataclass(slots=True)
class ScrubState:
    """`path` None: in memory only."""

    path: Path | None
    done_to: int = -1
    report: RepairReport = field(default_factory=RepairReport)

    @staticmethod
    def read(path: Path | None, cluster_id: str) -> ScrubState:
        """A new state if there is no file. Errors: Corrupt, ForeignCluster."""
        state = ScrubState(path, report=RepairReport(cluster_id=cluster_id))
        if path is None or not path.exists():
            return state
        try:
            value = json.loads(path.read_bytes())
            is_this_version = value["version"] == VERSION
            state_cluster = str(value["cluster_id"])
            state.done_to = int(value["done_to"])
            state.report.counts.update(value["counts"])
            for finding in value["findings"]:
                state.report.add(_finding(finding))
        except (ValueError, KeyError, TypeError) as error:
            raise Corrupt(f"{path} is no state of a scrub: name another file") from error
        if not is_this_version:
            raise Corrupt(f"{path} was written by another version: name another file")
        if state_cluster != cluster_id:
            raise ForeignCluster(
                f"{path} is the state of a scrub of cluster {state_cluster}, this one is "
                f"{cluster_id}: name another file",
                store_cluster=state_cluster,
                meta_cluster=cluster_id,
            )
        return state

    def add(self, reports: Sequence[RepairReport], done_to: int) -> None:
        for report in reports:
            for finding in report.findings:
                self.report.add(finding)
            self.report.counts.update(report.counts)
        self.done_to = done_to

    def write(self) -> None:
        if self.path is None:
            return
        value = {
            "version": VERSION,
            "cluster_id": self.report.cluster_id,
            "done_to": self.done_to,
            "counts": dict(self.report.counts),
            "findings": [finding.description() for finding in self.report.findings],
        }
        replace_file(self.path, json.dumps(value).encode())

    def remove(self) -> None:
        if self.path is not None:
            self.path.unlink(missing_ok=True)


def _finding(value: dict[str, Any]) -> Finding:
    """The inverse of Finding.description."""
    lost = [Range(item["stream_id"], item["start"], item["end"]) for item in value.get("lost", ())]
    return Finding(
        FindingKind(value["kind"]),
        Severity[str(value["severity"]).upper()],
        str(value["detail"]),
        str(value.get("advice", "")),
        str(value.get("key", "")),
        value.get("object_id"),
        value.get("stream_id"),
        tuple(lost),
    )
