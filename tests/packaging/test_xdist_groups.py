"""Tests that share a group run in one worker, as those need that share brokers or a Spark."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

FILE = """
import os
import pytest

@pytest.mark.xdist_group("shared")
@pytest.mark.parametrize("number", range(3))
def test(number):
    with open({workers!r}, "a") as workers:
        workers.write(os.environ["PYTEST_XDIST_WORKER"] + "\\n")
"""


def test_a_group_has_one_worker(tmp_path: Path) -> None:
    workers = tmp_path / "workers"
    for name in ("test_a.py", "test_b.py"):
        (tmp_path / name).write_text(FILE.format(workers=str(workers)))
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "xdist", "-n", "2", "--dist", "loadgroup"],
        cwd=tmp_path,
        env=kept | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ran.returncode == 0, ran.stdout
    lines = workers.read_text().splitlines()
    assert len(lines) == 6
    assert len(set(lines)) == 1
