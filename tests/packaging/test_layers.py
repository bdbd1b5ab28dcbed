"""The import contracts see all packages, those behind symlinks too, and break when they should."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

LINT = "from importlinter.cli import lint_imports_command; lint_imports_command()"

VIOLATIONS = [
    ("kvstore/peek.py", "import streamlog.model.batch", "The KV store is self-contained"),
    ("kvstore/peek.py", "import streamlog.metadata", "Imports go down only"),
    ("streamlog/engine/peek.py", "import streamlog.server.config", "Imports go down only"),
    ("streamlog/wal/peek.py", "import streamlog.cache", "Imports go down only"),
    ("streamlog/log/peek.py", "import streamlog.objectstore.interface", "The log layer stands"),
    ("streamlog/client/peek.py", "import streamlog.format", "The client needs no engine"),
    ("streamlog/engine/peek.py", "import streamlog.v1.log_pb2", "Generated code is used"),
    ("server/peek.py", "import streamlog.testing", "Imports go down only"),
    ("server/services/peek.py", "import grpc", "Services know neither gRPC"),
    ("server/limits/peek.py", "import streamlog.v1.log_pb2", "Services know neither gRPC"),
    ("server/peek.py", "import streamlog.objectstore.local.store", "Only the wiring"),
]


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    copy = tmp_path_factory.mktemp("layers")
    for name in ("streamlog", "kvstore", "server"):
        shutil.copytree(
            ROOT / name, copy / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__")
        )
    shutil.copy(ROOT / "pyproject.toml", copy)
    return copy


def _check(tree: Path) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-c", LINT, "--no-logo", "--no-cache"],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(tree)},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def test_the_tree_keeps_its_layers(tree: Path) -> None:
    code, said = _check(tree)
    assert code == 0, said


@pytest.mark.parametrize(("path", "line", "contract"), VIOLATIONS)
def test_an_import_upwards_breaks_a_contract(
    tree: Path, path: str, line: str, contract: str
) -> None:
    (tree / path).write_text(line + "\n")
    try:
        code, said = _check(tree)
    finally:
        (tree / path).unlink()
    assert code == 1, said
    assert any(contract in row and "BROKEN" in row for row in said.splitlines()), said
