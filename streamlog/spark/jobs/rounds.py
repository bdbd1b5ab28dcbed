"""Jobs read topics in rounds: each is planned, pinned, read and kept for itself, so that a job that
was stopped goes on behind its last round and holds no pin for long.
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
"""More means fewer and larger files and less time between tasks; less is lost by a stop."""


def rounds(windows: Sequence[OffsetWindow], records_max: int) -> Iterator[list[OffsetWindow]]:
    """One partition after another, each from its start."""
    held: list[OffsetWindow] = []
    room = records_max
    for window in windows:
        at = window.start
        while at < window.end:
            end = min(window.end, at + room)
            held.append(replace(window, start=at, end=end))
            room -= end - at
            at = end
            if not room:
                yield held
                held, room = [], records_max
    if held:
        yield held


@dataclass(frozen=True, slots=True)
class _InTask(Generic[R]):
    """Travels to the tasks."""

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
    """`work` in a task for each part of the windows. Errors: those of a plan, of `run_tasks`."""
    planned = plan_read(options, cluster, windows)
    cluster.let_go()
    try:
        return run_tasks(spark, _InTask(work, planned.place), planned.plan.tasks)
    finally:
        if planned.place.pin_id is not None:
            _unpin(cluster, planned.place.pin_id)


def _unpin(cluster: Cluster, pin_id: int) -> None:
    """A pin that stays ends by itself."""
    try:
        cluster.unpin(pin_id)
        cluster.let_go()
    except StreamlogError as error:
        log.warning("pin %d could not be taken away and ends by itself: %s", pin_id, error)
