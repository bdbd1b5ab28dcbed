"""wal=object on a real S3 server: appends against raw parallel PUTs of the same objects.

Each round measures raw PUTs (the same client, object size and number in flight), the library, and
a node through gRPC, without and with a reader at its tail, one after another. Through gRPC as many
bytes are under way as in the raw PUTs; a separate row shows one producer's default of half that.
Then the same store gets 20, 100 and 300 ms slower: append throughput should stay the same until the
bound on bytes in flight is reached, which raw PUTs with as many bytes in flight show. Finally one
PUT in 1,000 hangs for a minute.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from pathlib import Path
from statistics import median

from benchmarks.node import RunningNode, running_node
from benchmarks.produce import PARTITIONS, EncodedLoad
from benchmarks.report import Measured, Report, Row, percentile
from benchmarks.s3 import (
    BUCKET,
    MIB,
    append_all,
    engine_on,
    objects_made,
    paced_appends,
    paced_puts,
    raw_put,
    raw_store,
    s3_server,
    sample,
    without_compaction,
)
from benchmarks.streaming import window
from streamlog.client import Consumer
from streamlog.demo.s3_server import S3Server
from streamlog.engine.config import AppendConfig, FlushConfig, StreamEngineConfig
from streamlog.model.batch import CreateStreamOptions, RecordBatch
from streamlog.model.stream import Stream
from streamlog.wiring import Components
from tests.support.slow_store import Latency, Moods, SlowStore

IN_FLIGHT = 4
APPEND_BYTES = MIB
OBJECT_BYTES = FlushConfig().flush_bytes_target
WINDOW_BYTES = AppendConfig().append_bytes_max
GRPC_WINDOW = IN_FLIGHT * OBJECT_BYTES // MIB
"""Messages of 1 MiB: the maximum that a node takes from one connection."""
ROUNDS = 5
DELAYS_MS = (0, 20, 100, 300)
HANGING_SHARE = 0.001
APPENDS_PER_S = 200.0
SMALL_BYTES = 16 << 10
NODE_SETTINGS = {"engine.compaction.compaction_process": '"off"'}


def run(report: Report, folder: Path, *, scale: float) -> None:
    """`scale` 1 appends 512 MiB a round and case."""
    total = int(512 * MIB * scale)
    with s3_server(folder, report.variant) as server:
        _throughput(report, folder, server, total)
        asyncio.run(_slow(report, folder, server, 2 * total))
        asyncio.run(_hanging(report, folder, server, max(2000, int(10_000 * scale))))


def _throughput(report: Report, folder: Path, server: S3Server, total: int) -> None:
    library, through, narrow, tailed = Measured(), Measured(), Measured(), Measured()
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
            narrow.add(*_through_grpc(node, load, f"narrow{number}", total, floor, window(MIB)))
            with _TailReader(node, f"tailed{number}") as reader:
                mb_s, _, facts = _through_grpc(node, load, f"tailed{number}", total, floor)
            facts["read_mb_s"] = reader.mb_s()
            tailed.add(mb_s, floor, facts)
    report.add(Row("s3_append", "floor, PUTs of 8 MiB, 4 in flight", median(floors), "MB/s"))
    for case, measured, aim in (
        ("library", library, 0.8),
        ("through gRPC", through, 0.6),
        ("through gRPC, 16 MiB under way", narrow, None),
        ("through gRPC, one tail reader", tailed, None),
    ):
        report.add(measured.row("s3_append", case, median(floors), "raw PUT", aim))

    uploaded = max(library.facts["uploaded_per_appended"])
    report.add(
        Row("s3_append", "uploaded per appended", uploaded, "x", aim=1.05, less_is_better=True)
    )


async def _library(
    server: S3Server, folder: Path, total: int
) -> tuple[float, float, dict[str, float]]:
    """MB/s of raw PUTs of the engine's objects, MB/s of its appends, and further figures."""
    async with engine_on(server, folder, config=without_compaction()) as engine:
        streams = await engine.streams.create_and_open_streams([CreateStreamOptions()] * 8)
        batch = RecordBatch(1, 0, (os.urandom(APPEND_BYTES),))
        await append_all(streams, batch, 64 * MIB, WINDOW_BYTES)
        before, sent = objects_made(engine), sample(engine, _SENT)
        mb_s = await append_all(streams, batch, total, WINDOW_BYTES)
        await engine.drain()
        size, count = (now - then for now, then in zip(objects_made(engine), before, strict=True))
        sent = sample(engine, _SENT) - sent
        appended = total // APPEND_BYTES * APPEND_BYTES
    async with raw_store(server) as store:
        mean = int(size / max(1, count))
        await raw_put(store, mean, 4 * mean, IN_FLIGHT)
        floor, _ = await raw_put(store, mean, total, IN_FLIGHT)
    return floor, mb_s, {"object_mib": mean / MIB, "uploaded_per_appended": sent / appended}


