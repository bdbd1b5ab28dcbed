"""Many histories in several processes; failures are printed as they come."""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from multiprocessing.connection import Connection, wait
from typing import Any

from streamlog.testing.simulation.history import (
    PLAN,
    Failed,
    HistoryPlan,
    Report,
    run_history,
)
from streamlog.testing.simulation.local.history import LocalPlan, run_local_history
from streamlog.wal.config import WalMode

PROGRESS_S = 5.0
SEEDS_PER_PROCESS = 500
"""A worker process is replaced after so many seeds, so that leaks do not add up."""


@dataclass
class Total:
    """Sums over all histories."""

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
class SeedOutcome:
    """The report of one seed, or why it failed."""

    seed: int
    report: Report | None
    failure: str = ""


Task = tuple[int, WalMode | None, bool]
"""Seed, mode, whether its trace is kept."""
Work = Callable[[Task], SeedOutcome]


AnyPlan = HistoryPlan | LocalPlan


def run_planned(
    seed: int, wal: WalMode | None = None, plan: AnyPlan = PLAN, *, keep_trace: bool = True
) -> Report:
    """Runs the history of the seed, of the plan's kind. Raises Failed."""
    if isinstance(plan, LocalPlan):
        return run_local_history(seed, plan, keep_trace=keep_trace)
    return run_history(seed, wal, plan, keep_trace=keep_trace)


def run_one(task: Task, plan: AnyPlan = PLAN) -> SeedOutcome:
    """Runs one history; an error of any kind becomes its outcome."""
    seed, wal, is_traced = task
    try:
        return SeedOutcome(seed, run_planned(seed, wal, plan, keep_trace=is_traced))
    except Exception as failure:  # noqa: BLE001 - reported with its seed
        tail = failure.tail if isinstance(failure, Failed) else []
        broken = "".join(traceback.format_exception(failure))
        return SeedOutcome(seed, None, "\n".join(tail) + "\n" + broken)


class _Worker:
    """A process that runs one seed at a time."""

    def __init__(self, work: Work) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, work), daemon=True)
        self._process.start()
        theirs.close()
        self._task: Task | None = None
        self._seeds = 0

    @property
    def is_worn_out(self) -> bool:
        return self._seeds >= SEEDS_PER_PROCESS

    def start(self, task: Task) -> None:
        self._task = task
        self._seeds += 1
        # `outcome` finds a worker that died while idle.
        with contextlib.suppress(BrokenPipeError):
            self.connection.send(task)

    def outcome(self) -> tuple[SeedOutcome, bool]:
        """The outcome of the seed under way, and whether the process still lives."""
        assert self._task is not None
        try:
            outcome: SeedOutcome = self.connection.recv()
        except (EOFError, ConnectionResetError):
            self._process.join()
            why = f"the worker process died with exit code {self._process.exitcode}"
            return SeedOutcome(self._task[0], None, why), False
        return outcome, True

    def close(self) -> None:
        self.connection.close()
        self._process.terminate()
        self._process.join()


def _serve(connection: Connection[SeedOutcome, Task], work: Work) -> None:
    logging.disable(logging.CRITICAL)
    while True:
        try:
            task = connection.recv()
        except EOFError:
            return
        connection.send(work(task))


def outcomes(
    seeds: Sequence[int],
    wal: WalMode | None,
    jobs: int,
    *,
    is_traced: bool = False,
    work: Work = run_one,
) -> Iterator[SeedOutcome | None]:
    """Outcomes in any order (with one process: in the order of seeds), and None every PROGRESS_S
    without one. A process that dies is replaced, and its seed has failed.
    """
    tasks: Iterator[Task] = ((seed, wal, is_traced) for seed in seeds)
    if jobs <= 1:
        yield from map(work, tasks)
        return
    workers: dict[Any, _Worker] = {}
    try:
        for task in islice(tasks, jobs):
            worker = _Worker(work)
            worker.start(task)
            workers[worker.connection] = worker
        while workers:
            ready = wait(list(workers), PROGRESS_S)
            if not ready:
                yield None
            for connection in ready:
                worker = workers.pop(connection)
                outcome, is_there = worker.outcome()
                following = next(tasks, None)
                if following is None or not is_there or worker.is_worn_out:
                    worker.close()
                    worker = _Worker(work) if following is not None else worker
                if following is not None:
                    worker.start(following)
                    workers[worker.connection] = worker
                yield outcome
    finally:
        for worker in workers.values():
            worker.close()


def run_many(
    seeds: Sequence[int],
    wal: WalMode | None,
    jobs: int,
    *,
    plan: AnyPlan = PLAN,
    is_traced: bool = False,
) -> Total:
    """Runs all seeds and sums up; prints failures at once, and progress."""
    total, began = Total(), time.perf_counter()
    told = began
    work = partial(run_one, plan=plan)
    for outcome in outcomes(seeds, wal, jobs, is_traced=is_traced, work=work):
        if outcome is not None:
            total.seeds += 1
        if outcome is not None and outcome.report is None:
            total.failed.append(outcome.seed)
            print(f"--- seed {outcome.seed} failed\n{outcome.failure}", flush=True)
        elif outcome is not None and outcome.report is not None:
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
