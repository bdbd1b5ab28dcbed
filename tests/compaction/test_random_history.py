"""Random histories with compaction: streams, fsck and recovery agree with a model."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.compaction.history import RandomHistory


def run(seed: int, path: Path, *, in_process: bool = False, lives: int, steps: int) -> None:
    history = RandomHistory(seed, path / "data", in_process=in_process)
    asyncio.run(asyncio.wait_for(history.run(lives, steps), 300))
    assert history.committed > 3


def test_in_the_nodes_loop(tmp_path: Path) -> None:
    run(24, tmp_path, lives=2, steps=50)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 20027])
def test_longer(tmp_path: Path, seed: int) -> None:
    run(seed, tmp_path, lives=4, steps=60)


@pytest.mark.slow
def test_with_a_process_that_is_killed(tmp_path: Path) -> None:
    # Long: a worker that is killed again and again finishes few, fewer on a busy machine.
    run(5001, tmp_path, in_process=True, lives=5, steps=60)
