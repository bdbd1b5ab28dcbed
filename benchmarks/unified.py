"""Topics in local files: memory at rest, reads off the disk, and opening after a crash.

1. Memory of a partition that is open and of which nobody reads or writes.
2. A log read from its beginning in the library, with the page cache dropped, beside bare preads of
   the same sizes at the same places.
3. The folder that a killed Kafka has left, with 1,000 partitions of ten segments: opened by a
   Kafka, which says itself how long it took, and by this program. Left out, with a note, without
   Java.
"""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import re
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import psutil
from prometheus_client import CollectorRegistry

import streamlog
from benchmarks.kafka.wire import KafkaConnection, produce_frame
from benchmarks.kafka_server import LOGGING, KafkaServer
from benchmarks.node import own_cpu_s
from benchmarks.report import Report, Row
from benchmarks.s3 import without_compaction
from streamlog.codec.records import encode_values
from streamlog.errors import Unavailable
from streamlog.format.kafka_files.names import META_PROPERTIES
from streamlog.format.kafka_files.properties import decode_meta_properties
from streamlog.kafka.protocol.apis import ApiKey
from streamlog.kafka.protocol.errors import KafkaError
from streamlog.log.api.abstract_log import AbstractLog
from streamlog.log.api.config import LogConfig
from streamlog.log.api.environment import LogEnvironment
from streamlog.log.api.metrics import LogMetrics
from streamlog.log.api.topic_config import parse
from streamlog.model.partition import TopicPartition
from streamlog.runtime.clock import SystemClock
from streamlog.runtime.disk.system_tree import SystemTree
from streamlog.runtime.offload import ThreadOffload
from streamlog.runtime.rand import SystemRandom
from streamlog.unified.log_folder import FolderOwner, LogFolder
from streamlog.unified.unified_logs import UnifiedLogFactory, handle_of
from streamlog.wiring import OpenEngine

PARTITIONS = 1000
SEGMENTS = 10
IDLE = 10_000
ROUNDS = 5
READ_ROUNDS = 31
"""A disk that others share has rounds at half of its rate."""
READ_BYTES = 1 << 20
LOG_BYTES = 512 << 20
AT_ONCE = 100
CONFIGS = {"log.type": "unified", "segment.bytes": str(128 << 20)}
LEADERS_S = 60
NOT_YET = (KafkaError.UNKNOWN_TOPIC_OR_PARTITION, KafkaError.NOT_LEADER_OR_FOLLOWER)
ROLLED = {"segment.ms": "10000"}
"""Batches that lie further apart by their times begin a segment each."""


def run(report: Report, folder: Path, *, scale: float) -> None:
    """`scale` 1: 10,000 idle partitions, 512 MiB read, 1,000 partitions opened."""
    asyncio.run(_library(report, folder / "library", scale))
    try:
        _opening(report, folder / "opening", max(20, int(PARTITIONS * scale)))
    except Unavailable as error:
        report.note(f"unified, opening after a crash: left out, {error}")


async def _library(report: Report, folder: Path, scale: float) -> None:
    async with streamlog.open(
        "memory://",
        meta=f"rocksdb://{folder}/meta",
        wal="object",
        log_dir=folder / "logs",
        config=without_compaction(),
    ) as engine:
        await _idle(report, engine, max(AT_ONCE, int(IDLE * scale)))
        await _catch_up(report, engine, folder / "logs" / "read-0", int(LOG_BYTES * scale))


async def _idle(report: Report, engine: OpenEngine, count: int) -> None:
    process = psutil.Process()
    gc.collect()
    before = process.memory_info().rss
    await engine.logs.create_topic("idle", count, CONFIGS)
    for number in range(count):
        await engine.logs.log(TopicPartition("idle", number))
    gc.collect()
    kb = (process.memory_info().rss - before) / 1000 / count
    name = f"memory, {count:,} idle partitions"
    report.add(Row("unified", name, kb, "KB each", aim=20, less_is_better=True))


