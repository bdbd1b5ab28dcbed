"""7: wal=object on a real S3 server: appends against raw parallel PUTs of the same objects.

Each round measures raw PUTs (the same client, object size and number in flight), the library, and
a node through gRPC, without and with a reader at its tail, one after another. Then the same store
gets 20, 100 and 300 ms slower: the throughput of appends should stay, their latency grows.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from pathlib import Path
from statistics import median

from benchmarks.node import RunningNode, running_node
from benchmarks.produce import PARTITIONS, EncodedLoad, Measured
from benchmarks.report import Report, Row, percentile
from benchmarks.s3 import (
    BUCKET,
    MIB,
    append_all,
    engine_on,
    raw_put,
    raw_store,
    s3_server,
    sample,
    without_compaction,
)
from streamlog.client import Consumer
from streamlog.demo.s3_server import S3Server
from streamlog.model.batch import CreateStreamOptions, RecordBatch
from streamlog.model.stream import Stream
from streamlog.testing.slow_store import Latency, Moods, SlowStore
from streamlog.wiring import Components

IN_FLIGHT = 4
APPEND_BYTES = MIB
WINDOW_BYTES = 48 * MIB
ROUNDS = 5
DELAYS_MS = (0, 20, 100, 300)
NODE_SETTINGS = {"engine.compaction.compaction_process": '"off"'}


def run(report: Report, folder: Path, *, scale: float) -> None:
    """`scale` 1 appends 512 MiB a round and case."""
    total = int(512 * MIB * scale)
    with s3_server(folder) as server:
        _throughput(report, folder, server, total)
        asyncio.run(_slow(report, folder, server, total // 2))


def _throughput(report: Report, folder: Path, server: S3Server, total: int) -> None:
    library, through, tailed = Measured(), Measured(), Measured()
    floors: list[float] = []
    meta = f"rocksdb://{folder}/node/meta"
    store = server.url(BUCKET, "node")
    with running_node(
        folder / "node", wal="object", settings=NODE_SETTINGS, store=store, meta=meta
    ) as node:
        load = EncodedLoad(node)
        load.send(load.batches("warm", MIB, 64 * MIB), MIB)
        for number in range(ROUNDS):
            floor, mb_s, facts = asyncio.run(_library(server, folder / f"lib{number}", total))
            floors.append(floor)
            library.add(mb_s, floor, facts)
            through.add(*_through_grpc(node, load, f"plain{number}", total, floor))
            with _TailReader(node, f"tailed{number}") as reader:
                mb_s, _, facts = _through_grpc(node, load, f"tailed{number}", total, floor)
                facts["read_mb_s"] = reader.mb_s()
            tailed.add(mb_s, floor, facts)
    report.add(Row("s3_append", "floor, PUTs of 8 MiB, 4 in flight", median(floors), "MB/s"))
    for case, measured, aim in (
        ("library", library, 0.8),
        ("through gRPC", through, 0.6),
        ("through gRPC, one tail reader", tailed, None),
    ):
        report.add(
            Row(
                "s3_append", case, median(measured.mb_s), "MB/s", median(floors), "raw PUT", aim,
                ratios=measured.ratios,
                facts={name: median(values) for name, values in measured.facts.items()},
            )
        )  # fmt: skip


async def _library(
    server: S3Server, folder: Path, total: int
) -> tuple[float, float, dict[str, float]]:
    """MB/s of raw PUTs of the objects that the engine made, MB/s of its appends, and its facts."""
    async with engine_on(server, folder, config=without_compaction()) as engine:
        streams = await engine.streams.create_and_open_streams([CreateStreamOptions()] * 8)
        batch = RecordBatch(1, 0, (os.urandom(APPEND_BYTES),))
        await append_all(streams, batch, 64 * MIB, WINDOW_BYTES)
        before = [sample(engine, name) for name in _OBJECTS]
        mb_s = await append_all(streams, batch, total, WINDOW_BYTES)
        await engine.drain()
        size, count, put = (
            after - earlier
            for after, earlier in zip(
                (sample(engine, name) for name in _OBJECTS), before, strict=True
            )
        )
    async with raw_store(server) as store:
        mean = int(size / max(1, count))
        await raw_put(store, mean, 4 * mean, IN_FLIGHT)
        floor, _ = await raw_put(store, mean, total, IN_FLIGHT)
    return floor, mb_s, {"object_mib": mean / MIB, "uploaded_per_appended": put / total}


_OBJECTS = (
    "streamlog_engine_object_bytes_sum",
    "streamlog_engine_object_bytes_count",
    "streamlog_engine_put_bytes_total",
)


def _through_grpc(
    node: RunningNode, load: EncodedLoad, topic: str, total: int, floor: float
) -> tuple[float, float, dict[str, float]]:
    batches = load.batches(topic, MIB, total)
    node.settle()
    mb_s, facts = load.send(batches, MIB)
    return mb_s, floor, facts


class _TailReader:
    """A consumer at the end of a topic, in a thread of this process."""

    def __init__(self, node: RunningNode, topic: str) -> None:
        self._node = node
        self._topic = topic
        self._ends = threading.Event()
        self._bytes = 0
        self._began = 0.0
        self._last = 0.0
        self._thread = threading.Thread(target=self._read)

    def mb_s(self) -> float:
        return self._bytes / max(1e-9, self._last - self._began) / 1e6

    def __enter__(self) -> _TailReader:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()

    def _read(self) -> None:
        with Consumer(self._node.server, auto_offset_reset="earliest") as consumer:
            consumer.assign([(self._topic, partition) for partition in range(PARTITIONS)])
            while not self._ends.is_set():
                for batch in consumer.poll_batches(0.2):
                    self._last = time.perf_counter()
                    self._began = self._began or self._last
                    self._bytes += len(batch.data)


async def _slow(report: Report, folder: Path, server: S3Server, total: int) -> None:
    fastest = 0.0
    for delay_ms in DELAYS_MS:
        async with raw_store(server, f"slow{delay_ms}") as raw:
            store = SlowStore(raw, Moods(put=Latency(delay_ms)))
            async with engine_on(
                server,
                folder / f"slow{delay_ms}",
                config=without_compaction(),
                components=Components(store=store),
            ) as engine:
                streams = await engine.streams.create_and_open_streams([CreateStreamOptions()] * 8)
                batch = RecordBatch(1, 0, (os.urandom(APPEND_BYTES),))
                await append_all(streams, batch, 64 * MIB, WINDOW_BYTES)
                rounds = [
                    await append_all(streams, batch, total, WINDOW_BYTES) for _ in range(ROUNDS)
                ]
                single = [await _one_ms(streams[0]) for _ in range(9)]
        row = Row("s3_append", f"PUTs {delay_ms} ms slower", median(rounds), "MB/s")
        row.facts = {"single_append_ms": percentile(single, 0.5)}
        if delay_ms:
            row.floor, row.floor_name, row.aim = fastest, "no delay", 0.9
        else:
            fastest = row.value
        report.add(row)


async def _one_ms(stream: Stream) -> float:
    began = time.perf_counter()
    await stream.append(RecordBatch(1, 0, (b"x" * 1024,)))
    return (time.perf_counter() - began) * 1e3
