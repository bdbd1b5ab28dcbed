"""What was acknowledged stays, once, at its offset, whatever strikes."""

from __future__ import annotations

import os

import pytest

from tests.unified.histories import run_history

SEEDS = range(int(os.environ.get("STREAMLOG_TEST_HISTORIES", "300")))


@pytest.mark.parametrize("seed", SEEDS)
def test_what_was_acknowledged_stays_once_at_its_offset(seed: int) -> None:
    run_history(seed)
