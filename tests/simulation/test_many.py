"""Many histories in several processes: the summary, and a worker that dies."""

from __future__ import annotations

import os
import signal

from streamlog.testing.simulation.history import Report
from streamlog.testing.simulation.many import SeedOutcome, Task, Total, outcomes, run_one


def dies_at_two(task: Task) -> SeedOutcome:
    seed = task[0]
    if seed == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return SeedOutcome(seed, Report(seed, "disk"))


def test_a_worker_that_dies_fails_its_seed_alone() -> None:
    ended = [
        outcome for outcome in outcomes(range(4), None, 2, work=dies_at_two) if outcome is not None
    ]
    assert sorted(outcome.seed for outcome in ended) == [0, 1, 2, 3]
    (failed,) = (outcome for outcome in ended if outcome.report is None)
    assert failed.seed == 2
    assert "died with exit code -9" in failed.failure


def test_the_summary_adds_up_histories() -> None:
    outcome = run_one((1, None, False))
    assert outcome.report is not None
    total = Total()
    total.seeds = 1
    total.add(outcome.report)
    summary = total.as_dict(2.0)
    assert summary["seeds_per_s"] == 0.5
    assert summary["operations"] == outcome.report.operations == summary["operations_min"]
    assert summary["operations_by_kind"] == outcome.report.by_kind
    assert summary["faults_by_kind"] == outcome.report.faults
    assert summary["faults"] == outcome.report.fault_count
    assert summary["failed"] == []