async def _catch_up(report: Report, engine: OpenEngine, folder: Path, size: int) -> None:
    await engine.logs.create_topic("read", 1, CONFIGS)
    log = await engine.logs.log(TopicPartition("read", 0))
    batch = bytes(encode_values([b"x" * 1000] * 120, timestamp_ms=int(time.time() * 1000)).data)
    for _ in range(max(8, size // len(batch) // 32)):
        for waiting in [await log.append(batch) for _ in range(32)]:
            await waiting
    await log.roll()
    piece = (await log.fetch(0, READ_BYTES)).size_bytes
    ours, bare, cpu, bare_cpu = [], [], [], []
    for _ in range(READ_ROUNDS):
        _drop_pages(folder)
        began, spent = time.perf_counter(), own_cpu_s()
        sizes = _read_bare(folder, piece)
        bare_cpu.append((own_cpu_s() - spent) / sum(sizes) * (1 << 30))
        bare.append(sum(sizes) / (time.perf_counter() - began) / 1e6)
        _drop_pages(folder)
        began, spent = time.perf_counter(), own_cpu_s()
        done = await _read(log)
        ours.append(done / (time.perf_counter() - began) / 1e6)
        cpu.append((own_cpu_s() - spent) / done * (1 << 30))
        assert done == sum(sizes)
    report.add(
        Row(
            "unified",
            "catch-up in the library, page cache dropped",
            median(ours),
            "MB/s",
            median(bare),
            "pread",
            0.9,
            ratios=[one / floor for one, floor in zip(ours, bare, strict=True)],
            facts={"cpu_s_per_gib": median(cpu), "pread_cpu_s_per_gib": median(bare_cpu)},
        )
    )


async def _read(log: AbstractLog) -> int:
    position = done = 0
    while position < log.high_watermark:
        fetched = await log.fetch(position, READ_BYTES)
        done += fetched.size_bytes
        position = fetched.next_offset
    return done


def _segments(folder: Path) -> Sequence[Path]:
    return sorted(folder.glob("*.log"))


def _read_bare(folder: Path, piece: int) -> list[int]:
    sizes = []
    for path in _segments(folder):
        file, position = os.open(path, os.O_RDONLY), 0
        try:
            while data := os.pread(file, piece, position):
                sizes.append(len(data))
                position += len(data)
        finally:
            os.close(file)
    return sizes


def _drop_pages(folder: Path) -> None:
    for path in _segments(folder):
        file = os.open(path, os.O_RDONLY)
        try:
            os.fsync(file)
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(file)


def _opening(report: Report, folder: Path, count: int) -> None:
    server = KafkaServer(folder / "kafka")
    (folder / "kafka" / "log4j2.properties").write_text(LOGGING.replace("level=warn", "level=info"))
    with server:
        _fill(server, count)
        server.kill()
    left = folder / "left"
    _copy_tree(server.data, left)
    theirs, ours, cpu = [], [], []
    for number in range(ROUNDS):
        theirs.append(_opened_by_kafka(server, left, count))
        place = folder / f"ours-{number}"
        _copy_tree(left, place)
        spent = own_cpu_s()
        ours.append(asyncio.run(_opened_here(place, count)))
        cpu.append(own_cpu_s() - spent)
        shutil.rmtree(place)
    report.add(
        Row(
            "unified",
            f"opening {count:,} partitions of {SEGMENTS} segments after a crash",
            median(ours),
            "s",
            median(theirs),
            "kafka",
            1.0,
            less_is_better=True,
            ratios=[floor / one for one, floor in zip(ours, theirs, strict=True)],
            facts={"cpu_s": median(cpu)},
        )
    )


def _copy_tree(source: Path, target: Path) -> None:
    shutil.copytree(source, target, copy_function=_copy_file)


def _copy_file(source: str, target: str) -> None:
    """Holes stay holes: the two indexes of Kafka's active segments are 10 MiB each of nothing."""
    with Path(source).open("rb") as here, Path(target).open("wb") as there:
        reads, writes = here.fileno(), there.fileno()
        size, end = os.fstat(reads).st_size, 0
        os.truncate(writes, size)
        while end < size:
            try:
                begin = os.lseek(reads, end, os.SEEK_DATA)
            except OSError as error:
                if error.errno == errno.ENXIO:  # A hole is the rest.
                    break
                raise
            end = os.lseek(reads, begin, os.SEEK_HOLE)
            os.pwrite(writes, os.pread(reads, end - begin, begin), begin)


def _fill(server: KafkaServer, count: int) -> None:
    at_ms = int(time.time() * 1000) - 3_600_000
    with KafkaConnection(server.server) as connection:
        connection.make_topic("left", count, ROLLED)
        for number in range(SEGMENTS):
            data = encode_values([b"x" * 1000] * 10, timestamp_ms=at_ms + 20_000 * number).data
            for first in range(0, count, AT_ONCE):
                left = list(range(first, min(first + AT_ONCE, count)))
                give_up_at = time.monotonic() + LEADERS_S
                while left := _refused(connection, left, bytes(data)):
                    if time.monotonic() > give_up_at:
                        raise RuntimeError(f"partitions {left} have no leader")
                    time.sleep(0.1)


def _refused(connection: KafkaConnection, partitions: Sequence[int], data: bytes) -> list[int]:
    """Those of the partitions whose brokers do not know yet that they lead them."""
    for partition in partitions:
        connection.send(produce_frame("left", partition, data, partition))
    found = []
    for partition in partitions:
        answer = connection.response(ApiKey.PRODUCE).responses[0].partition_responses[0]
        error = KafkaError(answer.error_code)
        if error in NOT_YET:
            found.append(partition)
        elif error is not KafkaError.NONE:
            raise RuntimeError(f"a record was refused: {error.name}")
    return found


def _opened_by_kafka(server: KafkaServer, left: Path, count: int) -> float:
    shutil.rmtree(server.data)
    _copy_tree(left, server.data)
    output = server.data.parent / "server.log"
    said = output.stat().st_size
    with server:
        text = output.read_bytes()[said:].decode(errors="replace")
        server.kill()
    found = re.search(r"Loaded (\d+) logs in (\d+)\s*ms", text)
    if found is None or int(found[1]) < count:
        raise Unavailable("this Kafka does not say how long it took to load its logs")
    return int(found[2]) / 1000


async def _opened_here(place: Path, count: int) -> float:
    """Seconds until all partitions can be read and written."""
    offload = ThreadOffload()
    environment = LogEnvironment(
        SystemClock(), SystemRandom(), LogConfig(), LogMetrics(CollectorRegistry()), offload
    )
    of = decode_meta_properties(META_PROPERTIES, (place / META_PROPERTIES).read_bytes())
    began = time.perf_counter()
    folder = await LogFolder.open(
        SystemTree(place), FolderOwner(of.cluster_id, of.node_id), environment, offload
    )
    factory, config = UnifiedLogFactory(folder), parse({**ROLLED, "log.type": "unified"})

    async def opened(number: int) -> AbstractLog:
        partition = TopicPartition("left", number)
        topic_id = folder.topic_id_of(partition)
        assert topic_id is not None
        return await factory.open(partition, handle_of(topic_id, number), config, _failed)

    logs: list[AbstractLog] = []
    for first in range(0, count, AT_ONCE):
        logs += await asyncio.gather(
            *[opened(number) for number in range(first, min(first + AT_ONCE, count))]
        )
    seconds = time.perf_counter() - began
    assert all(log.high_watermark == 10 * SEGMENTS for log in logs)
    for log in logs:
        await log.kill()
    await folder.kill()
    await offload.close()
    return seconds


def _failed(log: AbstractLog, error: Exception) -> None:
    raise RuntimeError(f"{log.topic_partition} failed: {error}")
