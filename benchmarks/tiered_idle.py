"""10,000 tiered partitions of which nobody reads or writes one: memory, and CPU of the rounds.

Each has a segment in the remote tier alone and an active one without records. The store is in
memory, and what it holds is counted.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import psutil

import streamlog
from benchmarks.node import own_cpu_s
from benchmarks.report import Report, Row, percentile
from benchmarks.s3 import without_compaction
from benchmarks.tiered import TIERED
from streamlog.codec.records import encode_values
from streamlog.log.api.tiering import TierableLog
from streamlog.model.partition import TopicPartition
from streamlog.tiered.config import RemoteLogConfig
from streamlog.wiring import OpenEngine

PARTITIONS = 10_000
AT_ONCE = 100
CONFIGS = {**TIERED, "segment.bytes": str(1 << 20)}
ROUNDS = 5
ROUND_S = RemoteLogConfig().task_interval_ms / 1000


def run(report: Report, folder: Path, *, scale: float) -> None:
    """`scale` 1 has 10,000 partitions."""
    asyncio.run(_idle(report, folder, max(AT_ONCE, int(PARTITIONS * scale))))


async def _idle(report: Report, folder: Path, count: int) -> None:
    # Rounds are begun here, so that each can be measured.
    tiers = RemoteLogConfig(task_interval_ms=3_600_000)
    async with streamlog.open(
        "memory://",
        meta=f"rocksdb://{folder}/meta",
        wal="object",
        log_dir=folder / "logs",
        config=without_compaction(),
        tiers=tiers,
    ) as engine:
        process = psutil.Process()
        before = process.memory_info().rss
        await engine.logs.create_topic("idle", count, CONFIGS)
        logs = [await _log(engine, number) for number in range(count)]
        opened = process.memory_info().rss
        await _make_remote(engine, logs)
        spent = [await _round(engine) for _ in range(ROUNDS)]
        gc.collect()
        kib = (process.memory_info().rss - before) / 1024 / count
        kib_opened = (opened - before) / 1024 / count
    row = Row("tiered_idle", f"memory, {count:,} partitions", kib, "KiB each", less_is_better=True)
    row.facts = {"kib_without_records": kib_opened}
    report.add(row)
    round_s = percentile(spent, 0.5)
    row = Row("tiered_idle", "CPU of a round of tasks", round_s, "s", less_is_better=True)
    row.facts = {"share_of_a_core": round_s / ROUND_S}
    report.add(row)


async def _log(engine: OpenEngine, number: int) -> TierableLog:
    log = await engine.logs.log(TopicPartition("idle", number))
    assert isinstance(log, TierableLog)
    return log


async def _make_remote(engine: OpenEngine, logs: Sequence[TierableLog]) -> None:
    """A record of each log is in the remote tier alone."""
    assert engine.tiers is not None
    now_ms = int(time.time() * 1000)
    batch = bytes(encode_values([b"x" * 100], timestamp_ms=now_ms).data)

    async def fill(log: TierableLog) -> None:
        await (await log.append(batch))
        await log.roll()

    await _by_turns(logs, fill)
    await engine.tiers.run_tasks()
    await engine.logs.retention_tick()
    assert all(log.local_log_start_offset == 1 for log in logs), "not all went to the tier"


async def _by_turns(
    logs: Sequence[TierableLog], work: Callable[[TierableLog], Awaitable[None]]
) -> None:
    for first in range(0, len(logs), AT_ONCE):
        await asyncio.gather(*[work(log) for log in logs[first : first + AT_ONCE]])


async def _round(engine: OpenEngine) -> float:
    """CPU seconds of what a node does every 30 s for partitions at rest."""
    assert engine.tiers is not None
    began = own_cpu_s()
    await engine.tiers.run_tasks()
    return own_cpu_s() - began
