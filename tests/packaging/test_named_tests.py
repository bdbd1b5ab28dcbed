"""Tests that documents name exist: each file, and each test in the file that it is named with.

A document says `tests/folder/test_file.py`: `test_one`, `test_two`. A name follows the file that
stands before it in the same cell or paragraph; conformance suites are named in words.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
SUITES = {
    "stream conformance": "streamlog/testing/stream_conformance.py",
    "log conformance": "streamlog/testing/logs/log_conformance.py",
    "store conformance": "streamlog/testing/store_conformance.py",
    "kv conformance": "streamlog/testing/kv_conformance.py",
}
RUNNERS = {
    "streamlog/testing/stream_conformance.py": {
        "tests/engine/streams/test_conformance.py": 4,
        "tests/log/test_media.py": 2,
    },
    "streamlog/testing/logs/log_conformance.py": {
        "tests/engine/streams/test_log_conformance.py": 4,
        "tests/log/test_media.py": 2,
    },
    "streamlog/testing/store_conformance.py": {"tests/objectstore/test_s3_conformance.py": 1},
}
"""Suites that docs/conformance.md names, the files that run them, and over how many media."""
WORD = re.compile(
    r"`(?P<file>(?:tests|testing|streamlog/testing)/[\w/]+\.py)(?:::(?P<of>\w+))?`"
    r"|`(?P<test>test_\w+)`"
    rf"|(?P<suite>{'|'.join(SUITES)})"
)


@cache
def _tests_of(path: Path) -> frozenset[str]:
    tree = ast.parse(path.read_text())
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return frozenset(
        node.name
        for node in ast.walk(tree)
        if isinstance(node, kinds) and node.name.startswith("test_")
    )


def _pieces(text: str) -> Iterator[str]:
    """Paragraphs, and cells of tables."""
    text = re.sub(r"^[ ]*```.*?^[ ]*```", "", text, flags=re.S | re.M)
    for line in text.splitlines():
        yield from re.split(r"(?<!\\)\|", line) if line.startswith("|") else [line]


def wrong_names(text: str) -> Iterator[str]:
    for piece in _pieces(text):
        at: list[Path] = []
        for found in WORD.finditer(piece):
            if found["file"] or found["suite"]:
                name = found["file"] or SUITES[found["suite"].lower()]
                paths = [ROOT / name, ROOT / "streamlog" / name]
                path = next((one for one in paths if one.exists()), None)
                if path is None:
                    yield name
                    continue
                # A suite and the files that run it are named together: a test is of any of them.
                is_runner = "as run by" in piece[: found.start()].rpartition(";")[2]
                at = [*at, path] if is_runner and at else [path]
                if found["of"] and found["of"] not in _tests_of(path):
                    yield f"{name}::{found['of']}"
            elif not any(found["test"] in _tests_of(path) for path in at):
                where = ", ".join(str(path.relative_to(ROOT)) for path in at) or "no file"
                yield f"{where}: {found['test']}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_test_that_a_document_names_exists(document: Path) -> None:
    assert list(wrong_names(document.read_text())) == []


def test_every_file_of_tests_that_code_names_exists() -> None:
    """In the Makefile, in CI and in the product: for one, a mutant names the test that finds it."""
    code = [ROOT / "Makefile", ROOT / "pyproject.toml", *(ROOT / ".ci").iterdir()]
    for folder in ("streamlog", "kvstore", "server", "benchmarks", "examples", "deploy"):
        code += [path for path in (ROOT / folder).rglob("*") if path.suffix in (".py", ".md")]
    wrong = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in code
        if path.is_file() and "__pycache__" not in path.parts
        for name in re.findall(r"\btests/[\w/]+\.(?:py|txt)", path.read_text(errors="replace"))
        if not (ROOT / name).exists()
    ]
    assert not wrong, wrong


def test_a_wrong_name_is_found() -> None:
    page = (
        "| `tests/cli/test_help.py`: `test_h` | stream conformance: `test_trim`, `test_x` |\n\n"
        "`tests/none.py` `test_y` `tests/cli/test_help.py::test_z`\n"
    )
    assert list(wrong_names(page)) == [
        "tests/cli/test_help.py: test_h",
        "streamlog/testing/stream_conformance.py: test_x",
        "tests/none.py",
        "no file: test_y",
        "tests/cli/test_help.py::test_z",
    ]


def _classes(path: Path) -> dict[str, list[str]]:
    """Classes of a file with the names of their bases."""
    return {
        node.name: [ast.unparse(base) for base in node.bases]
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef)
    }


@pytest.mark.parametrize("suite", RUNNERS)
def test_a_suite_runs_on_what_a_document_says(suite: str) -> None:
    """Each runner has test classes that derive from the suite's."""
    (base,) = (name for name in _classes(ROOT / suite) if name.endswith("Conformance"))
    for runner, count in RUNNERS[suite].items():
        classes = _classes(ROOT / runner)
        suites = {base} | {name for name, bases in classes.items() if base in bases}
        running = [
            name
            for name, bases in classes.items()
            if name.startswith("Test") and suites & {name, *bases}
        ]
        assert len(running) >= count, f"{runner} runs {suite} {len(running)} times"
