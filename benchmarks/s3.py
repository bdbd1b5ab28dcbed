"""Shared by the benchmarks on S3: a server, an engine on it, raw requests with the same client.

The server runs on this machine and shares its cores. So figures are ratios to raw requests through
the same store client, which alternate with the measured runs.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import streamlog
from streamlog.demo.s3_server import S3Server
from streamlog.engine.config import ReadConfig, StreamEngineConfig
from streamlog.model.batch import AppendResult, RecordBatch
from streamlog.model.stream import Stream
from streamlog.objectstore.interface import ObjectStore
from streamlog.objectstore.opening import open_store
from streamlog.objectstore.url import parse_store_url
from streamlog.runtime.buffers import Buffer
from streamlog.runtime.clock import SystemClock
from streamlog.runtime.offload import ThreadOffload
from streamlog.wiring import Components, OpenEngine

MIB = 1 << 20
GIB = 1 << 30
BUCKET = "bench"
SERVERS = ("versitygw", "minio")
"""Servers, built if missing; the first is the default."""

KEPT_BYTES = ReadConfig().block_cache_bytes

T = TypeVar("T")


@contextmanager
def s3_server(folder: Path, kind: str = "") -> Iterator[S3Server]:
    """A server with one bucket; its credentials are in the environment of this process."""
    with S3Server(folder / "s3", kind or SERVERS[0]) as server:
        before = dict(os.environ)
        os.environ.update(server.environment)
        try:
            server.make_bucket(BUCKET)
            yield server
        finally:
            os.environ.clear()
            os.environ.update(before)


@asynccontextmanager
async def raw_store(server: S3Server, prefix: str = "raw") -> AsyncIterator[ObjectStore]:
    """The engine's store client on that server, without caches."""
    offload, clock = ThreadOffload(), SystemClock()
    url = parse_store_url(server.url(BUCKET, prefix))
    store = await open_store(url, offload, clock)
    try:
        yield store
    finally:
        await store.close()
        await offload.close()


@asynccontextmanager
async def engine_on(
    server: S3Server,
    folder: Path,
    *,
    config: StreamEngineConfig | None = None,
    components: Components | None = None,
) -> AsyncIterator[OpenEngine]:
    """A library engine with wal=object; its data stays in the store under the name of `folder`."""
    async with streamlog.open(
        server.url(BUCKET, folder.name),
        meta=f"rocksdb://{folder}/meta",
        wal="object",
        config=config,
        components=components,
    ) as engine:
        yield engine


def without_compaction(config: StreamEngineConfig | None = None) -> StreamEngineConfig:
    """A configuration without compaction, which would share the cores with the measured run."""
    config = config or StreamEngineConfig()
    return replace(config, compaction=replace(config.compaction, compaction_process="off"))


async def in_flight(
    calls: Iterator[Callable[[], Awaitable[T]]], count: int
) -> tuple[list[T], list[float]]:
    """Runs the calls, `count` at a time, in order: results, and milliseconds of each."""
    results: list[T] = []
    latencies: list[float] = []

    async def worker() -> None:
        for call in calls:
            began = time.perf_counter()
            results.append(await call())
            latencies.append((time.perf_counter() - began) * 1e3)

    async with asyncio.TaskGroup() as group:
        for _ in range(count):
            group.create_task(worker())
    return results, latencies


