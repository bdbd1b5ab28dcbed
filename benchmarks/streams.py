"""5: the same bytes in appends of 16 KiB over 1, 1,000 and 10,000 streams."""

from __future__ import annotations

import asyncio
import os
import time
from collections import deque
from collections.abc import Awaitable
from pathlib import Path

import streamlog
from benchmarks.report import Report, Row
from streamlog.model.batch import AppendResult, CreateStreamOptions, RecordBatch
from streamlog.wiring import OpenEngine

APPEND_BYTES = 16 << 10
WINDOW = 512
COUNTERS = {
    "puts": "streamlog_engine_put_seconds_count",
    "put_bytes": "streamlog_engine_put_bytes_total",
    "commits": "streamlog_engine_commit_seconds_count",
    "kv_operations": "streamlog_metadata_commit_operations_total",
}


def run(report: Report, folder: Path, *, scale: float) -> None:
    """`scale` 1 appends 1 GiB per case."""
    total = int((1 << 30) * scale)
    for wal in ("disk", "object"):
        one: dict[str, float] | None = None
        for count, aim in ((1, None), (1_000, 0.8), (10_000, 0.5)):
            facts = asyncio.run(_case(f"local://{folder}/{wal}{count}", wal, count, total))
            if one is None:
                one = facts
            row = Row("streams", f"{wal}, {count:,} streams", facts["mb_s"], "MB/s", aim=aim)
            if count > 1:
                row.floor, row.floor_name = one["mb_s"], "one stream"
            puts, commits = max(1.0, facts["puts"]), max(1.0, facts["commits"])
            row.facts = {
                "puts": facts["puts"],
                "puts_ratio": puts / max(1.0, one["puts"]),
                "overhead_percent": 100 * (facts["put_bytes"] / total - 1),
                "kv_per_commit": facts["kv_operations"] / commits,
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
    facts = {name: after[name] - before[name] for name in COUNTERS}
    facts["mb_s"] = total / elapsed / 1e6
    return facts


def _counters(engine: OpenEngine) -> dict[str, float]:
    return {
        name: engine.registry.get_sample_value(sample) or 0.0 for name, sample in COUNTERS.items()
    }
