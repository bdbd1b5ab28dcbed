"""Many histories, on several processes; failures are printed as they come."""

from __future__ import annotations

import logging
import multiprocessing
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from streamlog.testing.simulation.history import Failed, Report, run_history
from streamlog.testing.simulation.world import WalMode

PROGRESS_S = 10.0
SEEDS_PER_PROCESS = 500
"""Then a worker process is replaced: what leaks does not add up."""


@dataclass
class Total:
    """What all histories did together."""

    seeds: int = 0
    virtual_s: float = 0.0
    operations_min: int = 0
    faults_min: int = 0
    by_kind: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    failed: list[int] = field(default_factory=list)

    @property
    def operations(self) -> int:
        return self.by_kind.total()

    def add(self, report: Report) -> None:
        self.operations_min = min(self.operations_min or report.operations, report.operations)
        self.faults_min = min(self.faults_min or report.fault_count, report.fault_count)
        self.by_kind.update(report.by_kind)
        self.faults.update(report.faults)
        self.virtual_s += report.virtual_s

    def as_dict(self, elapsed_s: float) -> dict[str, object]:
        return {
            "seeds": self.seeds,
            "failed": self.failed,
            "elapsed_s": round(elapsed_s, 1),
            "seeds_per_s": round(self.seeds / elapsed_s, 3),
            "simulated_hours": round(self.virtual_s / 3600, 3),
            "operations": self.operations,
            "operations_min": self.operations_min,
            "operations_by_kind": dict(self.by_kind.most_common()),
            "faults": self.faults.total(),
            "faults_min": self.faults_min,
            "faults_by_kind": dict(self.faults.most_common()),
        }


@dataclass(frozen=True)
class Outcome:
    """Of one seed: a report, or why it failed."""

    seed: int
    report: Report | None
    failure: str = ""


def run_one(task: tuple[int, WalMode | None, bool]) -> Outcome:
    """One history; whatever breaks is its outcome."""
    seed, wal, is_traced = task
    try:
        return Outcome(seed, run_history(seed, wal, keep_trace=is_traced))
    except Failed as failure:
        broken = "".join(traceback.format_exception(failure))
        return Outcome(seed, None, "\n".join(failure.tail) + "\n" + broken)


def outcomes(
    seeds: Sequence[int], wal: WalMode | None, jobs: int, *, is_traced: bool = False
) -> Iterator[Outcome]:
    """In any order with several processes, in the order of seeds with one."""
    tasks = [(seed, wal, is_traced) for seed in seeds]
    if jobs <= 1:
        yield from map(run_one, tasks)
        return
    context = multiprocessing.get_context("spawn")
    with context.Pool(
        jobs, logging.disable, (logging.CRITICAL,), maxtasksperchild=SEEDS_PER_PROCESS
    ) as pool:
        yield from pool.imap_unordered(run_one, tasks)


def run_many(
    seeds: Sequence[int], wal: WalMode | None, jobs: int, *, is_traced: bool = False
) -> Total:
    """Runs and counts; prints failures at once, and how far it is now and then."""
    total, began = Total(), time.perf_counter()
    told = began
    for outcome in outcomes(seeds, wal, jobs, is_traced=is_traced):
        total.seeds += 1
        if outcome.report is None:
            total.failed.append(outcome.seed)
            print(f"--- seed {outcome.seed} failed\n{outcome.failure}", flush=True)
        else:
            total.add(outcome.report)
            if is_traced:
                print("\n".join(outcome.report.trace))
        now = time.perf_counter()
        if now - told >= PROGRESS_S:
            told = now
            print(
                f"{total.seeds} of {len(seeds)} seeds, {len(total.failed)} failed, "
                f"{total.seeds / (now - began):.2f} seeds/s",
                flush=True,
            )
    return total
