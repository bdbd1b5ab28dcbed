"""The demonstration itself, small, on real logs where they are and on generated ones."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LOGS = Path(os.environ.get("LOGS") or ROOT.parent / "shared" / "data" / "logs")


def _demo(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "streamlog.cli", "demo", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("wal", ["disk", "object"])
def test_lines_survive_a_kill(wal: str) -> None:
    logs = ("--logs", str(LOGS)) if LOGS.is_dir() else ("--seed", "3")
    done = _demo("--json", "--mib", "4", "--wal", wal, *logs)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    (run,) = report["runs"]
    assert report["good"] is True
    assert (run["wal"], run["duplicates"], run["lost"], run["difference"]) == (wal, 0, 0, "")
    assert run["size_bytes"] >= 4 << 20
    assert run["unacknowledged_records"] > 0
    assert run["objects"] > 0
    assert "kill -9 " in done.stderr


def test_generated_logs_and_the_table(tmp_path: Path) -> None:
    done = _demo("--mib", "1", "--wal", "disk", "--data", str(tmp_path / "data"))
    assert done.returncode == 0, done.stderr
    assert "every line came back once, in order, byte for byte" in done.stdout
    assert "Where to look next" in done.stdout
    again = _demo("--mib", "1", "--wal", "disk", "--data", str(tmp_path / "data"))
    assert again.returncode == 2
    assert "needs an empty folder" in again.stderr


def test_a_folder_without_lines_is_an_error(tmp_path: Path) -> None:
    done = _demo("--logs", str(tmp_path))
    assert done.returncode == 1
    assert "holds no file with a line" in done.stderr


def test_on_an_s3_server() -> None:
    done = _demo("--json", "--mib", "1", "--store", "s3", "--wal", "object", "--seed", "5")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    (run,) = report["runs"]
    assert report["good"] is True
    assert (run["duplicates"], run["lost"], run["difference"]) == (0, 0, "")
    assert run["objects"] > 0
    assert "starting an S3 server" in done.stderr
