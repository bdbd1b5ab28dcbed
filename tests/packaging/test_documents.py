"""What the documents point to is there: links, their anchors, and files named in backticks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("deploy/**/*.md")])
LINK = re.compile(r"\]\(([^)\s]+)\)")
CODE_BLOCK = re.compile(r"^[ ]*```.*?^[ ]*```", re.S | re.M)
FILE = re.compile(r"`([\w./-]+/[\w.-]+\.(?:py|toml|json|yml|md|proto|sh))`")
ROOTS = [ROOT, ROOT / "streamlog", ROOT / "docs"]
"""A file is named from the top, or from the package's folder."""
MADE = ("bench-results/",)
"""What a command writes is not there before."""


def _anchor(heading: str) -> str:
    """As GitHub makes it of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def _anchors(document: Path) -> set[str]:
    text = CODE_BLOCK.sub("", document.read_text())
    return {_anchor(one) for one in re.findall(r"^#+ (.*)$", text, re.M)}


def _broken(document: Path) -> Iterator[str]:
    text = CODE_BLOCK.sub("", document.read_text())
    for link in LINK.findall(text):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = (document.parent / name) if name else document
        if not target.exists() or (anchor and anchor not in _anchors(target)):
            yield link
    for name in FILE.findall(text):
        if not name.startswith(MADE) and not any((root / name).exists() for root in ROOTS):
            yield name


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_a_document_points_to_is_there(document: Path) -> None:
    assert list(_broken(document)) == []


def test_a_broken_pointer_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# One two\n[a](b.md) [c](#one-two) [d](#three) `e/f.py`\n```\n[g](h)\n```\n")
    assert list(_broken(page)) == ["b.md", "#three", "e/f.py"]
