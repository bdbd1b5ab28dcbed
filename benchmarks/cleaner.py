"""The cleaner of compacted logs, against the compactor of objects, by CPU second.

Each log holds every key twice, in batches of 128 KiB, so that a cleaning leaves half of it. The
log's bytes count once, though the cleaner reads its dirty part twice, for keys and for records. The
compactor merges the objects of the same shared log, in this process. The figures have all CPU of
the process: reads, appends, and uploads of what is left.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import cast

import streamlog
from benchmarks.node import own_cpu_s
from benchmarks.report import Report, Row
from benchmarks.s3 import without_compaction
from streamlog.codec.batch import NO_PRODUCER, Compression
from streamlog.codec.records import BatchBuilder
from streamlog.log.api.cleaning import CleanableLog
from streamlog.log.api.config import LogConfig
from streamlog.log.api.topic_config import parse
from streamlog.log.cleaning.cleanable import log_to_clean
from streamlog.log.cleaning.cleaner import LogCleaning
from streamlog.model.partition import TopicPartition
from streamlog.runtime.offload import ThreadOffload
from streamlog.wiring import OpenEngine

TOPIC = "kept"
BATCH_BYTES = 128 << 10
DEDUPE_BYTES = 1 << 30
ROUNDS = 3
AIM = 0.5
"""Of the compactor's MB/s per core, at 1 KiB, plain."""
CONFIGS = {"cleanup.policy": "compact", "segment.bytes": str(64 << 20), "file.delete.delay.ms": "0"}


@dataclass(frozen=True)
class Load:
    """Records of one size; the keys, `count` of them, come twice."""

    record_bytes: int
    codec: Compression
    count: int

    @property
    def name(self) -> str:
        return f"{self.record_bytes} B, {self.codec.name.lower().replace('none', 'plain')}"

    def batches(self) -> list[bytes]:
        """Text that zstd shrinks to about a third, as logs do."""
        chosen = random.Random(7)
        words = [b"%x" % chosen.getrandbits(chosen.randrange(8, 40)) for _ in range(4000)]
        text = b" ".join(chosen.choices(words, k=20_000))
        size = self.record_bytes - 24
        places = [chosen.randrange(len(text) - size) for _ in range(5000)]
        made: list[bytes] = []
        builder = BatchBuilder(BATCH_BYTES, compression=self.codec)
        for number in range(2 * self.count):
            key, at = b"key-%012d" % (number % self.count), places[number % 5000]
            if not builder.append(1_700_000_000_000, key, text[at : at + size]):
                made.append(bytes(builder.build(NO_PRODUCER)))
                builder = BatchBuilder(BATCH_BYTES, compression=self.codec)
                builder.append(1_700_000_000_000, key, text[at : at + size])
        return [*made, bytes(builder.build(NO_PRODUCER))]


def run(report: Report, folder: Path, *, scale: float) -> None:
    """`scale` 1 cleans 256 MiB of uncompressed records a round."""
    for record_bytes in (1024, 100):
        for codec in (Compression.NONE, Compression.ZSTD):
            count = max(1000, int((128 << 20) * scale) // record_bytes)
            asyncio.run(_case(report, folder, Load(record_bytes, codec, count)))


async def _case(report: Report, folder: Path, load: Load) -> None:
    batches = load.batches()
    shared, unified, compacted = [], [], []
    facts: dict[str, float] = {}
    for number in range(ROUNDS):
        place = folder / f"{load.record_bytes}-{load.codec}-{number}"
        async with _opened(place) as engine:
            rate, facts = await _cleaned(engine, "shared", batches)
            shared.append(rate)
            unified.append((await _cleaned(engine, "unified", batches))[0])
        compacted.append(await _compacted(place, batches))
    is_aim = load.record_bytes == 1024 and load.codec is Compression.NONE
    for kind, rates, more in (("shared", shared, facts), ("unified", unified, {})):
        report.add(
            Row(
                "cleaner",
                f"{kind}, {load.name}",
                median(rates),
                "MB/s/core",
                median(compacted),
                "compactor",
                AIM if is_aim else None,
                ratios=[one / floor for one, floor in zip(rates, compacted, strict=True)],
                facts=more,
            )
        )


@asynccontextmanager
async def _opened(place: Path) -> AsyncIterator[OpenEngine]:
    async with streamlog.open(
        f"local://{place}/engine",
        wal="object",
        log_dir=place / "logs",
        config=without_compaction(),
        logs=LogConfig(cleaner_enable=False),
    ) as engine:
        yield engine


async def _filled(engine: OpenEngine, kind: str, batches: list[bytes]) -> CleanableLog:
    name = f"{TOPIC}-{kind}"
    await engine.logs.create_topic(name, 1, {**CONFIGS, "log.type": kind})
    log = await engine.logs.log(TopicPartition(name, 0))
    waiting = [await log.append(data) for data in batches]
    for answer in waiting:
        await answer
    await log.roll()
    await engine.drain()
    return cast(CleanableLog, log)


async def _cleaned(
    engine: OpenEngine, kind: str, batches: list[bytes]
) -> tuple[float, dict[str, float]]:
    """MB of the log by CPU second, and what else the cleaning tells."""
    log = await _filled(engine, kind, batches)
    config = parse({**CONFIGS, "log.type": kind})
    offload = ThreadOffload()
    size = log.size_bytes
    try:
        cleaning = LogCleaning(offload, DEDUPE_BYTES)
        cpu_s, began = own_cpu_s(), time.perf_counter()
        stats = await cleaning.clean(log_to_clean(log, config, 1_800_000_000_000), config, 0)
        await engine.drain()
        cpu_s, elapsed = own_cpu_s() - cpu_s, time.perf_counter() - began
    finally:
        await offload.close()
    assert stats.records_written * 2 == stats.records_read
    return size / cpu_s / 1e6, {
        "mb_s": size / elapsed / 1e6,
        "records_per_cpu_s": stats.records_read / cpu_s,
        "left": log.size_bytes / size,
    }


async def _compacted(place: Path, batches: list[bytes]) -> float:
    """MB of objects by CPU second, merged by the compactor in this process."""
    store = f"local://{place}/compacted"
    size = sum(map(len, batches))
    async with streamlog.open(store, wal="object", config=without_compaction()) as engine:
        await _filled(engine, "shared", batches)
    async with streamlog.open(store, wal="object") as engine:
        assert engine.compactor is not None
        cpu_s = own_cpu_s()
        await engine.compactor.compact_all()
        cpu_s = own_cpu_s() - cpu_s
    return size / cpu_s / 1e6
