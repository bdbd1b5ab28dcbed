"""Each table of figures in docs/benchmarks.md says when and at which commit it was measured."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

PAGE = (Path(__file__).resolve().parents[2] / "docs/benchmarks.md").read_text()
EXPLAINING = ("| name | what is measured", "| found by profiling")
"""Tables that explain rows or changes, and hold no figures of a run."""
MEASURED = re.compile(
    r"Measured on 20\d\d-\d\d-\d\d(?: (?:and|to) 20\d\d-\d\d-\d\d)? at `[0-9a-f]{7,12}`"
    r"(?: \(\d+ rows?\)(?:, `[0-9a-f]{7,12}` \(\d+ rows?\))*)?(?:: an older state)?\."
)


def _tables() -> Iterator[tuple[str, str]]:
    """(heading row, the paragraph before the table)."""
    paragraphs = PAGE.split("\n\n")
    for index, text in enumerate(paragraphs):
        lines = text.splitlines()
        at = next((number for number, line in enumerate(lines) if line.startswith("|")), None)
        if at is not None and not lines[at].startswith(EXPLAINING):
            yield lines[at], lines[at - 1] if at else paragraphs[index - 1]


@pytest.mark.parametrize(("heading", "before"), list(_tables()))
def test_a_table_of_figures_says_when_and_at_which_commit(heading: str, before: str) -> None:
    assert MEASURED.search(before), f"no 'Measured on DATE at `COMMIT`.' before {heading}"


def test_there_are_tables() -> None:
    assert len(list(_tables())) > 10
