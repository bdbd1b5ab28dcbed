"""`python -m benchmarks.page FILE.json … [--into PAGE --under HEADING]`: runs as Markdown tables.

docs/benchmarks.md is made with it, so that its figures are those of the files. With `--into` the
tables take the place of what stands under the heading, down to the next one.
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
AIM = "aim"
"""The benchmark of rows that stand for aims."""
AIM_HEADING = (
    "| aim | figure (least–most of the rounds) | aim | | beside it |\n|---|---|---|---|---|"
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


def number(value: float | None) -> str:
    """Three or four digits that count."""
    if value is None or value != value:
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


def aim_line(row: dict[str, Any]) -> str:
    """A row that stands for an aim, with its verdict in a word."""
    facts = dict(row["facts"])
    value = f"{number(row['value'])} {row['unit']}"
    if {"least", "most"} <= facts.keys():
        value += f" ({number(facts.pop('least'))}–{number(facts.pop('most'))})"
    aim = f"{'≤' if row['less_is_better'] else '≥'} {number(row['aim'])}"
    verdict = {"reached": "reached", "short": "**not reached**"}.get(row["verdict"], "not measured")
    beside = ", ".join(f"{named(name)} {number(fact)}" for name, fact in facts.items())
    return f"| {row['case']} | {value} | {aim} | {verdict} | {beside} |"


def table(files: Sequence[Path]) -> str:
    """One table for the aims, if the files have rows of them, and one for all other rows."""
    runs = [json.loads(file.read_text()) for file in files]
    rows = [row for run in runs for row in run["rows"]]
    aims = [row for row in rows if row["benchmark"] == AIM]
    others = [HEADING, *(line(row) for row in rows if row["benchmark"] != AIM)]
    when = _measured(runs)
    tables = [[AIM_HEADING, *map(aim_line, aims)], others] if aims else [others]
    notes = [f"- {note}" for run in runs for note in run["notes"]] if when else []
    paragraphs = ["\n".join(lines) for lines in (*tables, notes) if lines]
    return "\n\n".join(
        f"{when}\n\n{text}" if when and text[0] == "|" else text for text in paragraphs
    )


def _measured(runs: Sequence[dict[str, Any]]) -> str:
    """The sentence that a table of figures begins with; empty for files that do not say."""
    found = {
        (run["measured"]["date"], run["measured"]["commit"]) for run in runs if "measured" in run
    }
    if len(found) != 1:
        return ""
    [(date, commit)] = found
    return f"Measured on {date} at `{commit}`."


def put_under(page: str, heading: str, text: str) -> str:
    """The page, with `text` in place of all that stood between the heading and the next one.

    Errors: ValueError, if the page does not have the heading once.
    """
    lines = page.splitlines()
    if lines.count(heading) != 1:
        raise ValueError(f"the page has the line {heading!r} {lines.count(heading)} times")
    at = lines.index(heading)
    rest = lines[at + 1 :]
    end = next((number for number, one in enumerate(rest) if one.startswith("#")), len(rest))
    after = ["", *rest[end:]] if rest[end:] else []
    return "\n".join([*lines[: at + 1], text, *after]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.page", description=__doc__)
    parser.add_argument("files", nargs="+", type=Path, help="what --json wrote")
    parser.add_argument("--into", type=Path, help="a page that has the heading of --under")
    parser.add_argument("--under", help="such as '### Kafka, recorded'")
    taken = parser.parse_args()
    if (taken.into is None) != (taken.under is None):
        parser.error("give --into and --under together")
    text = table(taken.files)
    if taken.into is None:
        print(text)
    else:
        taken.into.write_text(put_under(taken.into.read_text(), taken.under, text))


if __name__ == "__main__":
    main()
