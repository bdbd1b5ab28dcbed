"""Stands in for a Spark session where a job asks for tasks alone: they run in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
from pyspark import cloudpickle

Work = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


class InProcess:
    """A task for each number of a range, one after another; work travels as to an executor.

    `before_wave` is called before the tasks of each wave.
    """

    def __init__(self, before_wave: Callable[[], object] = lambda: None) -> None:
        self.before_wave = before_wave
        self.waves = 0
        self.tags: set[str] = set()
        self.conf = {"spark.default.parallelism": "2"}

    def addTag(self, tag: str) -> None:
        self.tags.add(tag)

    def removeTag(self, tag: str) -> None:
        self.tags.remove(tag)

    def interruptTag(self, tag: str) -> list[str]:
        return []

    def range(self, start: int, end: int, step: int, parts: int) -> InProcess:
        assert (start, step, parts) == (0, 1, end)
        self.waves += 1
        self.before_wave()
        self._numbers = list(range(end))
        return self

    def mapInArrow(self, work: Work, schema: str) -> InProcess:
        self._work = cloudpickle.dumps(work)
        return self

    def collect(self) -> list[tuple[Any, ...]]:
        rows: list[tuple[Any, ...]] = []
        for number in self._numbers:
            work: Work = cloudpickle.loads(self._work)
            ids = pa.RecordBatch.from_arrays([pa.array([number], pa.int64())], names=["id"])
            for batch in work(iter([ids])):
                rows += zip(*(column.to_pylist() for column in batch.columns), strict=True)
        return rows
