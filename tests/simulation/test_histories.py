"""Seeded histories of the real engine: crashes, torn writes, lost answers, outages, zombies."""

from __future__ import annotations

import pytest

from streamlog.testing.simulation.history import (
    COMPACTED_PLAN,
    PLAN,
    TRANSACTIONS_PLAN,
    run_history,
)
from streamlog.testing.simulation.world.faults import REMOTE_KINDS

SEEDS = 300
CHUNK = 10
QUICK = 10
CHUNKS = [
    pytest.param(first, marks=[pytest.mark.slow] if first >= QUICK else [])
    for first in range(0, SEEDS, CHUNK)
]


@pytest.mark.parametrize("first", CHUNKS)
def test_every_promise_holds(first: int) -> None:
    reports = [run_history(seed, keep_trace=False) for seed in range(first, first + CHUNK)]
    for report in reports:
        assert report.operations >= PLAN.operations_min
        assert report.fault_count >= PLAN.faults_min
        assert report.crashes >= PLAN.crashes_min
    faults = {kind for report in reports for kind in report.faults}
    for kind in REMOTE_KINDS:
        assert {f"store-{kind}", f"kv-{kind}"} <= faults
    kinds = {kind for report in reports for kind in report.by_kind}
    assert kinds >= {"append", "conditional append", "produce", "consume", "fetch", "trim", "kv"}
    assert kinds >= {"open", "close", "create", "delete", "create topic", "delete topic", "start"}
    assert kinds >= {"take over", "delete records", "pinned read"}
    assert kinds >= {"transaction begun", "read committed", "transactional produce"}


def test_histories_of_transactions_alone_end_transactions_in_every_way() -> None:
    reports = [run_history(seed, plan=TRANSACTIONS_PLAN, keep_trace=False) for seed in range(8)]
    kinds = {kind for report in reports for kind in report.by_kind}
    assert kinds >= {"transaction committed", "transaction aborted", "transaction timed out"}
    assert kinds >= {"end repeated", "zombie instance", "read committed", "take over"}
    assert not kinds & {"append", "produce", "kv", "stage"}


def test_every_promise_of_a_compacted_topic_holds() -> None:
    reports = [run_history(seed, plan=COMPACTED_PLAN, keep_trace=False) for seed in range(8)]
    kinds = {kind for report in reports for kind in report.by_kind}
    assert kinds >= {"cleaned away", "read slices", "read committed", "look up time", "roll"}
    assert kinds >= {"committed", "aborted", "needless resend", "producer epoch", "take over"}
    assert sum(report.by_kind["cleaned away"] for report in reports) > 500
    faults = {kind for report in reports for kind in report.faults}
    assert faults >= {"crash", "power-cut", "store-lost", "store-late", "kv-lost", "clock-jump"}
    assert not kinds & {"append", "kv", "stage"}


@pytest.mark.parametrize("seed", [1, 2])
def test_a_seed_replays_identically(seed: int) -> None:
    first = run_history(seed)
    second = run_history(seed)
    assert first.trace == second.trace
    assert len(first.trace) > 100
