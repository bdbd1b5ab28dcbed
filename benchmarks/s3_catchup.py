"""Catching up on a real S3 server: 1 GiB in 1, 100 and 10,000 streams, before and after
compaction; and compaction itself.

Each reading uses a freshly opened engine, so that nothing is cached. Its floor, measured right
after it, is raw ranged GETs of the same bytes with the same client and as many in flight, each as
large as the engine's GETs or, if smaller, as a stream. Medians of several such pairs count.
Compaction is compared with copying the same bytes with the same client, object by object, by the
CPU seconds of both processes, without those of the server.
"""

from __future__ import annotations

import asyncio
import gc
import os
import time
from dataclasses import replace
from pathlib import Path
from statistics import median

import psutil

from benchmarks.node import own_cpu_s
from benchmarks.report import Measured, Report, Row, percentile
from benchmarks.s3 import (
    GIB,
    MIB,
    append_all,
    copy_objects,
    data_ranges,
    engine_on,
    in_flight,
    raw_get,
    raw_store,
    requests_of,
    s3_server,
    sample,
    without_compaction,
)
from streamlog.compaction.plan.planner import STREAM_END
from streamlog.compaction.plan.planning import MergePlanRequest
from streamlog.demo.s3_server import S3Server
from streamlog.engine.config import StreamEngineConfig
from streamlog.metadata.compaction_interface import CompactionPoint
from streamlog.model.batch import CreateStreamOptions, OpenStreamOptions, RecordBatch
from streamlog.model.stream import Stream
from streamlog.wiring import OpenEngine

COUNTS = (1, 100, 10_000)
READERS = 8
FETCH_BYTES = MIB
FLOOR_IN_FLIGHT = 8
IDLE_S = 3.0
ROUNDS_MAX = 7
ROUNDS_S = 60.0


def run(report: Report, folder: Path, *, scale: float) -> None:
    """`scale` 1 writes 1 GiB per number of streams."""
    total = int(GIB * scale)
    with s3_server(folder, report.variant) as server:
        for count in COUNTS:
            asyncio.run(_case(report, folder / f"streams{count}", server, count, total))


async def _case(report: Report, folder: Path, server: S3Server, count: int, total: int) -> None:
    label = f"{count:,} streams"
    stream_ids = await _fill(server, folder, count, total)
    await _read(report, server, folder, stream_ids, total, f"before compaction, {label}", None)
    await _compact(report, server, folder, label)
    await _read(report, server, folder, stream_ids, total, f"after compaction, {label}", 0.8)


