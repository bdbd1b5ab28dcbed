"""Opening a node, a stream and a partition with 10, 10,000 and 1,000,000 committed objects.

Each opening runs in a separate process over local files, so that its RSS can be measured. The
metadata is that of so many commits: a base checkpoint in the store, keys in RocksDB.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import psutil

import streamlog
from benchmarks.report import Report, Row, percentile
from streamlog.engine.cluster import ensure_cluster_id
from streamlog.kvstore.rocks.store import RocksKVStore
from streamlog.model.batch import OpenStreamOptions
from streamlog.model.partition import TopicPartition
from streamlog.objectstore.local.store import LocalObjectStore
from streamlog.runtime.allocator import collect_rarely
from streamlog.runtime.clock import SystemClock
from streamlog.runtime.offload import ThreadOffload
from streamlog.runtime.rand import SystemRandom
from tests.support.metadata_filler import Filled, fill_metadata

COUNTS = (10, 10_000, 1_000_000)
STREAMS = 1000
TOPIC = "opened"
ROUNDS = 5
SMALL = COUNTS[0]


def run(report: Report, folder: Path, *, scale: float) -> None:
    """`scale` 1 goes to a million objects; below, to that share of it."""
    small: dict[str, float] = {}
    for count in COUNTS:
        objects = max(SMALL, int(count * min(scale, 1.0))) if count > SMALL else count
        data = folder / f"objects{count}"
        filled = asyncio.run(_fill(data, objects))
        results = [_opened_by_a_child(data, filled) for _ in range(ROUNDS + 1)][1:]
        facts = {name: percentile([result[name] for result in results], 0.5) for name in results[0]}
        for name in ("node_ms", "stream_ms", "partition_ms", "locate_ms"):
            row = Row("objects", f"{name[:-3]}, {objects:,} objects", facts[name], "ms")
            row.less_is_better = True
            if name not in small:
                small[name] = facts[name]
            else:
                row.floor, row.floor_name = small[name], f"{SMALL} objects"
            row.facts = {"rss_mb": facts["rss_mb"]}
            report.add(row)


async def _fill(data: Path, objects: int) -> Filled:
    offload, clock = ThreadOffload(), SystemClock()
    store = await LocalObjectStore.open(data, offload, clock)
    kv = await RocksKVStore.open(data / "meta", clock, offload)
    cluster = await ensure_cluster_id(kv, store, SystemRandom())
    filled = await fill_metadata(
        kv, store, cluster_id=cluster, node_id=1, objects=objects, streams=STREAMS
    )
    await kv.close()
    await store.close()
    await offload.close()
    async with streamlog.open(f"local://{data}", wal="object") as engine:
        await engine.logs.create_topic(TOPIC, 1)
    return filled


def _opened_by_a_child(data: Path, filled: Filled) -> dict[str, float]:
    arguments = [str(data), str(filled.streams.start), str(filled.end_offset)]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.objects", *arguments],
        check=True,
        capture_output=True,
        text=True,
    )
    result: dict[str, float] = json.loads(done.stdout)
    return result


async def _open(data: str, stream_id: int, end_offset: int) -> dict[str, float]:
    # As a node does; else a search for garbage of 20 ms falls into one of the steps.
    collect_rarely()
    marks = [time.perf_counter()]
    async with streamlog.open(f"local://{data}", wal="object") as engine:
        marks.append(time.perf_counter())
        await engine.streams.open_stream(stream_id, OpenStreamOptions())
        marks.append(time.perf_counter())
        await engine.logs.log(TopicPartition(TOPIC, 0))
        marks.append(time.perf_counter())
        await engine.metadata.locate(stream_id, end_offset // 2, end_offset // 2 + 1)
        marks.append(time.perf_counter())
        rss = psutil.Process().memory_info().rss / 1e6
    names = ("node_ms", "stream_ms", "partition_ms", "locate_ms")
    spans = [(after - before) * 1e3 for before, after in pairwise(marks)]
    return {**dict(zip(names, spans, strict=True)), "rss_mb": rss}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(_open(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))))
