"""Rules for the tests themselves: what a test file imports, and what it touches."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
PRIVATE_MAX = 114
"""Private names of other classes and modules that tests touch. Lower it whenever fewer are left."""
PUBLIC = {"_replace", "_asdict", "_fields", "_make", "_exit", "_FENCED", "_PARTITION_EOF"}
"""Of named tuples, of `os`, and codes of confluent-kafka: their documents name them."""


@cache
def _files() -> dict[Path, ast.Module]:
    return {path: ast.parse(path.read_bytes()) for path in sorted(TESTS.rglob("*.py"))}


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in PUBLIC


def imported_test_files(tree: ast.Module) -> Iterator[str]:
    """Modules named test_* that a file imports, or imports names from."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        for name in names:
            if name.startswith("tests.") and any(p.startswith("test_") for p in name.split(".")):
                yield name


def private_names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and text of each private name that is not of the object's own class.

    Counted are attributes, imported names, and names that are patched.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and _is_private(node.attr):
            if not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")):
                yield node.lineno, ast.unparse(node)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if _is_private(alias.name):
                    yield node.lineno, f"{node.module}.{alias.name}"
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            patched = node.args[1] if node.func.attr == "setattr" and len(node.args) > 1 else None
            name = patched.value if isinstance(patched, ast.Constant) else None
            if isinstance(name, str) and _is_private(name):
                yield node.lineno, f"{ast.unparse(node.args[0])}.{name}"


def test_no_test_file_imports_from_another() -> None:
    """Helpers that files share belong to a module beside them, or to tests/support."""
    wrong = [
        f"{path.relative_to(TESTS)} imports {name}"
        for path, tree in _files().items()
        for name in imported_test_files(tree)
    ]
    assert not wrong, wrong


def test_every_folder_with_tests_is_a_package() -> None:
    """Else two files of one name are one module to pytest, and mypy does not find them."""
    folders = {path.parent for path in _files()}
    assert not [folder for folder in folders if not (folder / "__init__.py").exists()]


def test_tests_touch_fewer_and_fewer_private_names() -> None:
    """A test that reaches into a class breaks when nothing that a user sees has changed."""
    touched = [
        f"{path.relative_to(TESTS)}:{line} {name}"
        for path, tree in _files().items()
        for line, name in private_names(tree)
    ]
    assert len(touched) <= PRIVATE_MAX, "\n".join(touched)


def test_the_rules_see_what_they_are_about() -> None:
    tree = ast.parse(
        "from tests.engine.test_read import helper\n"
        "from tests.engine import harness, test_open\n"
        "from streamlog.codec import _native\n"
        "patch.setattr(folder, '_sync', None)\n"
        "row._replace(end=3)\n"
        "engine._cores.clear()\n"
        "self._count = 1\n"
    )
    assert list(imported_test_files(tree)) == [
        "tests.engine.test_read.helper",
        "tests.engine.test_open",
    ]
    assert sorted(name for _, name in private_names(tree)) == [
        "engine._cores",
        "folder._sync",
        "streamlog.codec._native",
    ]
