"""Batch and streaming readers as Spark calls them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from streamlog.errors import Invalid
from streamlog.spark.arrow import check_schema
from streamlog.spark.garbage_freeze import freeze_worker_gc
from streamlog.spark.options import ReadOptions, parse_read_options
from streamlog.spark.plan.offsets import batch_windows
from streamlog.spark.plan.session import Planned, opened_cluster, plan_read
from streamlog.spark.plan.types import ReadPlace, TaskPlan
from streamlog.spark.read.task import read_task
from streamlog.spark.source.streaming import StreamPlanner

NAMES_SHOWN = 3


class TaskPartition(InputPartition):
    """One task's plan, as sent to an executor."""

    def __init__(self, plan: TaskPlan, place: ReadPlace) -> None:
        self.plan = plan
        self.place = place

    def __repr__(self) -> str:
        names = sorted({f"{piece.topic}-{piece.partition}" for piece in self.plan.pieces})
        shown = ", ".join(names[:NAMES_SHOWN]) + (" …" if len(names) > NAMES_SHOWN else "")
        return f"TaskPartition({shown}, about {self.plan.cost_bytes:,} bytes)"


def batch_reader(options: Mapping[str, str], schema: StructType) -> DataSourceReader:
    """Errors: InvalidConfig."""
    return TableReader(parse_read_options(options, streaming=False), _arrow_schema(schema))


def stream_reader(options: Mapping[str, str], schema: StructType) -> DataSourceStreamReader:
    """Errors: InvalidConfig."""
    return StreamReader(parse_read_options(options, streaming=True), _arrow_schema(schema))


def _arrow_schema(schema: StructType) -> pa.Schema:
    arrow_schema: pa.Schema = to_arrow_schema(schema, timezone="UTC")
    check_schema(arrow_schema)
    return arrow_schema


def _partitions(planned: Planned) -> Sequence[InputPartition]:
    return [TaskPartition(task, planned.place) for task in planned.plan.tasks]


def _read(partition: InputPartition, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    # If there are no partitions, Spark makes one of its own.
    if isinstance(partition, TaskPartition):
        yield from read_task(partition.plan, partition.place, schema, attempt=_attempt())


def _attempt() -> dict[str, int]:
    context = TaskContext.get()
    if context is None:
        return {}
    return {
        "stage": context.stageId(),
        "partition": context.partitionId(),
        "attempt": context.attemptNumber(),
    }


class TableReader(DataSourceReader):
    def __init__(self, options: ReadOptions, schema: pa.Schema) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        with opened_cluster(self._options) as cluster:
            windows = batch_windows(self._options, cluster)
            partitions = _partitions(plan_read(self._options, cluster, windows))
        freeze_worker_gc("plan")
        return partitions

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(partition, self._schema)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Pickled without its planner: executors only call `read`."""

    def __init__(self, options: ReadOptions, schema: pa.Schema) -> None:
        self._options = options
        self._schema = schema
        self._planner: StreamPlanner | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_options": self._options, "_schema": self._schema, "_planner": None}

    @contextmanager
    def _planning(self) -> Iterator[StreamPlanner]:
        if self._planner is None:
            self._planner = StreamPlanner(self._options)
        try:
            yield self._planner
        finally:
            self._planner.let_go()

    def getDefaultReadLimit(self) -> ReadLimit:
        most = self._options.max_offsets_per_trigger
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def initialOffset(self) -> dict[str, Any]:
        with self._planning() as planner:
            return planner.initial()

    def prepareForTriggerAvailableNow(self) -> None:
        with self._planning() as planner:
            planner.prepare_available_now()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        if not isinstance(limit, ReadMaxRows | ReadAllAvailable):
            raise Invalid(f"{type(limit).__name__} is no limit that this source knows")
        with self._planning() as planner:
            return planner.latest(start, limit.max_rows if isinstance(limit, ReadMaxRows) else None)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return None if self._planner is None else self._planner.report()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        with self._planning() as planner:
            return _partitions(planner.plan(start, end))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(partition, self._schema)

    def stop(self) -> None:
        planner, self._planner = self._planner, None
        if planner is not None:
            planner.close()