_SENT = "streamlog_store_sent_bytes_total"
"""Metadata checkpoints included."""


def _through_grpc(
    node: RunningNode,
    load: EncodedLoad,
    topic: str,
    total: int,
    floor: float,
    unanswered_max: int = GRPC_WINDOW,
) -> tuple[float, float, dict[str, float]]:
    batches = load.batches(topic, MIB, total)
    node.wait_until_idle()
    mb_s, facts = load.send(batches, MIB, unanswered_max)
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
        """The rate after the first answer; 0 if there was no other."""
        elapsed = self._last - self._began
        return self._bytes / elapsed / 1e6 if elapsed else 0.0

    def __enter__(self) -> _TailReader:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()

    def _read(self) -> None:
        with Consumer(self._node.server, auto_offset_reset="earliest") as consumer:
            consumer.assign([(self._topic, partition) for partition in range(PARTITIONS)])
            while True:
                is_over = self._ends.is_set()
                found = sum(len(batch.data) for batch in consumer.poll_batches(0.2))
                if is_over and not found:
                    # Reads to the end: otherwise its lag would count as time and not as bytes.
                    return
                if found:
                    self._last = time.perf_counter()
                    if self._began:
                        self._bytes += found
                    self._began = self._began or self._last


async def _slow(report: Report, folder: Path, server: S3Server, total: int) -> None:
    """Calls more appends than may be under way, so that the engine's bound limits them."""
    fastest = 0.0
    for delay_ms in DELAYS_MS:
        measured, single = Measured(), []
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
                for _ in range(ROUNDS):
                    bound, _ = await raw_put(
                        store, OBJECT_BYTES, total, WINDOW_BYTES // OBJECT_BYTES
                    )
                    mb_s = await append_all(streams, batch, total, 2 * WINDOW_BYTES)
                    measured.add(mb_s, min(bound, fastest or bound), {"bound_mb_s": bound})
                single = [await _one_ms(streams[0]) for _ in range(9)]
        row = Row("s3_append", f"PUTs {delay_ms} ms slower", median(measured.mb_s), "MB/s")
        row.facts = {
            "bound_mb_s": median(measured.facts["bound_mb_s"]),
            "single_append_ms": percentile(single, 0.5),
        }
        if delay_ms:
            row.facts["of_no_delay"] = row.value / fastest
            row.floor = min(fastest, row.facts["bound_mb_s"])
            row.floor_name, row.aim = "no delay, or the byte bound", 0.9
            row.ratios = measured.ratios
        else:
            fastest = row.value
        report.add(row)


async def _hanging(report: Report, folder: Path, server: S3Server, count: int) -> None:
    """Small appends and PUTs, enough of them to meet the one PUT in 1,000."""
    config = StreamEngineConfig(flush=FlushConfig(put_rate_max_per_s=1000))
    # What the rounds before have written is on its way to the same disk: PUTs would wait for it.
    await asyncio.to_thread(os.sync)
    async with raw_store(server, "hanging") as raw:
        store = SlowStore(raw, Moods(hanging_put_share=HANGING_SHARE))
        async with engine_on(
            server,
            folder / "hanging",
            config=without_compaction(config),
            components=Components(store=store),
        ) as engine:
            streams = await engine.streams.create_and_open_streams([CreateStreamOptions()] * 8)
            batch = RecordBatch(1, 0, (os.urandom(SMALL_BYTES),))
            acks = await paced_appends(streams, batch, APPENDS_PER_S, count)
            size, puts = objects_made(engine)
            hedged = sample(engine, "streamlog_engine_hedged_puts_total")
        per_s = puts / count * APPENDS_PER_S
        floor = await paced_puts(raw.put, int(size / puts), per_s, min(1000, int(puts)))
    raw_p99 = percentile(floor, 0.99)
    report.add(
        Row(
            "s3_append", "one PUT in 1,000 hangs: ack p99.9", percentile(acks, 0.999), "ms",
            aim=FlushConfig().flush_interval_ms + 5 * raw_p99, less_is_better=True,
            facts={
                "p50_ms": percentile(acks, 0.5),
                "worst_ms": max(acks),
                "raw_put_p99_ms": raw_p99,
                "puts": puts,
                "hedged_puts": hedged,
                "object_kib": size / puts / 1024,
            },
        )
    )  # fmt: skip


async def _one_ms(stream: Stream) -> float:
    began = time.perf_counter()
    await stream.append(RecordBatch(1, 0, (b"x" * 1024,)))
    return (time.perf_counter() - began) * 1e3
