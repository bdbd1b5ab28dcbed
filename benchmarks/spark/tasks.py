"""What a task costs beside its records: some TASKS tiny tasks of our source, ms of a core for each.

Beside it Spark's own: TASKS Python tasks (`mapInArrow`) of as many rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import pyarrow as pa

from benchmarks.report import Row
from benchmarks.spark.meter import Cost, cpu_s, wall_s
from benchmarks.spark.rows import write_seed
from benchmarks.spark.world import CORES, World, deliver

TASKS = 256
ROWS_PER_TASK = 10
NAME = "tasks"
AIM_MS = 20.0


def run(world: World) -> None:
    topic = "tiny-tasks"
    count = TASKS * ROWS_PER_TASK
    world.make_topic(topic)
    seed = write_seed(world.folder / topic, 100, count)
    world.write(world.spark.read.parquet(seed), topic, "none")
    numbers = world.spark.range(0, count, numPartitions=TASKS)

    def read(mode: str, tasks: int) -> Callable[[], object]:
        return lambda: deliver(world.read(topic, mode, min_partitions=tasks))

    cases: dict[str, Callable[[], object]] = {
        "Python tasks": lambda: deliver(numbers.mapInArrow(_same, "id LONG")),
        "Python task, one": lambda: deliver(numbers.coalesce(1).mapInArrow(_same, "id LONG")),
    }
    planned: dict[str, int] = {}
    for mode in ("store", "service"):
        planned[mode] = world.read(topic, mode, min_partitions=TASKS).rdd.getNumPartitions()
        if planned[mode] < TASKS:
            raise AssertionError(f"{planned[mode]} tasks were planned, not {TASKS}")
        cases[mode], cases[f"{mode}, few"] = read(mode, TASKS), read(mode, 1)
    costs = world.meter.in_turns(cases)
    floor = _each(costs["Python tasks"], costs["Python task, one"], TASKS)
    for mode in ("store", "service"):
        each = _each(costs[mode], costs[f"{mode}, few"], planned[mode])
        row = Row(
            NAME, f"each of {planned[mode]}: {mode}", each[0], "ms of a core", less_is_better=True
        )
        row.aim = AIM_MS
        row.facts = {"cpu_ms": each[1], "python_task_ms": floor[0], "python_task_cpu_ms": floor[1]}
        row.facts["query_s"] = wall_s(costs[mode])
        world.report.add(row)


def _same(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def _each(many: list[Cost], few: list[Cost], tasks: int) -> tuple[float, float]:
    """Wall-clock ms of a core and ms of CPU per task."""
    clock_s = (wall_s(many) - wall_s(few)) * CORES
    return clock_s / tasks * 1000, (cpu_s(many) - cpu_s(few)) / tasks * 1000
