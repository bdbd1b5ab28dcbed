"""Tiered storage on a real S3 server: copies, cold reads, and what they cost those beside them.

Copies are compared with PUTs of the same files, cold reads with ranged GETs of the same objects,
each right after the measured run, with the same client and the same concurrency. A catch-up over
both tiers, half of its bytes in each, is compared with one of a shared topic with the same batches
in the same store. Appends at half of the best rate (at which copies keep up) run in turns on a
topic that is tiered and on one that is not, with a store that keeps its objects in memory: with one
on the same disk the disk would be measured, not the copies. Copies give way to them for a minute, a
longer time than a turn; what appends feel beside copies that are due at once has a row, too.
Readers of the newest records are timed alone and beside readers at full speed: as many as the
remote tier has tasks, of the remote tier, and of old segments in local files.
"""

from __future__ import annotations

import asyncio
import gc
import os
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import streamlog
from benchmarks.node import own_cpu_s
from benchmarks.report import Measured, Report, Row, percentile
from benchmarks.s3 import (
    BUCKET,
    GIB,
    MIB,
    in_flight,
    raw_get,
    raw_store,
    requests_of,
    s3_server,
    until,
    without_compaction,
)
from streamlog.codec.records import encode_values
from streamlog.demo.s3_server import S3Server
from streamlog.log.api.abstract_log import AbstractLog
from streamlog.log.api.tiering import TierableLog
from streamlog.model.partition import TopicPartition
from streamlog.objectstore.interface import ObjectStore
from streamlog.tiered.config import RemoteLogConfig
from streamlog.wiring import OpenEngine

SEGMENT_BYTES = 64 * MIB
FETCH_BYTES = MIB
BATCH_BYTES = 128 << 10
WINDOW = 32
PARTITIONS = 4
ROUNDS = 3
MEMORY = "/dev/shm"
FULL_BYTES = GIB
"""Of appends at full rate in a turn, until the disk has them: the page cache takes them several
times faster, but not for long. The first turns are faster than the disk is for long."""
BACKLOG_BYTES = GIB // 2
"""Before a turn, and before as many appends as it has: copies are at work when it begins."""
DUE_ROUNDS = 3
"""Of appends whose copies are due as fast as they come, as after a minute at this rate."""
APPEND_ROUNDS = 9
"""Of appends at half rate without tiers and with them: as of readers."""
APPENDS_GONE_S = 0.3
RUN_EVERY_MS = 2000
"""Runs of copies, of which a turn has several: with the default of 30 s it would take minutes."""
READER_TURNS = 10
"""Of readers alone and beside others: short, so that both meet what else the machine does."""
READER_ROUNDS = 5
"""Of such turns, each with a p99 of its own, which single stalls of the disk or the machine decide:
the ratio is the median of the rounds'."""
TASKS = RemoteLogConfig().reader_tasks
UNIFIED = {"log.type": "unified", "segment.bytes": str(SEGMENT_BYTES)}
TIERED = {
    **UNIFIED,
    "remote.storage.enable": "true",
    "local.retention.bytes": "0",
    "file.delete.delay.ms": "0",
}


def run(report: Report, folder: Path, *, scale: float) -> None:
    """`scale` 1 copies and reads 1 GiB per round."""
    with s3_server(folder, report.variant) as server:
        asyncio.run(_moved(report, folder / "moved", server, int(GIB * scale)))
        asyncio.run(_caught_up(report, folder / "caught_up", server, int(GIB * scale)))
    with (
        TemporaryDirectory(dir=MEMORY) as memory,
        s3_server(Path(memory), report.variant) as server,
    ):
        asyncio.run(_beside(report, folder / "beside", server, max(2.0, 15 * scale)))


@asynccontextmanager
async def _engine(
    server: S3Server, folder: Path, tiers: RemoteLogConfig
) -> AsyncIterator[OpenEngine]:
    folder.mkdir(exist_ok=True)
    async with streamlog.open(
        server.url(BUCKET, folder.name),
        meta=f"rocksdb://{folder}/meta",
        wal="object",
        log_dir=folder / "logs",
        config=without_compaction(),
        tiers=tiers,
    ) as engine:
        yield engine


async def _logs(engine: OpenEngine, topic: str) -> list[TierableLog]:
    found = []
    for number in range(PARTITIONS):
        log = await engine.logs.log(TopicPartition(topic, number))
        assert isinstance(log, TierableLog)
        found.append(log)
    return found


