"""Memory and opening time of a million objects; metadata bytes at 1, 100, 10,000 streams.

Opening runs in separate processes over local files. The other part is simulated in virtual time
(metadata_world): commits of 1 MiB objects with a row for each stream, ten a second, with
checkpoints, compaction and deletion; no data bytes.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path

import psutil
from prometheus_client import CollectorRegistry

from benchmarks.metadata_world import Course, Sample, simulate
from benchmarks.report import Report, Row, percentile
from streamlog.kvstore.rocks.store import RocksKVStore
from streamlog.metadata.open import open_metadata
from streamlog.objectstore.local.store import LocalObjectStore
from streamlog.runtime.clock import SystemClock
from streamlog.runtime.offload import ThreadOffload
from streamlog.runtime.rand import SystemRandom
from tests.support.metadata_filler import fill_metadata

OBJECTS = 1_000_000
OPEN_STREAMS = 10_000
CLUSTER = "benchmark"
ROUNDS = 5
COUNTS = (1, 100, 10_000)
MINUTES = 60
CPU_S_MAX = 300.0
MIB = 1 << 20
GIB = 1 << 30
DAY_S = 24 * 3600


def run(report: Report, folder: Path, *, scale: float) -> None:
    """`scale` 1: a million objects; an hour, or as much of it as five minutes of CPU can
    simulate."""
    objects = max(1000, int(OBJECTS * min(scale, 1)))
    asyncio.run(_fill(folder, objects))
    _opened(report, folder, objects)
    for streams in COUNTS:
        course = simulate(streams, max(2, int(MINUTES * scale)), CPU_S_MAX * scale)
        for row in _rows(streams, course):
            report.add(row)


# opening


async def _fill(folder: Path, objects: int) -> None:
    offload, clock = ThreadOffload(), SystemClock()
    store = await LocalObjectStore.open(folder / "objects", offload, clock)
    kv = await RocksKVStore.open(folder / "meta", clock, offload)
    await fill_metadata(
        kv, store, cluster_id=CLUSTER, node_id=1, objects=objects, streams=OPEN_STREAMS
    )
    await kv.close()
    await store.close()
    await offload.close()


def _opened(report: Report, folder: Path, objects: int) -> None:
    plain = [_open_in_a_child(folder, "plain") for _ in range(ROUNDS)]
    traced = _open_in_a_child(folder, "traced")
    case = f"{objects:,} objects, {OPEN_STREAMS:,} streams"
    opening = Row("metadata", f"open, {case}", percentile([p["ms"] for p in plain], 0.5), "ms")
    opening.less_is_better = True
    state = Row("metadata", f"state, {case}", traced["mib"], "MiB", less_is_better=True)
    state.facts = {
        "rss_growth_mib": percentile([p["mib"] for p in plain], 0.5),
        "bytes_per_object": traced["mib"] * MIB / objects,
    }
    report.add(opening)
    report.add(state)


def _open_in_a_child(folder: Path, how: str) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.metadata", str(folder), how],
        check=True,
        capture_output=True,
        text=True,
    )
    result: dict[str, float] = json.loads(done.stdout)
    return result


async def _open(folder: Path, how: str) -> dict[str, float]:
    """`mib`: the growth by opening, in RSS or (traced) in Python's allocations."""
    offload, clock = ThreadOffload(), SystemClock()
    store = await LocalObjectStore.open(folder / "objects", offload, clock)
    kv = await RocksKVStore.open(folder / "meta", clock, offload)
    process = psutil.Process()
    if how == "traced":
        tracemalloc.start()
    before = process.memory_info().rss
    began = time.perf_counter()
    metadata = await open_metadata(
        kv,
        store,
        cluster_id=CLUSTER,
        node_id=1,
        wal_mode="object",
        clock=clock,
        random=SystemRandom(),
        offload=offload,
        registry=CollectorRegistry(),
    )
    await metadata.take_over_previous(frozenset())
    elapsed_ms = (time.perf_counter() - began) * 1e3
    grown = process.memory_info().rss - before
    if how == "traced":
        grown, _ = tracemalloc.get_traced_memory()
    await metadata.close(drained=True)
    await kv.close()
    await store.close()
    await offload.close()
    return {"ms": elapsed_ms, "mib": grown / MIB}


# an hour


def _rows(streams: int, course: Course) -> list[Row]:
    case = f"{streams:,} streams"
    appended_mib = course.appended_bytes / MIB
    samples = course.samples
    half = samples[len(samples) // 2 :]
    highest = max(one.live_kv_bytes for one in samples)
    by_day = DAY_S / course.simulated_s
    common = {
        "simulated_min": course.simulated_s / 60,
        "cpu_s_per_min": course.cpu_s / course.simulated_s * 60,
    }
    live = Row("metadata", f"live KV, highest, {case}", highest / MIB, "MiB")
    live.less_is_better, live.aim = True, GIB / MIB
    live.facts = {
        **common,
        "highest_of_1st_half": max(one.live_kv_bytes for one in samples[: -len(half)]) / MIB,
        "highest_of_2nd_half": max(one.live_kv_bytes for one in half) / MIB,
        "last": samples[-1].live_kv_bytes / MIB,
        "kv_mib_written_in_24h_extrapolated": course.kv_put_bytes * by_day / MIB,
    }
    put = Row("metadata", f"KV bytes per MiB, {case}", course.kv_put_bytes / appended_mib, "B/MiB")
    put.less_is_better = True
    put.facts = {
        **common,
        "kv_operations_per_s": course.kv_operations / course.simulated_s,
        "1st_half_b_per_s": _per_s(samples[: -len(half)], "kv_put_bytes"),
        "2nd_half_b_per_s": _per_s(half, "kv_put_bytes"),
    }
    files = Row(
        "metadata", f"checkpoint bytes per MiB, {case}", course.checkpoint_bytes / appended_mib,
        "B/MiB", less_is_better=True,
    )  # fmt: skip
    files.facts = {
        **common,
        "1st_half_b_per_s": _per_s(samples[: -len(half)], "checkpoint_bytes"),
        "2nd_half_b_per_s": _per_s(half, "checkpoint_bytes"),
        "puts": course.checkpoint_puts,
        "files_mib": course.file_bytes / MIB,
        "ranges_in_files": course.file_ranges,
    }
    state = Row(
        "metadata", f"ranges in memory, highest, {case}",
        max(one.memory_ranges for one in samples), "ranges", less_is_better=True,
    )  # fmt: skip
    state.facts = {
        **common,
        "objects_live": course.objects,
        "objects_dead": course.dead_objects,
        "backlog": course.backlog,
        "compactions": course.compactions,
        "rewritten_per_byte": course.compacted_bytes / course.appended_bytes,
        "rss_mib": psutil.Process().memory_info().rss / MIB,
    }
    return [live, put, files, state]


def _per_s(samples: list[Sample], name: str) -> float:
    """The growth of a sum per second."""
    first, last = samples[0], samples[-1]
    grown: float = getattr(last, name) - getattr(first, name)
    return grown / max(last.at_s - first.at_s, 1)


if __name__ == "__main__":
    print(json.dumps(asyncio.run(_open(Path(sys.argv[1]), sys.argv[2]))))
