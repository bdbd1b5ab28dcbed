"""Offline compaction on executors: the node's planner and commit, with merges in Spark tasks.
(For a running node: `compaction.node`.)

1. The driver opens the engine as a node would, without its compactor and all that deletes: no node
   can run meanwhile.
2. The compactor plans one spec after another from the live objects, largest merges first.
3. A spec is cut into one job per output. Each job is a task that reads the inputs' live ranges from
   the store and writes its output there.
4. The driver commits all outputs of a spec at once, as a node's compactor does. Commits of an
   interrupted run stay; a node sweeps its uncommitted outputs as orphans.
"""

from __future__ import annotations

import dataclasses
import functools
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry

from streamlog import wiring
from streamlog.compaction.compactor import Compactor, CompactorParts
from streamlog.compaction.execute.executor import InlineExecutor
from streamlog.compaction.execute.rate import RateLimit
from streamlog.compaction.execute.spool import FileSpool
from streamlog.compaction.metrics import CompactionMetrics
from streamlog.compaction.plan.config import CompactionConfig
from streamlog.compaction.plan.planner import MergePlan
from streamlog.compaction.plan.planning import MergePlanRequest
from streamlog.compaction.plan.spec import CompactionSpec, Job, MergeOutcome, SpecInput
from streamlog.engine.config import StreamEngineConfig
from streamlog.errors import Internal, StreamlogError
from streamlog.format.rows import Rows
from streamlog.repair.findings import Progress, no_progress
from streamlog.runtime.clock import SystemClock
from streamlog.runtime.offload import Lane, Offload, ThreadOffload
from streamlog.runtime.rand import SystemRandom
from streamlog.spark.jobs.tasks import run_tasks
from streamlog.spark.read.worker import worker
from streamlog.wal.config import WalMode

UNLIMITED = 1 << 40
"""Bytes per second: offline stores serve no clients meanwhile."""


@dataclass(frozen=True, slots=True)
class CompactionPlaces:
    """Places by the names of a node's settings; None: the node's defaults."""

    store: str
    meta: str | None = None
    wal: WalMode | None = None
    wal_dir: str | None = None
    node_id: int = 1


@dataclass(slots=True)
class Compacted:
    """The result of one run; `failed`: errors of the specs that were given up."""

    specs: int = 0
    inputs: int = 0
    outputs: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    failed: list[str] = field(default_factory=list)


async def compact(
    spark: Any,
    places: CompactionPlaces,
    config: StreamEngineConfig,
    *,
    progress: Progress = no_progress,
) -> Compacted:
    """Merges all objects that are not fully compacted.

    Errors: those of opening an engine, Unavailable.
    """
    clock, random, offload = SystemClock(), SystemRandom(), ThreadOffload()
    done = Compacted()
    try:
        store = await wiring.open_object_store(
            places.store, config, clock, random, offload, CollectorRegistry()
        )
        try:
            async with wiring.open(
                places.store,
                meta=places.meta,
                wal=places.wal,
                wal_dir=None if places.wal_dir is None else Path(places.wal_dir),
                node_id=places.node_id,
                config=config,
                components=wiring.Components(clock=clock, random=random, store=store),
                upkeep=False,
            ) as opened:
                executor = SparkExecutor(
                    spark, places.store, config.compaction, offload, done, progress
                )
                metrics = CompactionMetrics(CollectorRegistry())
                parts = CompactorParts(opened.metadata, store, executor, offload, clock, metrics)
                compactor = Compactor(parts, config.compaction)
                try:
                    await compactor.compact_all()
                finally:
                    await compactor.close()
        finally:
            await store.close()
    finally:
        await offload.close()
    return done


@dataclass(frozen=True, slots=True)
class JobSettings:
    """Pickled to the tasks."""

    store_url: str
    memory_bytes: int
    spool_dir: str | None

    @classmethod
    def of(cls, store_url: str, config: CompactionConfig) -> JobSettings:
        return cls(store_url, config.memory_bytes(store_url), config.spool_dir)

    def __call__(self, job: Job) -> MergeOutcome:
        """Errors: Corrupt, ObjectNotFound, StoreUnavailable, DiskFull, ForeignCluster."""
        local = worker()
        executor = InlineExecutor(
            local.store(self.store_url, job.cluster_id),
            local.offload,
            RateLimit(UNLIMITED, SystemClock()),
            functools.partial(FileSpool, self.spool_dir),
            memory_bytes=self.memory_bytes,
        )
        return local.run(executor.run(job))


class SparkExecutor:
    """Runs each output in a task of its own; plans on the driver."""

    def __init__(
        self,
        spark: Any,
        store_url: str,
        config: CompactionConfig,
        offload: Offload,
        done: Compacted,
        progress: Progress,
    ) -> None:
        self._spark = spark
        self._work = JobSettings.of(store_url, config)
        self._offload = offload
        self._done = done
        self._progress = progress

    async def plan(self, asked: MergePlanRequest) -> MergePlan:
        return await self._offload.run(Lane.CPU, asked.planned)

    async def run(self, job: Job) -> MergeOutcome:
        """Errors: those of an Executor, TaskFailed."""
        try:
            outcome = await self._offload.run(Lane.CPU, run_job, self._spark, self._work, job)
        except StreamlogError as error:
            self._done.failed.append(f"{type(error).__name__}: {error.message}")
            raise
        done = self._done
        done.specs += 1
        done.inputs += len(job.spec.inputs)
        done.outputs += len(job.spec.outputs)
        done.bytes_read += outcome.bytes_read
        done.bytes_written += outcome.bytes_written
        self._progress("bytes written", done.bytes_written, 0)
        return outcome

    def set_busy(self, is_busy: bool) -> None:
        """Does nothing: there are no clients to make way for."""

    async def close(self) -> None:
        """Does nothing: Spark ends its tasks."""


def run_job(spark: Any, work: JobSettings, job: Job) -> MergeOutcome:
    """Every output is in the store on return. Errors: those of an Executor, TaskFailed."""
    outcomes = run_tasks(spark, work, split(job))
    return MergeOutcome(
        [row for outcome in outcomes for row in outcome.objects],
        sum(outcome.bytes_read for outcome in outcomes),
        sum(outcome.bytes_written for outcome in outcomes),
        sum(outcome.gets for outcome in outcomes),
    )


def split(job: Job) -> list[Job]:
    """One job per output, with the input ranges that go into it. Errors: Internal."""
    places: dict[int, list[tuple[int, int, int]]] = {}
    for number, output in enumerate(job.spec.outputs):
        for row in output.rows:
            places.setdefault(row.stream_id, []).append((row.start, row.end, number))
    for spans in places.values():
        spans.sort()
    inputs: list[list[SpecInput]] = [[] for _ in job.spec.outputs]
    for source in job.spec.inputs:
        parts: dict[int, Rows] = {}
        for row in source.rows:
            spans = places.get(row.stream_id, [])
            index = bisect_right(spans, (row.start, 1 << 64, 0)) - 1
            if index < 0 or row.end > spans[index][1]:
                raise Internal(f"a compaction spec has no output for {row}")
            parts.setdefault(spans[index][2], Rows()).append(row)
        for number, rows in parts.items():
            inputs[number].append(SpecInput(source.row, rows))
    return [
        Job(_only(job, sources, number), job.cluster_id, job.tenure, [job.object_ids[number]])
        for number, sources in enumerate(inputs)
    ]


def _only(job: Job, inputs: Sequence[SpecInput], number: int) -> CompactionSpec:
    return dataclasses.replace(job.spec, inputs=inputs, outputs=[job.spec.outputs[number]])
