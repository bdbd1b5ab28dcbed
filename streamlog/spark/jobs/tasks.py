"""Work on executors, one Spark task per unit; plans go in, small results come back.

A wave of tasks is one Spark job. Between waves the caller keeps what must outlive an interruption.
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
"""Tasks of a wave per core. At a wave's end cores are idle, for less than one task's time."""
_RAISED = re.compile(r"^(?:[\w.]+\.)?(\w+): (.+)$", re.MULTILINE)
RANGE_SIZE = 1 << 16


class TaskFailed(StreamlogError):
    """A Spark task failed in all its attempts."""


def wave_size(spark: Any) -> int:
    """Tasks of one wave."""
    return TASKS_PER_CORE * _cores(spark)


def _cores(spark: Any) -> int:
    parallelism = spark.conf.get("spark.default.parallelism", None)
    if parallelism:
        return int(parallelism)
    if "connect" in type(spark).__module__:
        # Spark Connect has no context to ask; a range has one partition per core.
        numbers = spark.range(RANGE_SIZE).selectExpr("spark_partition_id() number")
        return int(numbers.distinct().count())
    return int(spark.sparkContext.defaultParallelism)


def run_tasks(spark: Any, work: Callable[[T], R], units: Sequence[T]) -> list[R]:
    """The results in the order of the units; units and results must pickle.

    Errors: those of `work` that are not retryable; TaskFailed.
    """
    if not units:
        return []

    def carried_out(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                result = pickle.dumps(_outcome(work, units[number]), 5)
                columns = [pa.array([number], pa.int64()), pa.array([result], pa.binary())]
                yield pa.RecordBatch.from_arrays(columns, names=["id", "result"])

    count = len(units)
    frame = spark.range(0, count, 1, count).mapInArrow(carried_out, "id BIGINT, result BINARY")
    try:
        rows = frame.collect()
    except PySparkException as error:
        raise task_failed(error) from error
    results = {row[0]: pickle.loads(row[1]) for row in rows}  # noqa: S301 - our own executors'
    for outcome in results.values():
        if isinstance(outcome, StreamlogError):
            raise outcome
    return [results[number] for number in range(count)]


def _outcome(work: Callable[[T], R], unit: T) -> R | StreamlogError:
    """The result, or an error that Spark should not retry because it would occur again."""
    try:
        return work(unit)
    except StreamlogError as error:
        if error.is_retryable:
            raise
        return error


def task_failed(error: PySparkException) -> TaskFailed:
    """The error with the last line of the task's traceback."""
    matches = list(_RAISED.finditer(str(error)))
    raised = [match[0] for match in matches if "Error" in match[1]]
    ours = [match[0] for match in matches if "streamlog." in match[0]]
    message = (ours or raised or [str(error).splitlines()[0]])[-1]
    return TaskFailed(f"a task failed: {message}")
