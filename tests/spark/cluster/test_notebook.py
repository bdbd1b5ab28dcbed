"""The notebooks of the documentation run as they stand, and print what is committed with them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from streamlog.demo.child import terminate
from tests.spark.jvm import QUICK_JVM
from tests.support.command import ROOT, environment

NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
BYTES_MAX = 100_000
TIMEOUT_S = 1700
END_S = 60


def test_notebooks_are_small() -> None:
    assert {path.name for path in NOTEBOOKS} == {"log-lines.ipynb"}
    assert all(path.stat().st_size < BYTES_MAX for path in NOTEBOOKS)


@pytest.mark.slow
@pytest.mark.xdist_group("spark")
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path, tmp_path: Path) -> None:
    target = tmp_path / path.name
    command = [sys.executable, "-m", "tests.spark.notebook", str(path), str(target)]
    quick = environment(**QUICK_JVM)
    running = subprocess.Popen(
        command, cwd=ROOT, env=quick, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        _, said = running.communicate(timeout=TIMEOUT_S)
    finally:
        terminate(running, END_S)
    assert running.returncode == 0, said.decode()[-4000:]
    assert target.read_text("utf-8") == path.read_text("utf-8")
