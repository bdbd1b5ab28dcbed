"""The sink on a standalone master with two workers: tasks are retried and have speculative twins,
which local mode does not do.
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from streamlog.client.staging import StagedWriter
from tests.spark.reading import consumed
from tests.spark.retrying_job import FAILS, IS_SLOW
from tests.spark.standalone import ROOT, environment, standalone
from tests.support.node import NodeProcess

ROWS = 4000


@pytest.mark.xdist_group("spark")
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_rows_of_retried_and_speculative_tasks_are_there_once(tmp_path: Path) -> None:
    attempts = tmp_path / "attempts"
    attempts.mkdir()
    with NodeProcess(tmp_path / "data") as node, standalone(tmp_path) as master:
        ran = subprocess.run(
            [
                *(sys.executable, "-m", "tests.spark.retrying_job", master, node.server),
                *("t", str(ROWS), str(attempts)),
            ],
            cwd=ROOT,
            env=environment(),
            capture_output=True,
            text=True,
            timeout=800,
            check=False,
        )
        assert ran.returncode == 0, ran.stderr[-4000:]
        made = {path.name for path in attempts.iterdir()}
        assert made >= {f"{FAILS}-0", f"{FAILS}-1", f"{IS_SLOW}-0", f"{IS_SLOW}-1"}
        rows = consumed(node.server, "t", 1)
        assert Counter(int(row[5]) for row in rows) == Counter(range(ROWS))
        with StagedWriter(node.server, "retried") as writer:
            assert writer.status().last_epoch == 0
