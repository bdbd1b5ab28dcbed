"""Many random histories of logs in two tiers."""

from __future__ import annotations

import os

import pytest

from tests.tiered.histories import run_tiered_history

SEEDS = int(os.environ.get("STREAMLOG_TEST_HISTORIES", "60"))


@pytest.mark.parametrize("seed", range(SEEDS))
def test_nothing_acknowledged_is_lost_in_either_tier(seed: int) -> None:
    run_tiered_history(seed)
