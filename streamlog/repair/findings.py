"""The findings of fsck and recover: each has a kind, a severity, a place and advice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import Any

FINDINGS_MAX = 10_000
"""Findings of one severity that a report keeps; all are counted."""
SHOWN_RANGES = 3

Progress = Callable[[str, int, int], None]
"""Called with the step's name, how much of it is done, and how much there is (0: unknown)."""


def no_progress(what: str, done: int, total: int) -> None:
    """For callers that show no progress."""


class Severity(IntEnum):
    """NOTE: goes away by itself. WARNING: waste, or an oddity. ERROR: data or metadata is wrong."""

    NOTE = 1
    WARNING = 2
    ERROR = 3


class FindingKind(StrEnum):
    METADATA_UNREADABLE = "metadata-unreadable"
    KEY_UNREADABLE = "key-unreadable"
    KEY_UNKNOWN = "key-unknown"
    KEY_MISMATCH = "key-mismatch"
    STREAM_RANGES = "stream-ranges"
    OBJECT_MISSING = "object-missing"
    OBJECT_WRONG = "object-wrong"
    OBJECT_CORRUPT = "object-corrupt"
    OBJECT_COUNT = "object-count"
    OBJECT_FOREIGN = "object-foreign"
    OBJECT_NEWER = "object-newer-than-metadata"
    ORPHAN = "orphan"
    ORPHAN_DUE = "orphan-due"
    UPLOAD_UNDER_WAY = "upload-under-way"
    FOREIGN_KEY = "foreign-key"
    CLUSTER_FILE = "cluster-file"
    CHECKPOINT_STRAY = "checkpoint-stray"
    CHECKPOINT_CORRUPT = "checkpoint-corrupt"
    CHECKPOINT_TRAILER = "checkpoint-trailer"
    TOPIC = "topic"
    STAGED = "staged"
    UNACKNOWLEDGED_TAIL = "unacknowledged-tail"
    TRIMMED = "trimmed"


@dataclass(frozen=True, slots=True)
class Range:
    """Offsets start to end (exclusive) of a stream."""

    stream_id: int
    start: int
    end: int

    def __str__(self) -> str:
        return f"stream {self.stream_id} offsets {self.start} to {self.end}"


@dataclass(frozen=True, slots=True)
class Finding:
    """`key`: in the object store, or in the metadata as text. `lost`: unreadable offsets."""

    kind: FindingKind
    severity: Severity
    detail: str
    advice: str = ""
    key: str = ""
    object_id: int | None = None
    stream_id: int | None = None
    lost: tuple[Range, ...] = ()

    def description(self) -> dict[str, Any]:
        """The finding for JSON, without empty fields."""
        fields: dict[str, Any] = {
            "kind": str(self.kind),
            "severity": self.severity.name.lower(),
            "detail": self.detail,
        }
        for name in ("advice", "key", "object_id", "stream_id"):
            value = getattr(self, name)
            if value not in (None, ""):
                fields[name] = value
        if self.lost:
            fields["lost"] = [
                {"stream_id": r.stream_id, "start": r.start, "end": r.end} for r in self.lost
            ]
        return fields


@dataclass(slots=True)
class RepairReport:
    """`counts`: what was checked. `repaired`: one line for each repair."""

    cluster_id: str = ""
    revision: int = 0
    findings: list[Finding] = field(default_factory=list)
    by_kind: Counter[str] = field(default_factory=Counter)
    by_severity: Counter[Severity] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    repaired: list[str] = field(default_factory=list)

    def add(self, finding: Finding) -> None:
        self.by_kind[str(finding.kind)] += 1
        self.by_severity[finding.severity] += 1
        if self.by_severity[finding.severity] <= FINDINGS_MAX:
            self.findings.append(finding)

    @property
    def is_clean(self) -> bool:
        """Whether there are only notes."""
        return not (self.by_severity[Severity.WARNING] or self.by_severity[Severity.ERROR])

    @property
    def has_errors(self) -> bool:
        return self.by_severity[Severity.ERROR] > 0

    def of_kind(self, kind: FindingKind) -> list[Finding]:
        return [finding for finding in self.findings if finding.kind is kind]

    def description(self) -> dict[str, Any]:
        """The report for JSON."""
        return {
            "cluster_id": self.cluster_id,
            "revision": self.revision,
            "clean": self.is_clean,
            "counts": dict(self.counts),
            "findings_by_kind": dict(self.by_kind),
            "findings": [finding.description() for finding in self.findings],
            "repaired": self.repaired,
        }


def some_ranges(ranges: tuple[Range, ...]) -> str:
    """The first few ranges, and the number of the others."""
    shown = ", ".join(map(str, ranges[:SHOWN_RANGES]))
    more = len(ranges) - SHOWN_RANGES
    return shown + (f" and {more} more" if more > 0 else "")
