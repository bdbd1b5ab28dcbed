"""What a scrub has done so far, as JSON in a file that is replaced whole.

    {"version": 1, "cluster_id": "…", "done_to": 123, "counts": {…}, "findings": [{…}]}

`done_to`: objects with this id and lower ones are done. Objects that came since with a lower id are
for the next scrub.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from streamlog.errors import Corrupt, ForeignCluster
from streamlog.repair.findings import Finding, Kind, Range, Report, Severity
from streamlog.spark.jobs.files import replace_file

VERSION = 1


@dataclass(slots=True)
class ScrubState:
    """`path` None: kept in memory alone."""

    path: Path | None
    done_to: int = -1
    report: Report = field(default_factory=Report)

    @staticmethod
    def read(path: Path | None, cluster_id: str) -> ScrubState:
        """New where there is no file. Errors: Corrupt, ForeignCluster."""
        state = ScrubState(path, report=Report(cluster_id=cluster_id))
        if path is None or not path.exists():
            return state
        try:
            found = json.loads(path.read_bytes())
            is_ours = found["version"] == VERSION
            known = str(found["cluster_id"])
            state.done_to = int(found["done_to"])
            state.report.counts.update(found["counts"])
            for facts in found["findings"]:
                state.report.add(_finding(facts))
        except (ValueError, KeyError, TypeError) as error:
            raise Corrupt(f"{path} is no state of a scrub: name another file") from error
        if not is_ours:
            raise Corrupt(f"{path} was written by another version: name another file")
        if known != cluster_id:
            raise ForeignCluster(
                f"{path} is the state of a scrub of cluster {known}, this one is {cluster_id}: "
                "name another file",
                store_cluster=known,
                meta_cluster=cluster_id,
            )
        return state

    def add(self, reports: Sequence[Report], done_to: int) -> None:
        for one in reports:
            for finding in one.findings:
                self.report.add(finding)
            self.report.counts.update(one.counts)
        self.done_to = done_to

    def write(self) -> None:
        if self.path is None:
            return
        value = {
            "version": VERSION,
            "cluster_id": self.report.cluster_id,
            "done_to": self.done_to,
            "counts": dict(self.report.counts),
            "findings": [one.description() for one in self.report.findings],
        }
        replace_file(self.path, json.dumps(value).encode())

    def remove(self) -> None:
        if self.path is not None:
            self.path.unlink(missing_ok=True)


def _finding(facts: dict[str, Any]) -> Finding:
    """The inverse of Finding.description."""
    lost = [Range(one["stream_id"], one["start"], one["end"]) for one in facts.get("lost", ())]
    return Finding(
        Kind(facts["kind"]),
        Severity[str(facts["severity"]).upper()],
        str(facts["detail"]),
        str(facts.get("advice", "")),
        str(facts.get("key", "")),
        facts.get("object_id"),
        facts.get("stream_id"),
        tuple(lost),
    )
