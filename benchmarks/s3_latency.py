"""How long an append waits for its acknowledgement on a real S3 server.

An idle node uploads at once: one append costs one PUT and one commit. Its floor is a raw PUT of the
same size followed by a raw synced transaction, alternating with the appends. Under a steady load of
1 KiB records the p99 of acks is compared with the flush interval and the p99 of raw PUTs at the
same rate and size.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from benchmarks.node import running_node
from benchmarks.produce import EncodedLoad
from benchmarks.report import Report, Row, percentile
from benchmarks.s3 import (
    BUCKET,
    MIB,
    engine_on,
    objects_made,
    paced_appends,
    paced_puts,
    raw_store,
    s3_server,
    without_compaction,
)
from streamlog.demo.s3_server import S3Server
from streamlog.engine.config import FlushConfig
from streamlog.kvstore.interface import Put
from streamlog.kvstore.rocks.store import RocksKVStore
from streamlog.model.batch import CreateStreamOptions, RecordBatch
from streamlog.runtime.clock import SystemClock
from streamlog.runtime.offload import ThreadOffload
from streamlog.wiring import Components

ROUNDS = 5
RATE_MB_S = 50 * MIB / 1e6
BATCH_BYTES = 64 << 10
MESSAGE_BYTES = 512 << 10
"""The size to which a producer's batches grow; its window of 16 MiB then outlasts a flush
interval."""
FLUSH_MS = FlushConfig().flush_interval_ms
NODE_SETTINGS = {"engine.compaction.compaction_process": '"off"'}


def run(report: Report, folder: Path, *, scale: float) -> None:
    """`scale` 1 holds each load for 10 s."""
    with s3_server(folder, report.variant) as server:
        asyncio.run(_idle(report, folder, server, max(10, int(60 * scale))))
        asyncio.run(_loaded(report, folder, server, 10 * scale))
        for wal in ("object", "disk"):
            _through_grpc(report, folder, server, wal, 10 * scale)


async def _idle(report: Report, folder: Path, server: S3Server, count: int) -> None:
    """In turns, each after the same pause; both transactions go into the same RocksDB, for the
    cost of a sync depends on the file.
    """
    payload = os.urandom(1024)
    async with (
        _synced_kv(folder / "idle-meta") as kv,
        raw_store(server) as raw,
        engine_on(
            server, folder / "idle", config=without_compaction(), components=Components(kv=kv)
        ) as engine,
    ):
        stream = await engine.streams.create_and_open_stream()

        async def append(_: int) -> None:
            await stream.append(RecordBatch(1, 0, (payload,)))

        async def floor(number: int) -> None:
            await raw.put(f"idle/{number}", [payload])
            await _commit(kv, str(number))

        took: dict[str, list[float]] = {"append": [], "floor": []}
        for number in range(ROUNDS * count):
            for name, work in (("append", append), ("floor", floor)):
                # The engine spaces uploads that are not full: waits until the node is idle.
                await asyncio.sleep(0.6 / FlushConfig().put_rate_max_per_s)
                began = time.perf_counter()
                await work(number)
                took[name].append((time.perf_counter() - began) * 1e3)
    appends, floors = took["append"], took["floor"]
    report.add(
        Row(
            "s3_latency", "idle single append p50", percentile(appends, 0.5), "ms",
            percentile(floors, 0.5), "raw PUT + raw transaction", 1 / 1.2, less_is_better=True,
            facts={"p99_ms": percentile(appends, 0.99), "raw_p99_ms": percentile(floors, 0.99)},
        )
    )  # fmt: skip


@asynccontextmanager
async def _synced_kv(folder: Path) -> AsyncIterator[RocksKVStore]:
    offload = ThreadOffload()
    kv = await RocksKVStore.open(folder, SystemClock(), offload)
    try:
        yield kv
    finally:
        await kv.close()
        await offload.close()


async def _commit(kv: RocksKVStore, name: str) -> None:
    """A raw transaction like that of a commit: a head and a record, synced."""
    key = b"bench/%s" % name.encode()
    await kv.txn([], [Put(b"bench/head", key), Put(key, bytes(200))])


async def _loaded(report: Report, folder: Path, server: S3Server, seconds: float) -> None:
    """50 MiB/s of 64 KiB batches in the library, then PUTs of the objects that it made."""
    async with engine_on(server, folder / "loaded", config=without_compaction()) as engine:
        streams = await engine.streams.create_and_open_streams([CreateStreamOptions()] * 8)
        batch = RecordBatch(64, 0, (os.urandom(BATCH_BYTES),))
        rate = RATE_MB_S * 1e6 / BATCH_BYTES
        await paced_appends(streams, batch, rate, int(2 * rate))
        before = objects_made(engine)
        acks = await paced_appends(streams, batch, rate, int(seconds * rate))
        after = objects_made(engine)
    size_bytes = int((after[0] - before[0]) / max(1.0, after[1] - before[1]))
    per_s = (after[1] - before[1]) / seconds
    count = max(20, int(seconds * per_s))
    async with raw_store(server) as raw, _synced_kv(folder / "loaded-raw-meta") as kv:

        async def put_and_commit(key: str, parts: list[bytes]) -> None:
            await raw.put(key, parts)
            await _commit(kv, key)

        puts = await paced_puts(raw.put, size_bytes, per_s, count)
        both = await paced_puts(put_and_commit, size_bytes, per_s, count)
    bound = FLUSH_MS + 1.3 * percentile(puts, 0.99)
    report.add(
        Row(
            "s3_latency", "ack p99 at 50 MiB/s, library", percentile(acks, 0.99), "ms",
            aim=bound, less_is_better=True,
            facts={
                "p50_ms": percentile(acks, 0.5),
                "raw_put_p99_ms": percentile(puts, 0.99),
                "raw_put_p50_ms": percentile(puts, 0.5),
                "raw_put_and_transaction_p99_ms": percentile(both, 0.99),
                "object_mib": size_bytes / MIB,
                "puts_per_s": per_s,
            },
        )
    )  # fmt: skip


def _through_grpc(report: Report, folder: Path, server: S3Server, wal: str, seconds: float) -> None:
    name = f"grpc-{wal}"
    with running_node(
        folder / name,
        wal=wal,
        settings=NODE_SETTINGS,
        store=server.url(BUCKET, name),
        meta=f"rocksdb://{folder}/{name}/meta",
    ) as node:
        load = EncodedLoad(node)
        load.send(load.batches("warm", MESSAGE_BYTES, 64 * MIB), MESSAGE_BYTES)
        p50, p99, rate = load.paced("paced", MESSAGE_BYTES, RATE_MB_S, seconds)
    row = Row("s3_latency", f"ack at 50 MiB/s of 1 KiB records, gRPC, wal={wal}", p50, "ms p50")
    row.facts = {"p99_ms": p99, "mb_s": rate}
    report.add(row)
