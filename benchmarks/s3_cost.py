"""Requests of a GiB and dollars of a TiB for 1, 100 and 10,000 streams at the same byte rate.

Appends of 16 KiB at 16 MiB/s with their uploads and commits; then everything is compacted, and
read once by a freshly opened engine. List prices of S3 Standard, as `streamlog doctor`
names them; DELETE is free.
"""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

from benchmarks.report import Report, Row
from benchmarks.s3 import (
    GIB,
    MIB,
    engine_on,
    requests_of,
    s3_server,
    sample,
    spent,
    without_compaction,
)
from benchmarks.s3_catchup import READERS, compact_all, open_all, read_all
from streamlog.demo.s3_server import S3Server
from streamlog.doctor.costs import GET_DOLLARS, PUT_DOLLARS
from streamlog.model.batch import CreateStreamOptions, RecordBatch
from streamlog.model.stream import Stream

APPEND_BYTES = 16 << 10
RATE_BYTES_S = 16 * MIB
COUNTS = (1, 100, 10_000)


def run(report: Report, folder: Path, *, scale: float) -> None:
    """`scale` 1 appends 512 MiB, for 32 s, per number of streams."""
    with s3_server(folder, report.variant) as server:
        for count in COUNTS:
            asyncio.run(_case(report, folder, server, count, int(512 * MIB * scale)))


async def _case(report: Report, folder: Path, server: S3Server, count: int, total: int) -> None:
    async with engine_on(server, folder / f"cost{count}") as engine:
        streams = []
        for _ in range(0, count, 1000):
            options = [CreateStreamOptions()] * min(1000, count)
            streams += await engine.streams.create_and_open_streams(options)
        batch = RecordBatch(16, 0, (os.urandom(APPEND_BYTES),))
        before, operations = requests_of(engine), sample(engine, KV)
        began = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for number in range(total // APPEND_BYTES):
                wait_s = began + number * APPEND_BYTES / RATE_BYTES_S - time.perf_counter()
                if wait_s > 0:
                    await asyncio.sleep(wait_s)
                group.create_task(_append(streams[number % count], batch))
        await engine.drain()
        operations = sample(engine, KV) - operations
        written = spent(before, requests_of(engine))
        before = requests_of(engine)
        await compact_all(engine)
        compacted = spent(before, requests_of(engine))
        stream_ids = [stream.stream_id for stream in streams]
    config = without_compaction()
    async with engine_on(server, folder / f"cost{count}", config=config) as engine:
        streams = await open_all(engine, stream_ids)
        before = requests_of(engine)
        assert await read_all(streams, READERS) == total // APPEND_BYTES * APPEND_BYTES
        read = spent(before, requests_of(engine))
    gib = total / GIB
    tib = gib / 1024
    for phase, requests in (("written", written), ("compacted", compacted), ("read", read)):
        row = Row("s3_cost", f"{phase}, {count:,} streams", _dollars(requests) / tib, "$/TiB")
        row.facts = {
            f"{name}s_per_gib": value / gib for name, value in sorted(requests.items()) if value
        }
        if phase == "written":
            row.facts["kv_operations_per_gib"] = operations / gib
        report.add(row)


KV = "streamlog_metadata_commit_operations_total"


async def _append(stream: Stream, batch: RecordBatch) -> None:
    await stream.append(batch)


def _dollars(requests: dict[str, float]) -> float:
    """Deletes and aborted uploads are free."""
    free, cheap = ("delete", "abort_multipart"), ("get", "head")
    return sum(
        count * (GET_DOLLARS if operation in cheap else PUT_DOLLARS)
        for operation, count in requests.items()
        if operation not in free
    )
