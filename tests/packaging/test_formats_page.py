"""docs/formats.md and tests/golden name each other: no format without bytes, no stray file."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests/golden"
PAGE = (ROOT / "docs/formats.md").read_text()
ELSEWHERE = ("the same", "Kafka's own")
"""Rows whose bytes a file of another row, or Kafka itself, pins."""


def _rows() -> Iterator[list[str]]:
    """The cells of each row of a table that has a column for golden files, which is the last."""
    has_golden = False
    for line in PAGE.splitlines():
        if not line.startswith("|"):
            has_golden = False
            continue
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if cells[-1].startswith("golden file"):
            has_golden = True
        elif has_golden and not line.startswith("|---"):
            yield cells


def test_every_format_has_golden_bytes() -> None:
    rows = list(_rows())
    assert len(rows) > 25
    without = [
        cells[0]
        for cells in rows
        if not re.search(r"`[\w.]+`", cells[-1]) and not cells[-1].startswith(ELSEWHERE)
    ]
    assert without == []


def test_every_golden_file_is_on_the_page_and_in_a_test() -> None:
    """Files in folders are bytes that other programs wrote, and have a page of their own."""
    named = {name for cells in _rows() for name in re.findall(r"`(\w+\.\w+)`", cells[-1])}
    there = {path.name for path in GOLDEN.iterdir() if path.is_file()}
    assert named - there == set()
    assert there - named == set()


def test_no_version_is_called_unsettled() -> None:
    assert "may still change" not in PAGE
