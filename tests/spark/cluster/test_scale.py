"""A plan over a million objects: memory and requests. For its time see docs/spark.md."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

OBJECTS = 1_000_000
MIB = 1 << 20


def _run(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.million_objects", *arguments],
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    )
    return done.stdout


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_million_objects_are_planned_in_little_memory_without_listing(tmp_path: Path) -> None:
    _run("fill", str(tmp_path), str(OBJECTS))
    found: dict[str, Any] = json.loads(_run("plan", str(tmp_path), str(OBJECTS)))
    assert found["objects"] == OBJECTS
    assert found["ranges"] >= 4 * OBJECTS
    assert found["memory_bytes"] <= 500 * MIB
    # Ranges and objects come in large GETs: on a remote store each takes its time.
    assert found["store_calls"].get("list", 0) == 0
    assert found["store_calls"]["get"] <= 200
