"""4: library append, wal=disk, against a plain preallocated file with write + fdatasync.

The group size is what the engine makes of the load: it is read from its metrics, and the file is
written in groups of that size in the same run.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import deque
from collections.abc import Awaitable
from pathlib import Path

import streamlog
from benchmarks.floors import BareServer, SyncedFile, p50_p99
from benchmarks.node import running_node
from benchmarks.report import Report, Row, percentile
from streamlog.client import Streams
from streamlog.model.batch import AppendResult, RecordBatch
from streamlog.wiring import OpenEngine

WINDOW = 64


def run(report: Report, folder: Path, *, scale: float) -> None:
    """`scale` 1 appends 1 GiB."""
    asyncio.run(_library(report, folder, scale))
    _through_grpc(report, folder, scale)


async def _library(report: Report, folder: Path, scale: float) -> None:
    file = SyncedFile(folder)
    async with streamlog.open(f"local://{folder}/engine", wal="disk") as engine:
        mb_s, group_bytes = await _throughput(engine, int((1 << 30) * scale))
        floor = file.mb_s(group_bytes, int((1 << 30) * scale))
        report.add(
            Row(
                "library", "append 64 KiB batches", mb_s, "MB/s", floor, "file", 0.7,
                facts={"group_kib": group_bytes / 1024},
            )
        )  # fmt: skip
        appends = await _small_appends(engine, int(2000 * scale))
        raw50, raw99 = p50_p99(file.write_ms(4096, int(2000 * scale)))
        report.add(
            Row(
                "library", "small append p50", percentile(appends, 0.5), "ms",
                aim=raw50 + 0.3, less_is_better=True, facts={"raw_ms": raw50},
            )
        )  # fmt: skip
        report.add(
            Row(
                "library", "small append p99", percentile(appends, 0.99), "ms",
                aim=1.5 * raw99 + 0.2, less_is_better=True, facts={"raw_ms": raw99},
            )
        )  # fmt: skip
    file.close()


async def _throughput(engine: OpenEngine, total: int) -> tuple[float, int]:
    """MB/s of 64 KiB appends, `WINDOW` under way, and the mean bytes of a group."""
    stream = await engine.streams.create_and_open_stream()
    payload = os.urandom(64 << 10)
    batch = RecordBatch(1, 0, (payload,))
    under_way: deque[Awaitable[AppendResult]] = deque()
    groups_before = _groups(engine)
    began = time.perf_counter()
    for _ in range(total // len(payload)):
        if len(under_way) >= WINDOW:
            await under_way.popleft()
        under_way.append(stream.append(batch))
    for append in under_way:
        await append
    elapsed = time.perf_counter() - began
    groups = _groups(engine) - groups_before
    return total / elapsed / 1e6, max(64 << 10, int(total / max(1, groups)))


def _groups(engine: OpenEngine) -> float:
    value = engine.registry.get_sample_value("streamlog_wal_write_seconds_count")
    return value or 0.0


async def _small_appends(engine: OpenEngine, count: int) -> list[float]:
    """Milliseconds of appends of 1 KiB, one after another."""
    stream = await engine.streams.create_and_open_stream()
    batch = RecordBatch(1, 0, (os.urandom(1024),))
    latencies = []
    for _ in range(count):
        began = time.perf_counter()
        await stream.append(batch)
        latencies.append((time.perf_counter() - began) * 1e3)
    return latencies


def _through_grpc(report: Report, folder: Path, scale: float) -> None:
    calls = int(1000 * scale)
    file = SyncedFile(folder)
    with BareServer() as bare, running_node(folder / "grpc", wal="disk") as node:
        bare50, _ = p50_p99(bare.unary_ms(calls))
        raw50, _ = p50_p99(file.write_ms(4096, calls))
        with Streams(node.server) as streams:
            stream_id = streams.create().stream_id
            latencies = []
            payload = os.urandom(1024)
            for _ in range(calls):
                began = time.perf_counter()
                streams.append(stream_id, payload)
                latencies.append((time.perf_counter() - began) * 1e3)
        report.add(
            Row(
                "library", "small append through gRPC p50", percentile(latencies, 0.5), "ms",
                aim=bare50 + raw50 + 0.5, less_is_better=True,
                facts={"bare_ms": bare50, "raw_ms": raw50, "p99_ms": percentile(latencies, 0.99)},
            )
        )  # fmt: skip
    file.close()
