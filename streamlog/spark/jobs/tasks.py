"""Work on executors, one Spark task for each unit; plans go in, small results come back.

A wave of tasks is one Spark job. What is to outlive an interruption is kept by the caller between
waves.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import pyarrow as pa
from pyspark.errors import PySparkException

from streamlog.errors import StreamlogError

T = TypeVar("T")
R = TypeVar("R")

TASKS_PER_CORE = 4
"""Of a wave: cores are idle at its end, for less than a task's time in so many."""
_RAISED = re.compile(r"^(?:[\w.]+\.)?(\w+): (.+)$", re.MULTILINE)
RANGE_SIZE = 1 << 16


class TaskFailed(StreamlogError):
    """A Spark task failed as often as Spark tries it."""


def wave_size(spark: Any) -> int:
    """Tasks of one wave."""
    return TASKS_PER_CORE * _cores(spark)


def _cores(spark: Any) -> int:
    found = spark.conf.get("spark.default.parallelism", None)
    if found:
        return int(found)
    if "connect" in type(spark).__module__:
        # Spark Connect has no context to ask; a range has a partition for each core.
        numbers = spark.range(RANGE_SIZE).selectExpr("spark_partition_id() number")
        return int(numbers.distinct().count())
    return int(spark.sparkContext.defaultParallelism)


def run_tasks(spark: Any, work: Callable[[T], R], units: Sequence[T]) -> list[R]:
    """The results in the order of the units; all of them pickle.

    Errors: what `work` raises where it is not retryable; TaskFailed.
    """
    if not units:
        return []

    def carried_out(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                found = pickle.dumps(_outcome(work, units[number]), 5)
                columns = [pa.array([number], pa.int64()), pa.array([found], pa.binary())]
                yield pa.RecordBatch.from_arrays(columns, names=["id", "found"])

    count = len(units)
    frame = spark.range(0, count, 1, count).mapInArrow(carried_out, "id BIGINT, found BINARY")
    try:
        rows = frame.collect()
    except PySparkException as error:
        raise task_failed(error) from error
    found = {row[0]: pickle.loads(row[1]) for row in rows}  # noqa: S301 - our own executors'
    for outcome in found.values():
        if isinstance(outcome, StreamlogError):
            raise outcome
    return [found[number] for number in range(count)]


def _outcome(work: Callable[[T], R], unit: T) -> R | StreamlogError:
    """An error that another attempt would meet again is a result, so that Spark does not try."""
    try:
        return work(unit)
    except StreamlogError as error:
        if error.is_retryable:
            raise
        return error


def task_failed(error: PySparkException) -> TaskFailed:
    """With the last line of the task's traceback."""
    raised = [found.group(0) for found in _RAISED.finditer(str(error)) if "Error" in found[1]]
    ours = [found.group(0) for found in _RAISED.finditer(str(error)) if "streamlog." in found[0]]
    told = (ours or raised or [str(error).splitlines()[0]])[-1]
    return TaskFailed(f"a task failed: {told}")
