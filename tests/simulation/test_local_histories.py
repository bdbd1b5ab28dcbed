"""Seeded histories of topics in local files: crashes within disk accesses, torn writes."""

from __future__ import annotations

import pytest

from streamlog.testing.simulation.local.history import UNIFIED_PLAN, run_local_history

SEEDS = 50
CHUNK = 10
QUICK = 10
CHUNKS = [
    pytest.param(first, marks=[pytest.mark.slow] if first >= QUICK else [])
    for first in range(0, SEEDS, CHUNK)
]


@pytest.mark.parametrize("first", CHUNKS)
def test_every_promise_of_a_topic_in_local_files_holds(first: int) -> None:
    reports = [run_local_history(seed, keep_trace=False) for seed in range(first, first + CHUNK)]
    for report in reports:
        assert report.operations >= UNIFIED_PLAN.operations_min
        assert report.fault_count >= UNIFIED_PLAN.faults_min
        assert report.crashes >= UNIFIED_PLAN.crashes_min
    faults = {kind for report in reports for kind in report.faults}
    assert faults >= {"disk-full", "disk-io error", "disk-slow", "power-cut", "torn-write", "pause"}
    kinds = {kind for report in reports for kind in report.by_kind}
    assert kinds >= {"produce", "consume", "read committed", "needless resend", "look up time"}
    assert kinds >= {"transactional produce", "committed", "aborted", "refused produce"}
    assert kinds >= {"delete records", "roll", "alter topic", "producer epoch", "cleaned away"}


def test_a_seed_of_local_files_replays_identically() -> None:
    first, second = run_local_history(3), run_local_history(3)
    assert first.trace == second.trace
    assert len(first.trace) > 50
