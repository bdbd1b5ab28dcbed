"""The same bytes in appends of 16 KiB over 1, 1,000 and 10,000 streams."""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections import deque
from collections.abc import Awaitable
from pathlib import Path
from statistics import median

import streamlog
from benchmarks.node import own_cpu_s
from benchmarks.report import Report, Row
from streamlog.model.batch import AppendResult, CreateStreamOptions, RecordBatch
from streamlog.wiring import OpenEngine

APPEND_BYTES = 16 << 10
WINDOW = 512
ROUNDS = 3
COUNTERS = {
    "puts": "streamlog_engine_put_seconds_count",
    "put_bytes": "streamlog_engine_put_bytes_total",
    "commits": "streamlog_engine_commit_seconds_count",
    "kv_operations": "streamlog_metadata_commit_operations_total",
}


def run(report: Report, folder: Path, *, scale: float) -> None:
    """`scale` 1 appends 512 MiB per case and round; rounds take turns."""
    total = int((512 << 20) * scale)
    for wal in ("disk", "object"):
        found: dict[int, list[dict[str, float]]] = {1: [], 1_000: [], 10_000: []}
        for number in range(ROUNDS):
            for count, rounds in found.items():
                data = folder / f"{wal}-{count}-{number}"
                rounds.append(asyncio.run(_case(f"local://{data}", wal, count, total)))
                shutil.rmtree(data)
        one = found[1]
        for count, aim in ((1, None), (1_000, 0.8), (10_000, 0.5)):
            rounds = found[count]
            facts = {name: median(case[name] for case in rounds) for name in rounds[0]}
            mb_s = facts["mb_s"]
            row = Row("streams", f"{wal}, {count:,} streams", mb_s, "MB/s", aim=aim)
            if count > 1:
                row.floor, row.floor_name = median(case["mb_s"] for case in one), "one stream"
                row.ratios = [a["mb_s"] / b["mb_s"] for a, b in zip(rounds, one, strict=True)]
            row.facts = {
                "puts": facts["puts"],
                "puts_ratio": facts["puts"] / max(1.0, median(case["puts"] for case in one)),
                "overhead_percent": 100 * (facts["put_bytes"] / total - 1),
                "kv_per_commit": facts["kv_operations"] / max(1.0, facts["commits"]),
                "cpu_s_per_gib": facts["cpu_s"] / total * (1 << 30),
            }
            report.add(row)


async def _case(store: str, wal: str, count: int, total: int) -> dict[str, float]:
    async with streamlog.open(store, wal=wal) as engine:  # type: ignore[arg-type]
        streams = []
        for _ in range(0, count, 1000):
            options = [CreateStreamOptions()] * min(1000, count)
            streams += await engine.streams.create_and_open_streams(options)
        payload = os.urandom(APPEND_BYTES)
        batch = RecordBatch(1, 0, (payload,))
        under_way: deque[Awaitable[AppendResult]] = deque()
        before = _counters(engine)
        cpu_before = own_cpu_s()
        began = time.perf_counter()
        for number in range(total // APPEND_BYTES):
            if len(under_way) >= WINDOW:
                await under_way.popleft()
            under_way.append(streams[number % count].append(batch))
        for append in under_way:
            await append
        elapsed = time.perf_counter() - began
        await engine.drain()
        after = _counters(engine)
        cpu_s = own_cpu_s() - cpu_before
    facts = {name: after[name] - before[name] for name in COUNTERS}
    facts["mb_s"] = total / elapsed / 1e6
    facts["cpu_s"] = cpu_s
    return facts


def _counters(engine: OpenEngine) -> dict[str, float]:
    return {
        name: engine.registry.get_sample_value(sample) or 0.0 for name, sample in COUNTERS.items()
    }
