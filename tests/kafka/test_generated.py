"""Generated code is what the jar says, and a change by hand is noticed without the jar."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.kafka_jars import clients_jar, storage_jar, transactions_jar

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("proto/kafka", "streamlog/kafka", "streamlog/runtime", "tests/kafka/shapes.json")
FILES = ("streamlog/__init__.py", "streamlog/errors.py")


def check(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(root / "proto/kafka/generate.py"), "--check", *arguments],
        capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.timeout(300)
def test_the_code_is_what_the_jars_definitions_say() -> None:
    jars = ("--jar", str(clients_jar()), "--transactions-jar", str(transactions_jar()))
    done = check(ROOT, *jars, "--storage-jar", str(storage_jar()))
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


@pytest.mark.parametrize(
    "changed",
    [
        "streamlog/kafka/messages/fetch_request.py",
        "streamlog/kafka/records/transaction_log_value.py",
        "proto/kafka/decoder.py",
        "tests/kafka/shapes.json",
    ],
)
def test_a_change_by_hand_is_noticed_without_the_jar(tmp_path: Path, changed: str) -> None:
    for part in PARTS:
        source, target = ROOT / part, tmp_path / part
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copyfile(source, target)
    for file in FILES:
        shutil.copyfile(ROOT / file, tmp_path / file)
    with (tmp_path / changed).open("a") as opened:
        opened.write("\n")
    done = check(tmp_path)
    assert done.returncode == 1, done.stderr
    assert "make kafka-messages" in done.stdout
