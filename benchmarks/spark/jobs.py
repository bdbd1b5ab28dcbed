"""Offline jobs: compaction against a copy of the same bytes, on a real S3 server; scrub.

The data are appends of 64 KiB to 100 streams, in objects as a node makes them. The copy is GET and
PUT of whole objects by this process, with the same store client, COPIES_IN_FLIGHT at a time.
"""

from __future__ import annotations

import asyncio
import os
import time

import streamlog
from benchmarks.report import Row
from benchmarks.s3 import (
    BUCKET,
    MIB,
    append_all,
    copy_objects,
    engine_on,
    raw_store,
    without_compaction,
)
from benchmarks.spark.meter import Cost
from benchmarks.spark.world import World
from streamlog.cli.support.offline import DataLocations, open_offline
from streamlog.engine.config import StreamEngineConfig
from streamlog.model.batch import CreateStreamOptions, RecordBatch
from streamlog.spark.jobs.compaction.job import CompactionPlaces, compact
from streamlog.spark.jobs.scrub.job import scrub
from streamlog.wiring import OpenEngine

BYTES = 512 * MIB
"""At scale 1."""
STREAMS = 100
APPEND_BYTES = 64 << 10
COPIES_IN_FLIGHT = 4


def run(world: World) -> None:
    total = max(32 * MIB, int(BYTES * world.scale))
    _scrub(world, total)
    if world.s3 is not None:
        _compaction(world, "warm-up", max(32 * MIB, total // 8), is_reported=False)
        _compaction(world, "merged", total, is_reported=True)


def _scrub(world: World, total: int) -> None:
    folder = world.folder / "scrub"
    store = f"local://{folder}/objects"

    async def fill() -> None:
        meta = f"rocksdb://{folder}/meta"
        config = without_compaction()
        async with streamlog.open(store, meta=meta, wal="object", config=config) as engine:
            await _append(engine, total)

    asyncio.run(fill())
    places = DataLocations(store, f"rocksdb://{folder}/meta", StreamEngineConfig())
    costs: list[Cost] = []
    read = 0
    for _ in range(3):
        began = world.meter.begin()
        read = asyncio.run(_scrubbed(world, places))
        costs.append(world.meter.end(began))
    cpu_s = min(one.cpu_s for one in costs[1:])
    wall_s = min(one.wall_s for one in costs[1:])
    row = Row("scrub", "local, all CRCs", read / cpu_s / 1e6, "MB/s/core")
    row.facts = {"mb_s": read / wall_s / 1e6, "read_mib": read / MIB}
    world.report.add(row)


async def _scrubbed(world: World, places: DataLocations) -> int:
    """Bytes that were read."""
    async with open_offline(places) as data:
        report = await scrub(
            world.spark,
            data.kv,
            data.store,
            places.store,
            clock=data.clock,
            random=data.random,
            offload=data.offload,
        )
    if not report.is_clean:
        raise AssertionError(f"scrub has findings: {report.findings}")
    return report.counts["read_bytes"]


def _compaction(world: World, name: str, total: int, *, is_reported: bool) -> None:
    assert world.s3 is not None
    server, folder = world.s3, world.folder / name

    async def fill() -> None:
        async with engine_on(server, folder, config=without_compaction()) as engine:
            await _append(engine, total)

    async def copy(like_bytes: int) -> tuple[int, float]:
        began = time.perf_counter()
        async with raw_store(server, folder.name) as source, raw_store(server, "raw") as target:
            size = await copy_objects(source, target, folder.name, like_bytes, COPIES_IN_FLIGHT)
        return size, time.perf_counter() - began

    asyncio.run(fill())
    places = CompactionPlaces(
        server.url(BUCKET, folder.name), f"rocksdb://{folder}/meta", "object", None
    )
    began = world.meter.begin()
    done = asyncio.run(compact(world.spark, places, StreamEngineConfig()))
    cost = world.meter.end(began)
    if done.failed:
        raise AssertionError(f"specs were given up: {done.failed}")
    began = world.meter.begin()
    copied, copy_s = asyncio.run(copy(done.bytes_written))
    copy_cost = world.meter.end(began)
    if not is_reported:
        return
    mb = done.bytes_written / 1e6
    facts = {
        "specs": float(done.specs),
        "inputs": float(done.inputs),
        "outputs": float(done.outputs),
        "read_mib": done.bytes_read / MIB,
        "written_mib": done.bytes_written / MIB,
    }
    label = f"compaction, {STREAMS} streams"
    world.report.add(
        Row("compaction", f"{label}", mb / cost.wall_s, "MB/s", copied / copy_s / 1e6,
            "GET and PUT", 0.6, facts=facts)
    )  # fmt: skip
    world.report.add(
        Row("compaction", f"{label}, by CPU", mb / cost.cpu_s, "MB/s/core",
            copied / copy_cost.cpu_s / 1e6, "GET and PUT", 0.6)
    )  # fmt: skip


async def _append(engine: OpenEngine, total: int) -> None:
    streams = await engine.streams.create_and_open_streams([CreateStreamOptions()] * STREAMS)
    batch = RecordBatch(64, 0, (os.urandom(APPEND_BYTES),))
    await append_all(streams, batch, total, 48 * MIB)
