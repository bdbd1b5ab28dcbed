"""What the code imports is declared, and what is declared is explained in docs/dependencies.md.

An import that only another dependency brings works until that one drops it.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
FOLDERS = ("streamlog", "kvstore", "server", "pyspark_streamlog")
OURS = {"streamlog", "pyspark_streamlog"}

EXTRA_OF = {
    "streamlog/spark": ("spark", "iceberg"),
    "streamlog/cli/spark": ("spark", "iceberg"),
    "streamlog/objectstore/s3/obstore_requests.py": ("obstore",),
    "streamlog/testing": ("test",),
    "streamlog/tiered/storage/fsspec_files.py": ("fsspec",),
}
"""Modules that need an extra, by the beginning of their path; all others make do without."""
GOOGLE = {"google.protobuf": "protobuf", "google.rpc": "googleapis-common-protos"}
"""Several distributions share the namespace package `google`."""


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _names(requirements: list[str]) -> set[str]:
    """The distributions that requirements name, without ranges and extras."""
    return {_normal(re.split(r"[\[<>=!~; ]", one, maxsplit=1)[0]) for one in requirements}


def _modules(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (one.name for one in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module


@cache
def _imports(folders: tuple[str, ...] = FOLDERS) -> list[tuple[str, str]]:
    """(path, module) of each import of a package that is neither Python's nor ours."""
    return [
        (path.relative_to(ROOT).as_posix(), module)
        for folder in folders
        for path in sorted((ROOT / folder).rglob("*.py"))
        for module in _modules(path)
        if _is_of_others(module)
    ]


def _is_of_others(module: str) -> bool:
    top = module.partition(".")[0]
    return top not in sys.stdlib_module_names and top not in OURS


@cache
def _known() -> dict[str, list[str]]:
    """The distributions of each package that is installed: a read of all their file lists."""
    return dict(packages_distributions())


def _distributions(module: str) -> set[str]:
    for prefix, name in GOOGLE.items():
        if module == prefix or module.startswith(f"{prefix}."):
            return {name}
    return {_normal(one) for one in _known().get(module.partition(".")[0], ())}


def _extras(path: str) -> tuple[str, ...]:
    return next((extras for start, extras in EXTRA_OF.items() if path.startswith(start)), ())


def test_every_import_is_a_declared_dependency() -> None:
    extras = {name: _names(found) for name, found in PROJECT["optional-dependencies"].items()}
    core = _names(PROJECT["dependencies"])
    missing = set()
    for path, module in _imports():
        declared = core.union(*(extras[extra] for extra in _extras(path)))
        if not _distributions(module) & declared:
            missing.add(f"{path} imports {module}")
    assert missing == set()


def test_every_import_of_a_test_or_a_benchmark_is_declared() -> None:
    extras = PROJECT["optional-dependencies"]
    declared = _names(PROJECT["dependencies"] + extras["test"] + extras["kafka-clients"])
    missing = {
        f"{path} imports {module}"
        for path, module in _imports(("tests", "benchmarks", "examples"))
        if not _is_local(module) and not _distributions(module) & declared
    }
    assert missing == set()


def _is_local(module: str) -> bool:
    """A package of the tree, or a helper that lies beside a test."""
    top = module.partition(".")[0]
    return top in {"tests", "benchmarks"} or any((ROOT / "tests").glob(f"*/{top}.py"))


@pytest.mark.parametrize("name", sorted(_names(PROJECT["dependencies"])))
def test_every_dependency_is_imported(name: str) -> None:
    used = {one for _, module in _imports() for one in _distributions(module)}
    assert name in used


def test_the_page_explains_every_declared_dependency() -> None:
    page = (ROOT / "docs/dependencies.md").read_text()
    declared = _names(PROJECT["dependencies"])
    for requirements in PROJECT["optional-dependencies"].values():
        declared |= _names(requirements)
    words = {_normal(one) for one in re.findall(r"[A-Za-z][\w.-]*\w", page)}
    assert declared - words == set()