async def raw_put(
    store: ObjectStore, size_bytes: int, total_bytes: int, count: int
) -> tuple[float, list[float]]:
    """MB/s and milliseconds of PUTs of `size_bytes`, `count` in flight."""
    payload = os.urandom(size_bytes)
    tag = time.monotonic_ns()
    calls = (
        lambda number=number: store.put(f"put/{tag}-{number}", [payload])
        for number in range(max(count, total_bytes // size_bytes))
    )
    began = time.perf_counter()
    _, latencies = await in_flight(calls, count)
    return size_bytes * len(latencies) / (time.perf_counter() - began) / 1e6, latencies


async def paced_puts(
    put: Callable[[str, list[bytes]], Awaitable[object]],
    size_bytes: int,
    per_s: float,
    count: int,
) -> list[float]:
    """Milliseconds of `count` calls of `put`, of which `per_s` begin each second."""
    payload = os.urandom(size_bytes)
    tag = time.monotonic_ns()
    latencies: list[float] = []
    began = time.perf_counter()

    async def one(number: int) -> None:
        started = time.perf_counter()
        await put(f"paced/{tag}-{number}", [payload])
        latencies.append((time.perf_counter() - started) * 1e3)

    async with asyncio.TaskGroup() as group:
        for number in range(count):
            await until(began + number / per_s)
            group.create_task(one(number))
    return latencies


async def paced_appends(
    streams: list[Stream], batch: RecordBatch, per_s: float, count: int
) -> list[float]:
    """Milliseconds from when each append was due to its acknowledgement."""
    latencies: list[float] = []
    began = time.perf_counter()

    async def one(number: int, due: float) -> None:
        await streams[number % len(streams)].append(batch)
        latencies.append((time.perf_counter() - due) * 1e3)

    async with asyncio.TaskGroup() as group:
        for number in range(count):
            due = began + number / per_s
            await until(due)
            group.create_task(one(number, due))
    return latencies


async def until(due: float) -> None:
    wait_s = due - time.perf_counter()
    if wait_s > 0:
        await asyncio.sleep(wait_s)


async def raw_get(
    store: ObjectStore, ranges: list[tuple[str, int, int]], count: int
) -> tuple[float, list[float]]:
    """MB/s and milliseconds of ranged GETs (key, start, length), `count` in flight.

    The last KEPT_BYTES stay in memory, as in a reader's cache: what takes its answers into the
    same hot buffer again and again reads nothing, and what keeps all pays for pages alone.
    """
    kept: deque[Buffer] = deque()
    kept_bytes = 0

    async def get(key: str, start: int, length: int) -> int:
        nonlocal kept_bytes
        data = await store.get(key, start, length)
        kept.append(data)
        kept_bytes += len(data)
        while kept_bytes > KEPT_BYTES:
            kept_bytes -= len(kept.popleft())
        return len(data)

    calls = (
        lambda key=key, start=start, length=length: get(key, start, length)
        for key, start, length in ranges
    )
    began = time.perf_counter()
    sizes, latencies = await in_flight(calls, count)
    return sum(sizes) / (time.perf_counter() - began) / 1e6, latencies


async def data_ranges(store: ObjectStore, mean: int, total: int) -> list[tuple[str, int, int]]:
    """Ranges of `mean` bytes over the existing data objects, `total` bytes together."""
    found: list[tuple[str, int, int]] = []
    left = total
    token: str | None = None
    while left > 0:
        page = await store.list("data/", token=token)
        for info in page.objects:
            for start in range(0, info.size_bytes, mean):
                length = min(mean, info.size_bytes - start)
                if left > 0:
                    found.append((info.key, start, length))
                    left -= length
        token = page.next_token
        if token is None:
            break
    return found


async def copy_objects(
    source: ObjectStore, target: ObjectStore, prefix: str, total: int, count: int
) -> int:
    """Gets and puts `total` bytes of existing data objects, `count` at a time; returns bytes."""
    found = await data_ranges(source, GIB, total)

    async def copy(key: str, length: int) -> int:
        data = await source.get(key, 0, length)
        await target.put(f"{prefix}/{key.rpartition('/')[2]}", [data])
        return len(data)

    calls = (lambda key=key, length=length: copy(key, length) for key, _, length in found)
    sizes, _ = await in_flight(calls, count)
    return sum(sizes)


async def append_all(
    streams: list[Stream], batch: RecordBatch, total_bytes: int, window_bytes: int
) -> float:
    """MB/s of appends in turn over the streams, at most `window_bytes` under way."""
    size = sum(len(part) for part in batch.parts)
    window = max(1, window_bytes // size)
    under_way: deque[Awaitable[AppendResult]] = deque()
    count = max(1, total_bytes // size)
    began = time.perf_counter()
    for number in range(count):
        if len(under_way) >= window:
            await under_way.popleft()
        under_way.append(streams[number % len(streams)].append(batch))
    for append in under_way:
        await append
    return count * size / (time.perf_counter() - began) / 1e6


def objects_made(engine: OpenEngine) -> tuple[float, float]:
    """Bytes and number of the objects uploaded so far."""
    name = "streamlog_engine_object_bytes"
    return sample(engine, f"{name}_sum"), sample(engine, f"{name}_count")


def sample(engine: OpenEngine, name: str, **labels: str) -> float:
    """A sample of the engine's metrics; 0 if there is none."""
    return engine.registry.get_sample_value(name, labels or None) or 0.0


def requests_of(engine: OpenEngine) -> dict[str, float]:
    """Requests to the store so far by operation, failed ones included."""
    found: dict[str, float] = {}
    for metric in engine.registry.collect():
        if metric.name == "streamlog_store_requests":
            for one in metric.samples:
                if one.name.endswith("_total"):
                    operation = one.labels["operation"]
                    found[operation] = found.get(operation, 0.0) + one.value
    return found


def spent(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    return {name: value - before.get(name, 0.0) for name, value in after.items()}
