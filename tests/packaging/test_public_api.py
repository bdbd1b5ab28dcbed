"""docs/api.md lists all that users may import, and nothing that is not there."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "api.md"
Name = tuple[str, str]

_ROW = re.compile(r"^\| `((?:streamlog|pyspark_streamlog)[\w.]*)` \| (.*) \| [\w ]+ \|$", re.M)
_FROM = re.compile(r"\bfrom (streamlog[\w.]*) import (?:\(([^)]*)\)|([\w, ]+))")
_IMPORT = re.compile(r"^\s*import (streamlog[\w.]*)", re.M)
_RFCS = ROOT / "docs" / "rfcs"

LIGHT_PACKAGES = (
    "streamlog",
    "streamlog.model",
    "streamlog.runtime",
    "streamlog.log",
    "streamlog.testing",
)


def listed() -> set[Name]:
    """(module, name) of each row of the page."""
    return {
        (module, name)
        for module, cell in _ROW.findall(PAGE.read_text())
        for name in re.findall(r"`(\w+)`", cell)
    }


def imports_of_text(text: str) -> set[Name]:
    """What a document imports, in code blocks and in sentences; name "": the module itself."""
    names = {(module, "") for module in _IMPORT.findall(text)}
    for module, several, one_line in _FROM.findall(text):
        cells = (several or one_line).split(",")
        names |= {(module, cell.split()[0]) for cell in cells if cell.strip()}
    return names


def imports_of_code(source: str) -> set[Name]:
    names: set[Name] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("streamlog"):
            names |= {(str(node.module), alias.name) for alias in node.names}
        elif isinstance(node, ast.Import):
            names |= {(a.name, "") for a in node.names if a.name.startswith("streamlog")}
    return names


def imports_of_notebook(path: Path) -> set[Name]:
    cells = json.loads(path.read_text())["cells"]
    return set[Name]().union(*(imports_of_text("".join(cell["source"])) for cell in cells))


def shown_imports() -> Iterator[tuple[Path, set[Name]]]:
    """Each file that shows users how to import, and what it imports."""
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("deploy/**/*.md")]
    for path in pages:
        if not path.is_relative_to(_RFCS):
            yield path, imports_of_text(path.read_text())
    for path in ROOT.glob("examples/**/*.py"):
        yield path, imports_of_code(path.read_text())
    for path in ROOT.glob("docs/**/*.ipynb"):
        yield path, imports_of_notebook(path)


def test_documents_and_examples_import_only_listed_names() -> None:
    allowed = listed() | {(module, "") for module, _ in listed()}
    shown = list(shown_imports())
    assert sum(len(names) for _, names in shown) > 30
    unlisted = {
        f"{path.relative_to(ROOT)}: {module} {name}"
        for path, names in shown
        for module, name in names - allowed
    }
    assert not unlisted


def test_imports_are_found_in_sentences_blocks_and_code() -> None:
    text = "Write `from streamlog.client import KV, Admin`.\n\n    import streamlog\n"
    assert imports_of_text(text) == {
        ("streamlog.client", "KV"),
        ("streamlog.client", "Admin"),
        ("streamlog", ""),
    }
    code = (
        "from streamlog.errors import (\n    Closed,\n    Invalid as No,\n)\nimport streamlog.x\n"
    )
    expected = {
        ("streamlog.errors", "Closed"),
        ("streamlog.errors", "Invalid"),
        ("streamlog.x", ""),
    }
    assert imports_of_code(code) == imports_of_text(code) == expected


@pytest.mark.parametrize("module", sorted({module for module, _ in listed()}))
def test_listed_names_can_be_imported(module: str) -> None:
    if "spark" in module:
        pytest.importorskip("pyspark")
    names = {name for listed_module, name in listed() if listed_module == module}
    assert names
    for name in names:
        if not hasattr(import_module(module), name):
            import_module(f"{module}.{name}")


@pytest.mark.parametrize("package", [*LIGHT_PACKAGES, "streamlog.client", "streamlog.client.aio"])
def test_a_package_offers_what_is_listed_for_it(package: str) -> None:
    offered = set(import_module(package).__all__)
    assert {name for module, name in listed() if module == package} == offered


@pytest.mark.parametrize("package", LIGHT_PACKAGES)
def test_a_package_is_light_to_import(package: str) -> None:
    """Importing a package loads none of the modules that define its names."""
    code = f"import sys, {package}; print(*sorted(m for m in sys.modules if m[:9] == 'streamlog'))"
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    expected = {"streamlog", package}
    if package != "streamlog":
        expected |= {"streamlog.runtime", "streamlog.runtime.exports"}
    assert set(run.stdout.split()) == expected
