"""Library append, wal=disk, against a plain preallocated file with write + fdatasync.

The engine's metrics give the size of its groups; the file is written in groups of that size in the
same run, alternating with the engine. The engine writes each byte twice (WAL, then object), which
the second throughput row takes into account.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import deque
from collections.abc import Awaitable
from pathlib import Path
from statistics import median

import streamlog
from benchmarks.floors import BareServer, SyncedFile, p50_p99
from benchmarks.node import running_node
from benchmarks.report import Report, Row, percentile
from streamlog.client import Streams
from streamlog.model.batch import AppendResult, RecordBatch
from streamlog.wiring import OpenEngine

WINDOW = 64
ROUNDS = 5


def run(report: Report, folder: Path, *, scale: float) -> None:
    """`scale` 1 appends 1 GiB."""
    asyncio.run(_library(report, folder, scale))
    _through_grpc(report, folder, scale)


async def _library(report: Report, folder: Path, scale: float) -> None:
    file = SyncedFile(folder)
    total = int((1 << 30) * scale) // ROUNDS
    figures: list[tuple[float, float, float]] = []
    async with streamlog.open(f"local://{folder}/engine", wal="disk") as engine:
        await _throughput(engine, 64 << 20)
        for _ in range(ROUNDS):
            await engine.drain()
            mb_s, group_bytes = await _throughput(engine, total)
            await engine.drain()
            figures.append((mb_s, file.mb_s(group_bytes, total), group_bytes / 1024))
        values, floors, groups = (list(column) for column in zip(*figures, strict=True))
        for name, share, aim in (("once", 1.0, 0.7), ("twice, as it is", 0.5, None)):
            report.add(
                Row(
                    "library", f"append 64 KiB batches / file written {name}", median(values),
                    "MB/s", median(floors) * share, "file", aim,
                    ratios=[v / (f * share) for v, f in zip(values, floors, strict=True)],
                    facts={"group_kib": median(groups)},
                )
            )  # fmt: skip
        appends: list[float] = []
        raw: list[float] = []
        for _ in range(ROUNDS):
            await engine.drain()
            appends += await _small_appends(engine, int(400 * scale) + 50)
            raw += file.write_ms(4096, int(400 * scale) + 50)
        raw50, raw99 = p50_p99(raw)
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
    file = SyncedFile(folder)
    calls = int(200 * scale) + 50
    bare_ms: list[float] = []
    raw_ms: list[float] = []
    appends: list[float] = []
    with BareServer() as bare, running_node(folder / "grpc", wal="disk") as node:
        with Streams(node.server) as streams:
            stream_id = streams.create().stream_id
            payload = os.urandom(1024)
            for _ in range(ROUNDS):
                bare_ms += bare.unary_ms(calls)
                raw_ms += file.write_ms(4096, calls)
                for _ in range(calls):
                    began = time.perf_counter()
                    streams.append(stream_id, payload)
                    appends.append((time.perf_counter() - began) * 1e3)
                node.wait_until_idle()
        bare50, raw50 = percentile(bare_ms, 0.5), percentile(raw_ms, 0.5)
        report.add(
            Row(
                "library", "small append through gRPC p50", percentile(appends, 0.5), "ms",
                aim=bare50 + raw50 + 0.5, less_is_better=True,
                facts={"bare_ms": bare50, "raw_ms": raw50, "p99_ms": percentile(appends, 0.99)},
            )
        )  # fmt: skip
    file.close()
