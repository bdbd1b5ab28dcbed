"""A node's metadata in virtual time, with its compactor and collector; no data is moved.

Commits, fold, checkpoints, the compactor with catalog and planner, the compaction tenure and the
collector are real. Objects are simulated: their rows are known here, so that no object is read, and
the executor answers after the time that its bytes would take.
"""

from __future__ import annotations

import asyncio
import random
import time
from array import array
from collections.abc import Callable, Collection, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, TypeVarTuple

from prometheus_client import CollectorRegistry

from streamlog.compaction.collect.collector import Collector, CollectorConfig
from streamlog.compaction.compactor import Compactor, CompactorParts
from streamlog.compaction.metrics import CompactionMetrics
from streamlog.compaction.plan.catalog import Catalog
from streamlog.compaction.plan.config import CompactionConfig
from streamlog.compaction.plan.planner import MergePlan
from streamlog.compaction.plan.planning import MergePlanRequest
from streamlog.compaction.plan.spec import Job, MergeOutcome, Rows
from streamlog.compaction.plan.stats import ObjectStats
from streamlog.engine.cluster import ensure_cluster_id
from streamlog.kvstore.interface import Compare, Operation, Put, TxnResult
from streamlog.kvstore.memory.store import MemoryKVStore
from streamlog.metadata.interface import CommitEntry, CreateEntry, NewObject, ObjectRow
from streamlog.metadata.keys.checkpoint import FOLDER
from streamlog.metadata.open import open_metadata
from streamlog.objectstore.interface import ObjectInfo
from streamlog.objectstore.memory import MemoryObjectStore
from streamlog.runtime.buffers import Buffer, parts_size
from streamlog.runtime.clock import Clock
from streamlog.runtime.offload import Lane
from streamlog.runtime.rand import SeededRandom
from streamlog.testing.simulation.world.incarnation import SimulationClock
from streamlog.testing.simulation.world.loop import SimulationLoop

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

MIB = 1 << 20
OBJECT_BYTES = MIB
COMMITS_PER_S = 10
RECORDS_MAX = 15
"""A stream has 1 to so many records in an object."""
COUNTS = range(1, RECORDS_MAX + 1)
SAMPLE_S = 10


class CountingKV(MemoryKVStore):
    """Counts compares and writes of transactions."""

    operations = 0
    put_bytes = 0

    async def txn(
        self,
        compares: Sequence[Compare],
        then: Sequence[Operation],
        otherwise: Sequence[Operation] = (),
    ) -> TxnResult:
        result = await super().txn(compares, then, otherwise)
        self.operations += len(compares) + (len(then) if result.succeeded else len(otherwise))
        if result.succeeded:
            self.put_bytes += sum(len(o.key) + len(o.value) for o in then if isinstance(o, Put))
        return result

    async def live_bytes(self) -> int:
        """Keys and values that are there now."""
        found = await self.range(b"\0", b"\xff" * 8)
        return sum(len(kv.key) + len(kv.value) for kv in found.kvs)


class CountingStore(MemoryObjectStore):
    checkpoint_bytes = 0
    puts = 0

    async def put(
        self, key: str, parts: Sequence[Buffer], *, if_absent: bool = False
    ) -> ObjectInfo:
        if key.startswith(FOLDER):
            self.checkpoint_bytes += parts_size(parts)
            self.puts += 1
        return await super().put(key, parts, if_absent=if_absent)


class InlineOffload:
    """Runs the work at once."""

    async def run(self, lane: Lane, fn: Callable[[*Ts], T], *args: *Ts) -> T:
        return fn(*args)

    async def close(self) -> None:
        return


