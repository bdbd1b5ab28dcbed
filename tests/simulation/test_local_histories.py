"""Seeded histories of topics in local files: crashes within disk accesses, torn writes."""

from __future__ import annotations

import pytest

from streamlog.testing.simulation.local.history import (
    TIERED_PLAN,
    TIERED_TOPIC_PLAN,
    UNIFIED_PLAN,
    LocalPlan,
    run_local_history,
)

SEEDS = 30
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


@pytest.mark.parametrize("first", CHUNKS)
def test_every_promise_of_a_topic_with_a_remote_tier_holds(first: int) -> None:
    seeds = range(first, first + CHUNK)
    reports = [run_local_history(seed, TIERED_PLAN, keep_trace=False) for seed in seeds]
    for report in reports:
        assert report.operations >= TIERED_PLAN.operations_min
        assert report.fault_count >= TIERED_PLAN.faults_min
        assert report.crashes >= TIERED_PLAN.crashes_min
    faults = {kind for report in reports for kind in report.faults}
    assert faults >= {"store-refused", "store-lost", "store-late", "kv-refused", "kv-lost"}
    assert faults >= {"zombie", "power-cut", "disk-full", "disk-io error"}
    kinds = {kind for report in reports for kind in report.by_kind}
    assert kinds >= {"produce", "consume", "read committed", "look up time", "delete records"}
    assert kinds >= {"committed", "aborted", "alter topic", "roll"}
    assert all(report.by_kind["copy read"] for report in reports)


def test_every_promise_of_a_tier_whose_metadata_are_in_a_topic_holds() -> None:
    reports = [run_local_history(seed, TIERED_TOPIC_PLAN, keep_trace=False) for seed in range(6)]
    faults = {kind for report in reports for kind in report.faults}
    assert faults >= {"store-lost", "store-late", "kv-lost", "power-cut", "zombie", "crash"}
    assert all(report.by_kind["copy read"] for report in reports)


@pytest.mark.parametrize(
    "plan",
    [UNIFIED_PLAN, TIERED_PLAN, TIERED_TOPIC_PLAN],
    ids=["unified", "tiered", "tiered-topic"],
)
def test_a_seed_of_local_files_replays_identically(plan: LocalPlan) -> None:
    first, second = run_local_history(3, plan), run_local_history(3, plan)
    assert first.trace == second.trace
    assert len(first.trace) > 50
