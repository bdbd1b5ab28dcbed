"""`python -m benchmarks.page FILE.json …`: the rows of runs as a Markdown table.

docs/benchmarks.md is made with it, so that its figures are those of the files.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HEADING = (
    "| row | value | floor | ratio (least–most of the rounds) | aim | beside it |\n"
    "|---|---|---|---|---|---|"
)
WORDS = {
    "cpu": "CPU", "gets": "GETs", "kib": "KiB", "kv": "KV", "mb": "MB", "mib": "MiB",
    "p50": "p50", "put": "PUT", "puts": "PUTs", "rss": "RSS", "s": "s", "wal": "WAL",
}  # fmt: skip
"""Words of a fact's name that are not written as they are in code."""

UNITS = (("mb_s", "MB/s"), ("cpu_s_per_gib", "cpu_s/GiB"), ("per_gib", "a_GiB"))


def named(fact: str) -> str:
    """The fact's name for people: `server_cpu_s_per_gib` is `server CPU s/GiB`."""
    for code, people in UNITS:
        fact = fact.replace(code, people)
    return " ".join(WORDS.get(word, word) for word in fact.split("_"))


def number(value: float) -> str:
    """Three or four digits that count."""
    if value != value:
        return "?"
    size = abs(value)
    if size >= 10_000_000:
        return f"{value / 1e6:,.1f} M"
    if size >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.1f}" if size >= 10 else f"{value:.2f}"


def line(row: dict[str, Any]) -> str:
    """The row as a line of the table. An aim that was missed stands in bold."""
    floor = "" if row["floor"] is None else f"{number(row['floor'])} {row['floor_name']}".strip()
    ratio = "" if row["ratio"] is None else f"{row['ratio']:.2f}"
    if row["ratios"]:
        ratio += f" ({min(row['ratios']):.2f}–{max(row['ratios']):.2f})"
    aim = ""
    if row["aim"] is not None:
        # With a floor the aim is one of the ratio, which is turned where less is better.
        sign = "≤" if row["less_is_better"] and row["floor"] is None else "≥"
        aim = f"{sign} {number(row['aim'])}"
        if row["verdict"] == "short":
            aim = f"**{aim}**"
    facts = ", ".join(f"{named(name)} {number(value)}" for name, value in row["facts"].items())
    value = f"{number(row['value'])} {row['unit']}".strip()
    cells = (f"{row['benchmark']}: {row['case']}", value, floor, ratio, aim, facts)
    return f"| {' | '.join(cells)} |"


def table(files: Sequence[Path]) -> str:
    rows = [row for file in files for row in json.loads(file.read_text())["rows"]]
    return "\n".join([HEADING, *map(line, rows)])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.page", description=__doc__)
    parser.add_argument("files", nargs="+", type=Path, help="what --json wrote")
    print(table(parser.parse_args().files))


if __name__ == "__main__":
    main()