class Objects:
    """The contents of each live object; a record of a stream has `record_bytes`."""

    def __init__(self, record_bytes: float) -> None:
        self._record_bytes = record_bytes
        self._rows: dict[int, tuple[ObjectRow, Rows]] = {}

    def add(self, object_id: int, rows: Rows) -> ObjectRow:
        data = sum(self._sizes(rows))
        row = ObjectRow(object_id, data + 16 + 62 * len(rows), data + 16, 62 * len(rows), 0)
        self._rows[object_id] = row, rows
        return row

    def stats(self, object_id: int) -> ObjectStats:
        row, rows = self._rows[object_id]
        return ObjectStats(row, rows, self._sizes(rows), 13 * len(rows))

    def forget(self, object_ids: Collection[int]) -> None:
        for object_id in object_ids:
            self._rows.pop(object_id, None)

    def _sizes(self, rows: Rows) -> array[int]:
        each = self._record_bytes
        spans = zip(rows.starts, rows.ends, strict=True)
        return array("Q", [int((end - start) * each) or 1 for start, end in spans])


class KnownCatalog(Catalog):
    """Facts come from `objects`."""

    def __init__(self, objects: Objects, *args: Any) -> None:
        super().__init__(*args)
        self._objects = objects

    async def stats(self, row: ObjectRow) -> ObjectStats:
        return self._objects.stats(row.object_id)

    def forget(self, object_ids: Collection[int]) -> None:
        self._objects.forget(object_ids)


class PaperExecutor:
    """Takes the time of the bytes, and moves none."""

    def __init__(self, objects: Objects, bytes_per_s: int) -> None:
        self._objects = objects
        self._bytes_per_s = bytes_per_s

    async def plan(self, asked: MergePlanRequest) -> MergePlan:
        return asked.planned()

    async def run(self, job: Job) -> MergeOutcome:
        size = sum(output.size_bytes for output in job.spec.outputs)
        await asyncio.sleep(size / self._bytes_per_s)
        pairs = zip(job.object_ids, job.spec.outputs, strict=True)
        rows = [self._objects.add(object_id, output.rows) for object_id, output in pairs]
        return MergeOutcome(rows, size, size, len(job.spec.inputs))

    def set_busy(self, is_busy: bool) -> None:
        return

    async def close(self) -> None:
        return


@dataclass
class Sample:
    """`at_s` is virtual; byte counts are sums since the start."""

    at_s: float
    live_kv_bytes: int
    kv_put_bytes: int
    checkpoint_bytes: int
    memory_ranges: int


@dataclass
class Course:
    """Sums over the simulated time."""

    simulated_s: float = 0.0
    cpu_s: float = 0.0
    appended_bytes: int = 0
    kv_operations: int = 0
    kv_put_bytes: int = 0
    checkpoint_bytes: int = 0
    checkpoint_puts: int = 0
    compactions: int = 0
    compacted_bytes: int = 0
    backlog: int = 0
    objects: int = 0
    dead_objects: int = 0
    file_bytes: int = 0
    file_ranges: int = 0
    samples: list[Sample] = field(default_factory=list)


