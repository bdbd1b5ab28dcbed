"""The library that makes the syncs of a benchmark's servers slower: which calls, and how many."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.kafka.slow_syncs import DELAY_MS, SlowSyncs, built

COMPILER = shutil.which("gcc")
CALLS = """
import os, sys, time

file = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
for call in (
    lambda: os.fsync(file),
    lambda: os.fdatasync(file),
    lambda: os.pwritev(file, [b"a"], 0, os.RWF_DSYNC),
    lambda: os.pwritev(file, [b"a"], 0, os.RWF_SYNC),
):
    began = time.monotonic()
    call()
    print(time.monotonic() - began)
os.pwritev(file, [b"a"], 0)
os.pwrite(file, b"a", 0)
try:
    os.fsync(9999)
except OSError as error:
    print(error.errno)
"""


@pytest.mark.skipif(COMPILER is None or sys.platform != "linux", reason="needs gcc, on Linux")
def test_each_sync_is_slower_and_counted_and_nothing_else(tmp_path: Path) -> None:
    assert COMPILER is not None
    slow = SlowSyncs(built(COMPILER, tmp_path), "a process")
    done = subprocess.run(
        [sys.executable, "-c", CALLS, str(tmp_path / "file")],
        env={**os.environ, **slow.environment},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=60,
    )
    *seconds, errno = done.stdout.split()
    assert len(seconds) == 4
    assert min(map(float, seconds)) >= DELAY_MS / 1000
    assert errno == "9"
    assert slow.syncs() == 5
