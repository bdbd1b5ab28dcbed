"""Seeded histories of the real engine: crashes, torn writes, lost answers, outages, zombies."""

from __future__ import annotations

import pytest

from streamlog.testing.simulation.__main__ import mode_of
from streamlog.testing.simulation.history import run_history

SEEDS = 300
CHUNK = 10


QUICK = 60
CHUNKS = [
    pytest.param(first, marks=[pytest.mark.slow] if first >= QUICK else [])
    for first in range(0, SEEDS, CHUNK)
]


@pytest.mark.parametrize("first", CHUNKS)
def test_every_promise_holds(first: int) -> None:
    reports = [run_history(seed, mode_of(seed)) for seed in range(first, first + CHUNK)]
    # One history may be all outage; not ten.
    assert sum(report.operations for report in reports) > 100 * CHUNK


@pytest.mark.parametrize("seed", [1, 2])
def test_a_seed_replays_identically(seed: int) -> None:
    first = run_history(seed, mode_of(seed))
    second = run_history(seed, mode_of(seed))
    assert first.trace == second.trace
    assert len(first.trace) > 100


def test_histories_have_faults_and_work() -> None:
    reports = [run_history(seed, mode_of(seed)) for seed in range(1000, 1010)]
    faults: dict[str, int] = {}
    for report in reports:
        for kind, count in report.faults.items():
            faults[kind] = faults.get(kind, 0) + count
    for kind in ("store-refused", "store-lost", "store-late", "kv-refused", "kv-lost", "kv-late"):
        assert faults.get(kind, 0) > 0, faults
    assert faults["crash"] >= 10
    assert sum(report.by_kind.get("produce", 0) for report in reports) > 100
    assert sum(report.by_kind.get("append", 0) for report in reports) > 100