class SimulatedNode:
    """Appends to all streams at once, `COMMITS_PER_S` times a second."""

    def __init__(self, streams: int, registry: CollectorRegistry) -> None:
        self._count = streams
        self._registry = registry
        self._random = random.Random(streams)
        self._record_bytes = OBJECT_BYTES / streams / ((1 + RECORDS_MAX) / 2)
        self.objects = Objects(self._record_bytes)
        self.course = Course()
        self._streams: list[int] = []
        self._ends: list[int] = []

    async def run(self, minutes: int, cpu_s_max: float) -> None:
        """Simulates `minutes` of virtual time, or as many as `cpu_s_max` allows."""
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimulationLoop)
        clock = SimulationClock(loop)
        self.kv, self.store = CountingKV(clock), CountingStore(clock)
        offload, rand = InlineOffload(), SeededRandom(self._count)
        cluster = await ensure_cluster_id(self.kv, self.store, rand)
        self.metadata = await open_metadata(
            self.kv,
            self.store,
            cluster_id=cluster,
            node_id=1,
            wal_mode="object",
            clock=clock,
            random=rand,
            offload=offload,
            registry=self._registry,
        )
        await self._create()
        config = CompactionConfig()
        parts = CompactorParts(
            self.metadata,
            self.store,
            PaperExecutor(self.objects, config.compaction_rate_max_bytes_per_s),
            offload,
            clock,
            CompactionMetrics(self._registry),
        )
        compactor = Compactor(
            parts,
            config,
            catalog=KnownCatalog(self.objects, self.metadata, self.store, offload, config),
        )
        compactor.start()
        collecting = asyncio.create_task(self._collect(clock))
        began, cpu = loop.time(), time.process_time()
        for number in range(minutes * 60 * COMMITS_PER_S):
            wait_s = began + number / COMMITS_PER_S - loop.time()
            await asyncio.sleep(max(wait_s, 0))
            await self._commit()
            if number % (SAMPLE_S * COMMITS_PER_S) == 0:
                await self._sample()
            self.course.simulated_s = loop.time() - began
            self.course.cpu_s = time.process_time() - cpu
            if self.course.cpu_s > cpu_s_max:
                break
        if self._value("streamlog_compaction_stopped"):
            raise AssertionError("the compactor failed: what is measured has none")
        if collecting.done():
            collecting.result()
        self._finish(compactor)
        collecting.cancel()
        await compactor.kill()
        await self.metadata.kill()
        await self.kv.close()

    async def _create(self) -> None:
        for _ in range(0, self._count, 1000):
            ids = await self.metadata.allocate_stream_ids(min(1000, self._count))
            await self.metadata.commit(CommitEntry(creates=[CreateEntry(i, 1) for i in ids]))
            self._streams += ids
        self._ends = [0] * self._count

    async def _commit(self) -> None:
        ends = list(map(int.__add__, self._ends, self._random.choices(COUNTS, k=self._count)))
        rows = Rows()
        rows.streams, rows.epochs = array("Q", self._streams), array("Q", [1]) * self._count
        rows.starts, rows.ends = array("Q", self._ends), array("Q", ends)
        self._ends = ends
        async with self.metadata.owned_object_id() as (object_id,):
            row = self.objects.add(object_id, rows)
            await self.metadata.commit(CommitEntry(objects=[NewObject(row, list(rows))]))
        self.course.appended_bytes += row.size_bytes

    async def _collect(self, clock: Clock) -> None:
        config = CollectorConfig()
        collector = Collector(self.metadata, self.store, clock, config, self._registry)
        while True:
            await asyncio.sleep(config.collect_interval_ms / 1000)
            await collector.tick()
            if collector.alarm:
                raise AssertionError(collector.alarm)

    async def _sample(self) -> None:
        generations = self.metadata._follower.state.fold.generations
        ranges = sum(len(r) // 2 for g in generations for r in g.ranges.values())
        patches = sum(g.patch_count for g in generations)
        self.course.samples.append(
            Sample(
                asyncio.get_running_loop().time(),
                await self.kv.live_bytes(),
                self.kv.put_bytes,
                self.store.checkpoint_bytes,
                ranges + patches,
            )
        )

    def _finish(self, compactor: Compactor) -> None:
        course, state = self.course, self.metadata._follower.state
        course.kv_operations = self.kv.operations
        course.kv_put_bytes = self.kv.put_bytes
        course.checkpoint_bytes = self.store.checkpoint_bytes
        course.checkpoint_puts = self.store.puts
        course.compactions = int(self._value("streamlog_metadata_compactions"))
        course.compacted_bytes = int(self._value("streamlog_compaction_written_bytes_total"))
        course.backlog = sum(compactor.backlog.values())
        course.objects = self.metadata.object_count
        course.dead_objects = len(self.metadata.dead_objects(1 << 30))
        for level in (state.levels.base, state.levels.delta):
            if level is not None:
                course.file_bytes += level.ref.size_bytes
                course.file_ranges += level.tail.range_count

    def _value(self, name: str) -> float:
        return self._registry.get_sample_value(name) or 0.0


def simulate(streams: int, minutes: int, cpu_s_max: float) -> Course:
    """Blocking."""
    node = SimulatedNode(streams, CollectorRegistry())
    loop = SimulationLoop()
    main: Coroutine[Any, Any, None] = node.run(minutes, cpu_s_max)
    try:
        loop.run_until_complete(main)
    finally:
        loop.close()
    return node.course
