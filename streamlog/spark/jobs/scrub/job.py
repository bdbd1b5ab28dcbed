"""Scrub: `fsck`'s deep look at objects, carried out by executors.

1. The driver reads the metadata, offline or of a running node (`scrub.node`), and checks all
   streams as fsck does: their ranges must meet.
2. Executors read every live object from its first byte to its last: header, blocks, index and
   footer, every CRC, and whether the object has the ranges that streams need of it.
3. With a state file, the findings of each wave of tasks are kept, and the run after an interrupted
   one goes on behind the last wave. Each run repeats step 1.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from streamlog.reading.blocks import ObjectRow
from streamlog.reading.views import KVStore, MetadataView, ObjectStore, offline_view
from streamlog.repair.findings import Progress, Range, RepairReport, no_progress
from streamlog.repair.fsck.object import ObjectCheck
from streamlog.repair.fsck.objects import ObjectBatch, ObjectChecks
from streamlog.repair.in_flight import in_flight
from streamlog.runtime.clock import Clock
from streamlog.runtime.offload import Lane, Offload
from streamlog.runtime.rand import Random
from streamlog.spark.jobs.scrub.state import ScrubState
from streamlog.spark.jobs.tasks import run_tasks, wave_size
from streamlog.spark.read.worker import worker

TASK_BYTES = 128 << 20
TASK_OBJECTS_MAX = 1000
OBJECTS_AT_ONCE = 4
"""Objects that a task checks at once: while one waits for the store, others are checked."""


@dataclass(frozen=True, slots=True)
class ScrubUnit:
    """The objects of one task, by id, with the ranges that streams need of each."""

    store_url: str
    cluster_id: str
    objects: Sequence[tuple[ObjectRow, list[Range]]]


async def scrub(
    spark: Any,
    kv: KVStore,
    store: ObjectStore,
    store_url: str,
    *,
    clock: Clock,
    random: Random,
    offload: Offload,
    state_file: Path | None = None,
    progress: Progress = no_progress,
) -> RepairReport:
    """Scrubs offline data; no node should run meanwhile. `store_url`: as executors reach the store.

    An interrupted run leaves the state file as of the last wave. Errors: those of fsck, TaskFailed.
    """
    view = await offline_view(kv, store, clock=clock, random=random, offload=offload)
    return await scrub_view(
        spark, view, store, store_url, offload=offload, state_file=state_file, progress=progress
    )


async def _nothing() -> None:
    """Offline, no object can be deleted meanwhile."""


async def scrub_view(
    spark: Any,
    view: MetadataView,
    store: ObjectStore,
    store_url: str,
    *,
    offload: Offload,
    state_file: Path | None,
    progress: Progress,
    check_kept: Callable[[], Awaitable[None]] = _nothing,
) -> RepairReport:
    """As `scrub`, of a view. `check_kept` raises if objects of the view may have been deleted by
    now: then the findings since its last call do not count.
    """
    cluster_id = view.cluster_id
    state = ScrubState.read(state_file, cluster_id)
    report = RepairReport(cluster_id=cluster_id, revision=view.revision)
    checks = ObjectChecks(view, store, offload, report, progress, deep=True)
    size, total = wave_size(spark), view.live_objects_count
    async for part in checks.batches():
        units = list(_units(part, state.done_to, store_url, cluster_id))
        for low in range(0, len(units), size):
            wave = units[low : low + size]
            reports = await offload.run(Lane.CPU, run_tasks, spark, check_objects, wave)
            await check_kept()
            state.add(reports, wave[-1].objects[-1][0].object_id)
            await offload.run(Lane.CPU, state.write)
            progress("checking objects", state.report.counts["objects"], total)
    for finding in state.report.findings:
        report.add(finding)
    report.counts.update(state.report.counts)
    await offload.run(Lane.CPU, state.remove)
    return report


def _units(part: ObjectBatch, done_to: int, store_url: str, cluster_id: str) -> Iterator[ScrubUnit]:
    held: list[tuple[ObjectRow, list[Range]]] = []
    size = 0
    for live in part.objects:
        row = live.row
        if row.object_id <= done_to:
            continue
        if held and (size + row.size_bytes > TASK_BYTES or len(held) == TASK_OBJECTS_MAX):
            yield ScrubUnit(store_url, cluster_id, held)
            held, size = [], 0
        held.append((row, part.ranges_of(row.object_id)))
        size += row.size_bytes
    if held:
        yield ScrubUnit(store_url, cluster_id, held)


def check_objects(unit: ScrubUnit) -> RepairReport:
    """Runs in a task. Errors: StoreUnavailable, Unauthorized, ForeignCluster."""
    local = worker()
    report = RepairReport(cluster_id=unit.cluster_id)
    store = local.store(unit.store_url, unit.cluster_id)
    check = ObjectCheck(unit.cluster_id, store, local.offload, report, deep=True)
    local.run(in_flight(unit.objects, lambda item: check.run(*item), at_once=OBJECTS_AT_ONCE))
    return report
