"""Rounds in which jobs read topics. Each round is planned, pinned, read and kept by itself, so that
a job can go on behind its last round, and holds no pin for long.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from streamlog.errors import StreamlogError
from streamlog.model.located import OffsetWindow
from streamlog.spark.cluster.cluster import Cluster
from streamlog.spark.jobs.tasks import run_tasks
from streamlog.spark.options import ReadOptions
from streamlog.spark.plan.session import plan_read
from streamlog.spark.plan.types import ReadPlace, TaskPlan

log = logging.getLogger(__name__)

R = TypeVar("R")

ROUND_RECORDS = 10_000_000
"""More records: fewer, larger files, less time between tasks. Fewer: less to repeat after a
stop."""


def rounds(windows: Sequence[OffsetWindow], records_max: int) -> Iterator[list[OffsetWindow]]:
    """Cuts the windows into rounds: one partition after another, each from its start."""
    held: list[OffsetWindow] = []
    room = records_max
    for window in windows:
        offset = window.start
        while offset < window.end:
            end = min(window.end, offset + room)
            held.append(replace(window, start=offset, end=end))
            room -= end - offset
            offset = end
            if not room:
                yield held
                held, room = [], records_max
    if held:
        yield held


@dataclass(frozen=True, slots=True)
class _InTask(Generic[R]):
    """Pickled to the tasks."""

    work: Callable[[TaskPlan, ReadPlace], R]
    place: ReadPlace

    def __call__(self, plan: TaskPlan) -> R:
        return self.work(plan, self.place)


def run_round(
    spark: Any,
    options: ReadOptions,
    cluster: Cluster,
    windows: Sequence[OffsetWindow],
    work: Callable[[TaskPlan, ReadPlace], R],
) -> list[R]:
    """Runs `work` in a task per part of the windows. Errors: those of a plan and `run_tasks`."""
    planned = plan_read(options, cluster, windows)
    cluster.let_go()
    try:
        return run_tasks(spark, _InTask(work, planned.place), planned.plan.tasks)
    finally:
        if planned.place.pin_id is not None:
            _unpin(cluster, planned.place.pin_id)


def _unpin(cluster: Cluster, pin_id: int) -> None:
    """Removes the pin; if that fails, the pin ends by itself."""
    try:
        cluster.unpin(pin_id)
        cluster.let_go()
    except StreamlogError as error:
        log.warning("pin %d could not be removed and ends by itself: %s", pin_id, error)