def _batch() -> bytes:
    """Of now: what is older than the topic's retention would go."""
    values, now_ms = [os.urandom(1 << 10)] * (BATCH_BYTES >> 10), int(time.time() * 1000)
    return bytes(encode_values(values, timestamp_ms=now_ms).data)


async def _fill(logs: Sequence[AbstractLog], total: int) -> float:
    """Appends `total` bytes in turns over the logs: MB/s."""
    batch = _batch()
    under_way: deque[Awaitable[object]] = deque()
    began = time.perf_counter()
    for number in range(max(1, total // len(batch))):
        if len(under_way) >= WINDOW:
            await under_way.popleft()
        under_way.append(await logs[number % len(logs)].append(batch))
    for one in under_way:
        await one
    return total / (time.perf_counter() - began) / 1e6


async def _fill_disk(logs: Sequence[AbstractLog], total: int) -> float:
    """As `_fill`, until what was appended is on the disk."""
    began = time.perf_counter()
    await _fill(logs, total)
    await asyncio.to_thread(os.sync)
    return total / (time.perf_counter() - began) / 1e6


async def _fill_and_copy(engine: OpenEngine, logs: Sequence[AbstractLog], total: int) -> float:
    """As `_fill_disk`, until copies have caught up: what a tiered topic takes for ever."""
    assert engine.tiers is not None
    began = time.perf_counter()
    await _fill_disk(logs, total)
    await engine.tiers.run_tasks()
    return total / (time.perf_counter() - began) / 1e6


async def _moved(report: Report, folder: Path, server: S3Server, total: int) -> None:
    """Copies, then cold reads by one reader and by one for each partition."""
    never = RemoteLogConfig(task_interval_ms=3_600_000)
    copied, one, many = Measured(), Measured(), Measured()
    floors: dict[str, float] = {}
    for number in range(ROUNDS):
        topic = f"moved{number}"
        async with _engine(server, folder, never) as engine:
            await engine.logs.create_topic(topic, PARTITIONS, TIERED)
            await _fill(await _logs(engine, topic), total)
            files = sorted((folder / "logs").glob(f"{topic}-*/*.log"), key=lambda file: file.name)
            mb_s, facts = await _copied(engine)
            async with raw_store(server, "floor") as raw:
                floors["put"] = await _put(raw, files, int(facts["copied_mib"] * MIB))
            copied.add(mb_s, floors["put"], facts)
            await engine.logs.retention_tick()
        for readers, measured in ((1, one), (PARTITIONS, many)):
            async with _engine(server, folder, never) as engine:
                mb_s, facts = await _cold(engine, topic, readers)
            async with raw_store(server, folder.name) as raw:
                ranges = await _remote_ranges(raw, int(facts.pop("read_mib") * MIB))
                floors[f"get{readers}"], _ = await raw_get(raw, ranges, 2 * readers)
            measured.add(mb_s, floors[f"get{readers}"], facts)
    report.add(copied.row("tiered", "copy", floors["put"], "PUT of the same files", 0.85))
    report.add(one.row("tiered", "cold read, 1 reader", floors["get1"], "ranged GET", 0.8))
    case = f"cold read, {PARTITIONS} readers"
    report.add(many.row("tiered", case, floors[f"get{PARTITIONS}"], "ranged GET", 0.8))
    gets = max(one.facts["gets_per_mib"] + many.facts["gets_per_mib"])
    report.add(Row("tiered", "GETs per MiB read", gets, "GETs/MiB", aim=0.3, less_is_better=True))


async def _copied(engine: OpenEngine) -> tuple[float, dict[str, float]]:
    """MB/s of a round of tasks that copies all closed segments."""
    assert engine.tiers is not None
    # Beside appends, copies give way.
    await until(time.perf_counter() + APPENDS_GONE_S)
    cpu, began = own_cpu_s(), time.perf_counter()
    before = _counted(engine, "streamlog_remote_copy_bytes_total")
    while True:
        segments = _counted(engine, "streamlog_remote_copied_segments_total")
        await engine.tiers.run_tasks()
        if _counted(engine, "streamlog_remote_copied_segments_total") == segments:
            break
    elapsed = time.perf_counter() - began
    size = _counted(engine, "streamlog_remote_copy_bytes_total") - before
    assert size > 0, "no segment was closed: raise --scale"
    return size / elapsed / 1e6, {
        "copied_mib": size / MIB,
        "cpu_s_per_gib": (own_cpu_s() - cpu) / size * GIB,
    }


def _counted(engine: OpenEngine, name: str) -> float:
    """Over all topics."""
    return sum(
        sample.value
        for family in engine.registry.collect()
        for sample in family.samples
        if sample.name == name
    )


async def _put(store: ObjectStore, files: list[Path], total: int) -> float:
    """MB/s of PUTs of as many files as were copied, one of each partition at a time."""
    wanted = files[: max(1, round(total / SEGMENT_BYTES))]
    tag = time.monotonic_ns()

    async def put(file: Path) -> int:
        data = await asyncio.to_thread(file.read_bytes)
        await store.put(f"copies/{tag}/{file.parent.name}/{file.name}", [data])
        return len(data)

    began = time.perf_counter()
    sizes, _ = await in_flight(iter([partial(put, file) for file in wanted]), PARTITIONS)
    return sum(sizes) / (time.perf_counter() - began) / 1e6


async def _cold(engine: OpenEngine, topic: str, readers: int) -> tuple[float, dict[str, float]]:
    """MB/s of reading what is in the remote tier alone, `readers` partitions at a time."""
    logs = await _logs(engine, topic)
    assert engine.tiers is not None
    await engine.tiers.run_tasks()  # Loads what the metadata know of the tier.
    gc.collect()
    gets = requests_of(engine).get("get", 0.0)
    cpu, began = own_cpu_s(), time.perf_counter()
    calls = [partial(_read_remote, log) for log in logs]
    sizes, _ = await in_flight(iter(calls), readers)
    elapsed, size = time.perf_counter() - began, sum(sizes)
    return size / elapsed / 1e6, {
        "read_mib": size / MIB,
        "gets_per_mib": (requests_of(engine)["get"] - gets) / size * MIB,
        "cpu_s_per_gib": (own_cpu_s() - cpu) / size * GIB,
    }


async def _read_remote(log: TierableLog) -> int:
    return await _read(log, log.local_log_start_offset)


async def _read(log: AbstractLog, end: int) -> int:
    """Bytes from the log's start to the end (exclusive)."""
    position, seen = log.log_start_offset, 0
    while position < end:
        fetched = await log.fetch(position, FETCH_BYTES)
        seen += fetched.size_bytes
        position = fetched.next_offset
    return seen


async def _remote_ranges(store: ObjectStore, total: int) -> list[tuple[str, int, int]]:
    """Ranges of 4 MiB over remote segments, `total` bytes together."""
    found: list[tuple[str, int, int]] = []
    token: str | None = None
    while True:
        page = await store.list("remote/", token=token)
        for info in page.objects:
            for start in range(0, info.size_bytes, 4 * MIB):
                length = min(4 * MIB, info.size_bytes - start)
                if length == 4 * MIB and sum(one[2] for one in found) < total:
                    found.append((info.key, start, length))
        token = page.next_token
        if token is None:
            return found


async def _caught_up(report: Report, folder: Path, server: S3Server, total: int) -> None:
    """All of a topic in two tiers, beside all of a shared one, each by a freshly opened engine."""
    never = RemoteLogConfig(task_interval_ms=3_600_000)
    segment_bytes = max(MIB, total // PARTITIONS // 8)
    halves = {
        **TIERED,
        "segment.bytes": str(segment_bytes),
        "local.retention.bytes": str(total // PARTITIONS // 2),
    }
    measured, floor = Measured(), 0.0
    for number in range(ROUNDS):
        topics = (f"both{number}", f"shared{number}")
        async with _engine(server, folder, never) as engine:
            for topic, configs in zip(topics, (halves, {}), strict=True):
                await engine.logs.create_topic(topic, PARTITIONS, configs)
                await _fill(await _opened(engine, topic), total)
            await _copied(engine)
            await engine.logs.retention_tick()
        found: list[tuple[float, dict[str, float]]] = []
        for topic in topics:
            async with _engine(server, folder, never) as engine:
                found.append(await _whole(engine, topic))
        (mb_s, facts), (floor, shared) = found
        facts |= {f"shared_{name}": shared[name] for name in ("gets_per_mib", "cpu_s_per_gib")}
        measured.add(mb_s, floor, facts)
    case = f"catch-up over both tiers, {PARTITIONS} readers"
    report.add(measured.row("tiered", case, floor, "shared topic in the same store", None))


async def _opened(engine: OpenEngine, topic: str) -> list[AbstractLog]:
    return [await engine.logs.log(TopicPartition(topic, one)) for one in range(PARTITIONS)]


async def _whole(engine: OpenEngine, topic: str) -> tuple[float, dict[str, float]]:
    """MB/s of reading every partition from its start to its end, all at a time."""
    logs = await _opened(engine, topic)
    assert engine.tiers is not None
    await engine.tiers.run_tasks()  # Loads what the metadata know of the tier.
    remote = sum(one.local_log_start_offset for one in logs if isinstance(one, TierableLog))
    gc.collect()
    gets = requests_of(engine).get("get", 0.0)
    cpu, began = own_cpu_s(), time.perf_counter()
    ends = [log.high_watermark for log in logs]
    calls = [partial(_read, log, end) for log, end in zip(logs, ends, strict=True)]
    sizes, _ = await in_flight(iter(calls), PARTITIONS)
    elapsed, size = time.perf_counter() - began, sum(sizes)
    return size / elapsed / 1e6, {
        "remote_share": remote / sum(ends),
        "gets_per_mib": (requests_of(engine).get("get", 0.0) - gets) / size * MIB,
        "cpu_s_per_gib": (own_cpu_s() - cpu) / size * GIB,
    }


async def _beside(report: Report, folder: Path, server: S3Server, seconds: float) -> None:
    """Appends beside copies; readers of the newest records beside readers of the remote tier."""
    async with _engine(server, folder, RemoteLogConfig(task_interval_ms=RUN_EVERY_MS)) as engine:
        await engine.logs.create_topic("local", PARTITIONS, UNIFIED)
        await engine.logs.create_topic("tiered", PARTITIONS, TIERED)
        local, tiered = await _logs(engine, "local"), await _logs(engine, "tiered")
        for _ in range(2):
            rates = [await _fill_disk(logs, FULL_BYTES) for logs in (local, tiered)]
        report.add(Row("tiered", "append at full rate", rates[1], "MB/s", rates[0], "not tiered"))
        best = await _fill_and_copy(engine, tiered, FULL_BYTES)
        report.add(Row("tiered", "append and copy at full rate", best, "MB/s"))
        per_s = best * 1e6 / 2 / BATCH_BYTES
        count = int(per_s * seconds)
        turns = await _appends(engine, (local, tiered), folder, (per_s, count, APPEND_ROUNDS))
        report.add(
            Row(
                "tiered",
                "append at half rate",
                turns.mb_s[1],
                "MB/s",
                turns.mb_s[0],
                "not tiered",
                0.95,
            )
        )
        _by(
            report,
            "append p99 at half rate",
            turns.waits[1],
            turns.waits[0],
            1.5,
            turns.ratios,
            copies_mb_s=turns.copies_mb_s,
        )
        await _settled(engine, tiered, folder)
        await _readers(report, local, tiered, seconds)
    due = RemoteLogConfig(task_interval_ms=RUN_EVERY_MS, copy_spread_ms=RUN_EVERY_MS // 2)
    async with _engine(server, folder, due) as engine:
        local, tiered = await _logs(engine, "local"), await _logs(engine, "tiered")
        turns = await _appends(engine, (local, tiered), folder, (per_s, count, DUE_ROUNDS))
        case = "append p99 at half rate, copied as fast"
        _by(
            report,
            case,
            turns.waits[1],
            turns.waits[0],
            None,
            turns.ratios,
            copies_mb_s=turns.copies_mb_s,
        )


class _Turns(NamedTuple):
    """Of two topics, of which the second one is tiered. `ratios`: of rounds, of the p99."""

    waits: tuple[list[float], list[float]]
    mb_s: tuple[float, float]
    ratios: list[float]
    copies_mb_s: float


async def _appends(
    engine: OpenEngine,
    topics: tuple[list[TierableLog], list[TierableLog]],
    folder: Path,
    plan: tuple[float, int, int],
) -> _Turns:
    """`plan`: appends a second, appends of a turn, rounds."""
    per_s, count, rounds = plan
    waits: tuple[list[float], list[float]] = ([], [])
    ratios: list[float] = []
    spent, sent = [0.0, 0.0], 0.0
    for _ in range(rounds):
        p99: list[float] = []
        for index, logs in enumerate(topics):
            # Copies of the round before would be those of the topic that has none.
            await _settled(engine, topics[1], folder)
            await _fill_disk(logs, BACKLOG_BYTES)
            # By then the first parts are on their way.
            await _paced(logs, per_s, count)
            before = _counted(engine, "streamlog_store_sent_bytes_total")
            began = time.perf_counter()
            turn = await _paced(logs, per_s, count)
            spent[index] += time.perf_counter() - began
            sent += _counted(engine, "streamlog_store_sent_bytes_total") - before
            waits[index].extend(turn)
            p99.append(percentile(turn, 0.99))
        ratios.append(p99[0] / p99[1])
    rates = [len(one) * BATCH_BYTES / took / 1e6 for one, took in zip(waits, spent, strict=True)]
    return _Turns(waits, (rates[0], rates[1]), ratios, sent / spent[1] / 1e6)


def _by(
    report: Report,
    case: str,
    values: list[float],
    floor: list[float],
    most: float | None,
    ratios: Sequence[float] = (),
    **facts: float,
) -> None:
    """A row of the p99, by the other's: at most so many times as much. `ratios`: of rounds."""
    one, other = percentile(values, 0.99), percentile(floor, 0.99)
    aim = None if most is None else 1 / most
    row = Row("tiered", case, one, "ms", other, "without", aim, less_is_better=True)
    row.ratios = list(ratios)
    row.facts = {
        "p50_ms": percentile(values, 0.5),
        "p50_ms_without": percentile(floor, 0.5),
        **facts,
    }
    report.add(row)


async def _paced(logs: list[TierableLog], per_s: float, count: int) -> list[float]:
    """Milliseconds from when each append was due to when it was durable."""
    batch = _batch()
    waits: list[float] = []
    began = time.perf_counter()

    async def one(number: int, due: float) -> None:
        await (await logs[number % len(logs)].append(batch))
        waits.append((time.perf_counter() - due) * 1e3)

    async with asyncio.TaskGroup() as group:
        for number in range(count):
            due = began + number / per_s
            await until(due)
            group.create_task(one(number, due))
    return waits


async def _settled(engine: OpenEngine, tiered: list[TierableLog], folder: Path) -> None:
    """Waits for what would delay every read, beside others or not: copies, removals, the disk."""
    assert engine.tiers is not None
    starts: list[int] = []
    while starts != (starts := [log.local_log_start_offset for log in tiered]):
        await engine.tiers.run_tasks()
        await engine.logs.retention_tick()
    while any((folder / "logs").glob("*/*.deleted")):
        await until(time.perf_counter() + 0.1)
    await asyncio.to_thread(os.sync)


async def _readers(
    report: Report, local: list[TierableLog], tiered: list[TierableLog], seconds: float
) -> None:
    remote = [_Older(log, log.log_start_offset, log.local_log_start_offset) for log in tiered]
    # What is far from the end of a log, and most of it in the page cache.
    old = [_Older(log, log.log_start_offset, log.high_watermark // 2) for log in local]
    for name, older in (("remote readers", remote), ("readers of old segments", old)):
        alone: list[float] = []
        beside: list[float] = []
        ratios: list[float] = []
        read, spent = 0, 0.0
        for _ in range(READER_ROUNDS):
            turns: tuple[list[float], list[float]] = ([], [])
            for _ in range(READER_TURNS):
                turns[0].extend(await _tail(local[0], int(seconds / READER_TURNS * 50)))
                began = time.perf_counter()
                with _saturated(older) as seen:
                    turns[1].extend(await _tail(local[0], int(seconds / READER_TURNS * 50)))
                spent += time.perf_counter() - began
                assert seen[0] > 0, f"there are no {name}"
                read += seen[0]
            ratios.append(percentile(turns[0], 0.99) / percentile(turns[1], 0.99))
            alone += turns[0]
            beside += turns[1]
        case, mb_s = f"local read p99 beside {name}", read / spent / 1e6
        _by(report, case, beside, alone, 1.2, ratios, their_mb_s=mb_s)


async def _tail(log: TierableLog, count: int) -> list[float]:
    """Milliseconds of reads of the newest 64 KiB, 100 a second, from when each was due."""
    waits: list[float] = []
    began = time.perf_counter()
    for number in range(count):
        due = began + number / 100
        await until(due)
        await log.fetch(log.high_watermark - 1, 64 << 10)
        waits.append((time.perf_counter() - due) * 1e3)
    return waits


class _Older(NamedTuple):
    """Offsets of a log that its readers go through, again and again."""

    log: TierableLog
    begin: int
    end: int


@contextmanager
def _saturated(older: list[_Older]) -> Iterator[list[int]]:
    """As many readers as the remote tier has tasks, each from another place on."""
    seen = [0]

    async def read(number: int) -> None:
        log, begin, end = older[number % len(older)]
        position = begin + (end - begin) * number // TASKS
        while True:
            fetched = await log.fetch(position, FETCH_BYTES)
            seen[0] += fetched.size_bytes
            position = fetched.next_offset if fetched.next_offset < end else begin

    tasks = [asyncio.create_task(read(number)) for number in range(TASKS)]
    try:
        yield seen
    finally:
        for task in tasks:
            task.cancel()
