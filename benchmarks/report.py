"""Rows of figures: a table, JSON, and the ratio to the floor of the same run."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

FAILED = "failed"


@dataclass
class Row:
    """One measured figure. `ratio` = value / floor (floor / value where less is better).

    `value` is not a number where it could not be measured.
    """

    benchmark: str
    case: str
    value: float
    unit: str
    floor: float | None = None
    floor_name: str = ""
    aim: float | None = None
    """What `ratio` (or, without a floor, `value`) should reach."""
    less_is_better: bool = False
    facts: dict[str, float] = field(default_factory=dict)
    ratios: list[float] = field(default_factory=list)
    """Ratios of the rounds, if each has its own floor; their median counts."""
    is_reached: bool | None = None
    """The verdict, where more than `value` decides it; None: `value` does."""

    @property
    def ratio(self) -> float | None:
        if self.ratios:
            return median(self.ratios)
        if self.floor is None or not self.value:
            return None
        return self.floor / self.value if self.less_is_better else self.value / self.floor

    @property
    def verdict(self) -> str:
        if self.value != self.value:
            return FAILED
        if self.aim is None:
            return ""
        if self.is_reached is not None:
            reached = self.is_reached
        elif self.floor is not None and self.ratio is not None:
            reached = self.ratio >= self.aim
        else:
            reached = self.value <= self.aim if self.less_is_better else self.value >= self.aim
        return "reached" if reached else "short"


@dataclass
class Measured:
    """One case over all rounds, each with its own floor."""

    mb_s: list[float] = field(default_factory=list)
    ratios: list[float] = field(default_factory=list)
    facts: dict[str, list[float]] = field(default_factory=dict)

    def add(self, mb_s: float, floor_mb_s: float, facts: dict[str, float]) -> None:
        self.mb_s.append(mb_s)
        self.ratios.append(mb_s / floor_mb_s)
        for name, value in facts.items():
            self.facts.setdefault(name, []).append(value)

    def row(
        self, benchmark: str, case: str, floor: float, floor_name: str, aim: float | None
    ) -> Row:
        """The medians."""
        row = Row(benchmark, case, median(self.mb_s), "MB/s", floor, floor_name, aim)
        row.facts = {name: median(values) for name, values in self.facts.items()}
        row.ratios = self.ratios
        return row


class Report:
    """Collects rows and prints each at once."""

    def __init__(self, echo: Callable[[str], None] = print) -> None:
        self.rows: list[Row] = []
        self.notes: list[str] = []
        self._echo = echo
        self._measured = measured()
        """What runs from here on, whatever is committed meanwhile."""
        self.variant = ""
        """The server that the benchmark runs on; empty: its first choice."""

    def add(self, row: Row) -> None:
        if self.variant:
            row.benchmark += f"@{self.variant}"
        self.rows.append(row)
        self._echo(line(row))

    def note(self, text: str) -> None:
        """Prints a remark, such as why rows are missing."""
        self.notes.append(text)
        self._echo(f"note: {text}")

    def save(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        rows = [_as_json(row) for row in self.rows]
        machine = {
            "cores": os.cpu_count(),
            "python": sys.version.split()[0],
            "system": platform.platform(terse=True),
        }
        found = {"measured": self._measured, "machine": machine, "notes": self.notes, "rows": rows}
        path.write_text(json.dumps(found, indent=1) + "\n")


def measured() -> dict[str, str]:
    """The day, and the commit that was measured; empty outside a repository."""
    found = subprocess.run(
        ["git", "rev-parse", "--short=7", "HEAD"],
        cwd=Path(__file__).parent, capture_output=True, text=True, check=False,
    )  # fmt: skip
    today = datetime.now(UTC).date().isoformat()
    return {"date": today, "commit": found.stdout.strip()}


def _as_json(row: Row) -> dict[str, Any]:
    value = None if row.value != row.value else row.value
    return {**asdict(row), "value": value, "ratio": row.ratio, "verdict": row.verdict}


def line(row: Row) -> str:
    ratio = "" if row.ratio is None else f"{row.ratio:6.2f}"
    floor = "" if row.floor is None else f"{row.floor:12,.2f}"
    aim = "" if row.aim is None else f"{row.aim:10,.2f}"
    facts = "  ".join(f"{name} {value:,.2f}" for name, value in row.facts.items())
    if row.ratios:
        facts += f"  ratios {min(row.ratios):.2f}-{max(row.ratios):.2f} {row.floor_name}"
    return (
        f"{row.benchmark:10s} {row.case:50s} {row.value:14,.2f} {row.unit:10s}"
        f"{floor:>13s} {ratio:>6s} {aim:>10s} {row.verdict:8s}{facts}"
    )


HEADER = (
    f"{'benchmark':10s} {'case':50s} {'value':>14s} {'unit':10s}"
    f"{'floor':>13s} {'ratio':>6s} {'aim':>10s} {'':8s}facts"
)


def percentile(values: list[float], fraction: float) -> float:
    """The value below which `fraction` of the values lie; values need not be sorted."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * fraction))]