async def _fill(server: S3Server, folder: Path, count: int, total: int) -> list[int]:
    async with engine_on(server, folder, config=without_compaction()) as engine:
        streams = []
        for _ in range(0, count, 1000):
            options = [CreateStreamOptions()] * min(1000, count)
            streams += await engine.streams.create_and_open_streams(options)
        size = min(64 << 10, total // count)
        await append_all(streams, RecordBatch(64, 0, (os.urandom(size),)), total, 48 * MIB)
        return [stream.stream_id for stream in streams]


async def _read(
    report: Report,
    server: S3Server,
    folder: Path,
    stream_ids: list[int],
    total: int,
    label: str,
    aim: float | None,
) -> None:
    """Alternates readings and floors for ROUNDS_S: a short reading is unreliable."""
    measured, floors, began = Measured(), [], time.perf_counter()
    while not measured.mb_s or (
        len(measured.mb_s) < ROUNDS_MAX and time.perf_counter() - began < ROUNDS_S
    ):
        mb_s, facts = await _reading(server, folder, stream_ids)
        async with raw_store(server, folder.name) as raw:
            mean = max(4096, min(int(facts["mean_get_kib"] * 1024), total // len(stream_ids)))
            ranges = await data_ranges(raw, mean, total)
            floor, _ = await raw_get(raw, ranges, FLOOR_IN_FLIGHT)
        measured.add(mb_s, floor, facts)
        floors.append(floor)
    row = measured.row("s3_catchup", label, median(floors), "raw ranged GET", aim)
    row.facts["rounds"] = len(floors)
    report.add(row)


async def _reading(
    server: S3Server, folder: Path, stream_ids: list[int]
) -> tuple[float, dict[str, float]]:
    """MB/s of one reading, and its requests to the store."""
    async with engine_on(server, folder, config=without_compaction()) as engine:
        before = requests_of(engine).get("get", 0.0)
        received = sample(engine, "streamlog_store_received_bytes_total")
        # Garbage of earlier engines and clients must not count here.
        gc.collect()
        began = time.perf_counter()
        seen = await read_all(await open_all(engine, stream_ids), READERS)
        mb_s = seen / (time.perf_counter() - began) / 1e6
        gets = requests_of(engine)["get"] - before
        received = sample(engine, "streamlog_store_received_bytes_total") - received
    return mb_s, {
        "gets_per_gib": gets / seen * GIB,
        "mean_get_kib": received / max(1.0, gets) / 1024,
        "received_per_read": received / seen,
    }


async def open_all(engine: OpenEngine, stream_ids: list[int]) -> list[Stream]:
    """Opens streams that an earlier process held and the engine has taken over, without a call."""
    return [await engine.streams.open_stream(one, OpenStreamOptions()) for one in stream_ids]


async def read_all(streams: list[Stream], readers: int) -> int:
    """Bytes of all streams, each read from start to end, `readers` streams at a time."""

    async def one(stream: Stream) -> int:
        position, end, seen = stream.start_offset, stream.confirm_offset, 0
        while position < end:
            result = await stream.fetch(position, end, FETCH_BYTES)
            seen += sum(len(part) for batch in result.batches for part in batch.parts)
            position = result.batches[-1].end_offset
        return seen

    calls = (lambda stream=stream: one(stream) for stream in streams)
    sizes, _ = await in_flight(calls, readers)
    return sum(sizes)


async def compact_all(engine: OpenEngine) -> None:
    """Returns when the compactor has no backlog left."""
    assert engine.compactor is not None
    await engine.compactor.compact_all()


async def _compact(report: Report, server: S3Server, folder: Path, label: str) -> None:
    """Compacts in a child process, as a node does. Loop lag and `broker_cpu_s` are the cost to the
    node, the latter without its idle CPU (timers, the watcher of the lag)."""
    config = StreamEngineConfig()
    config = replace(config, compaction=replace(config.compaction, compaction_process="process"))
    async with engine_on(server, folder, config=config) as engine:
        before = [sample(engine, name) for name in _COMPACTED]
        await _start_worker(engine, config)
        lags: list[float] = []
        watching = asyncio.create_task(_watch_lag(lags))
        idle_before = own_cpu_s()
        await asyncio.sleep(IDLE_S)
        idle = (own_cpu_s() - idle_before) / IDLE_S
        lags.clear()
        broker_before, worker_before = own_cpu_s(), _worker_cpu_s()
        began = time.perf_counter()
        await compact_all(engine)
        elapsed = time.perf_counter() - began
        broker_s = max(own_cpu_s() - broker_before - idle * elapsed, 0.0)
        worker_s = _worker_cpu_s() - worker_before
        watching.cancel()
        read, written = (
            sample(engine, name) - earlier for name, earlier in zip(_COMPACTED, before, strict=True)
        )
    copied, copy_cpu_s = await _copy(server, folder, int(written))
    mb_s_per_core = written / max(1e-9, broker_s + worker_s) / 1e6
    copied_per_core = copied / max(1e-9, copy_cpu_s) / 1e6
    row = Row("s3_catchup", f"compaction, {label}", mb_s_per_core, "MB/s/core", copied_per_core)
    row.floor_name = "GET and PUT of the same bytes"
    row.facts = {
        "mb_s": written / elapsed / 1e6,
        "broker_cpu_s": broker_s,
        "idle_broker_cpu_ms_per_s": idle * 1e3,
        "worker_cpu_s": worker_s,
        "read_mib": read / MIB,
        "written_mib": written / MIB,
        "loop_lag_p99_ms": percentile(lags, 0.99),
        "loop_lag_max_ms": max(lags),
    }
    report.add(row)


async def _start_worker(engine: OpenEngine, config: StreamEngineConfig) -> None:
    """Starts the worker first: a second of imports is not part of compaction's cost per byte."""
    assert engine.compactor is not None
    nothing = MergePlanRequest(CompactionPoint(0, 0), [], STREAM_END, config.compaction)
    await engine.compactor._executor.plan(nothing)


def _worker_cpu_s() -> float:
    """CPU seconds of the compactor process so far."""
    workers = [
        one
        for one in psutil.Process().children()
        if "streamlog.compaction.workers.worker" in one.cmdline()
    ]
    return sum(sum(one.cpu_times()[:2]) for one in workers)


_COMPACTED = (
    "streamlog_compaction_read_bytes_total",
    "streamlog_compaction_written_bytes_total",
)


async def _watch_lag(lags: list[float]) -> None:
    """Milliseconds by which a sleep of 20 ms is late; each look costs some 50 µs."""
    while True:
        began = time.perf_counter()
        await asyncio.sleep(0.02)
        lags.append((time.perf_counter() - began - 0.02) * 1e3)


async def _copy(server: S3Server, folder: Path, total: int) -> tuple[int, float]:
    """Bytes and CPU seconds of a copy of `total` bytes of existing objects, 2 at a time."""
    async with raw_store(server, folder.name) as source, raw_store(server, "copies") as target:
        before = own_cpu_s()
        copied = await copy_objects(source, target, folder.name, total, 2)
        return copied, own_cpu_s() - before
