"""The compactor process: same outcome as inline, errors come over, kill -9 costs a retry."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from random import Random
from typing import Any

import psutil
import pytest

from streamlog.compaction.plan.config import CompactionConfig
from streamlog.compaction.plan.planner import STREAM_END, PlannedInput
from streamlog.compaction.plan.planning import (
    MergePlanRequest,
    decode_plan,
    decode_request,
    encode_plan,
    encode_request,
)
from streamlog.compaction.workers import process
from streamlog.compaction.workers.frames import (
    Frame,
    WorkerSettings,
    decode_error,
    encode_error,
    encode_frame,
)
from streamlog.compaction.workers.process import ProcessExecutor
from streamlog.errors import (
    Closed,
    Corrupt,
    Internal,
    Invalid,
    StoreUnavailable,
    TenureFenced,
    UnsupportedVersion,
)
from streamlog.format.rows import RangeRow
from streamlog.metadata.compaction_interface import CompactionPoint
from streamlog.objectstore.errors import StoreRefused
from streamlog.objectstore.keys import data_key
from streamlog.objectstore.local.store import LocalObjectStore
from streamlog.objectstore.store_config import StoreConfig
from streamlog.runtime.clock import SystemClock
from streamlog.runtime.offload import ThreadOffload
from tests.compaction.compacting_engine import BY_HAND, History, engine, live, make, sample, stored
from tests.compaction.model import stats_of
from tests.compaction.objects import Streams, job, read_object, spec
from tests.engine.harness import until

FAST = 1 << 40
SLOW = 256 * 1024
"""Bytes a second: between two outputs is time enough for a signal."""
WORKER = [sys.executable, "-m", "streamlog.compaction.workers.worker"]


def settings(path: Path, rate: int = FAST, store_url: str | None = None) -> WorkerSettings:
    return WorkerSettings(
        store_url=store_url or f"local://{path}/store",
        store=StoreConfig(),
        memory_bytes=300_000,
        rate_bytes_per_s=rate,
        nice=3,
        spool_dir=str(path),
    )


def run(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(scenario(), 150))


async def made_streams(path: Path, offload: ThreadOffload) -> Streams:
    store = await LocalObjectStore.open(path / "store", offload, SystemClock())
    made = Streams(store, 1)
    for _ in range(3):
        await made.upload([(1, 50_000), (2, 50_000), (3, 50_000)])
    return made


def rows(made: Streams, *streams: int) -> list[RangeRow]:
    return [RangeRow(stream, 1, 0, made.ends[stream]) for stream in streams]


def test_a_process_does_what_the_loop_does(tmp_path: Path) -> None:
    async def scenario() -> None:
        offload = ThreadOffload()
        made = await made_streams(tmp_path, offload)
        executor = ProcessExecutor(settings(tmp_path), offload, SystemClock())
        assert executor.pid is None
        for first_id in (1000, 2000):
            what = spec(made.inputs, [rows(made, 1, 2), rows(made, 3)])
            done = await executor.run(job(what, first_id))
            copied = {}
            for number, row in enumerate(done.objects):
                batches, _, _ = await read_object(made.store, row, first_id + number)
                copied.update(batches)
            assert copied == made.batches
        pid = executor.pid
        assert pid is not None
        assert psutil.Process(pid).nice() == psutil.Process().nice() + 3
        await made.store.delete([data_key(2)])
        data = bytearray(await made.store.get(data_key(1)))
        data[100] ^= 1
        await made.store.put(data_key(1), [bytes(data)])
        with pytest.raises(Corrupt) as caught:
            await executor.run(job(spec(made.inputs[:1], [list(made.inputs[0].rows)]), 3000))
        assert caught.value.object_key == data_key(1)
        assert executor.pid == pid
        await executor.close()
        assert executor.pid is None
        assert not psutil.pid_exists(pid)
        with pytest.raises(Closed):
            await executor.run(job(what))
        await offload.close()

    run(scenario)


def test_a_killed_process_is_started_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        offload = ThreadOffload()
        made = await made_streams(tmp_path, offload)
        executor = ProcessExecutor(settings(tmp_path, SLOW), offload, SystemClock())
        what = spec(made.inputs, [rows(made, 1), rows(made, 2), rows(made, 3)])
        task = asyncio.ensure_future(executor.run(job(what)))
        first = tmp_path / "store" / data_key(1000)
        await until(first.exists)
        pid = executor.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(StoreUnavailable, match="ended in the middle"):
            await task
        assert executor.pid is None
        assert not (tmp_path / "store" / data_key(1002)).exists()
        again = ProcessExecutor(settings(tmp_path), offload, SystemClock())
        done = await again.run(job(what, 2000))
        assert len(done.objects) == 3
        await again.close()
        await executor.close()
        await offload.close()

    run(scenario)


async def ends_while_it_hangs(
    executor: ProcessExecutor, ask: Callable[[], Awaitable[object]], patch: pytest.MonkeyPatch
) -> None:
    """The process is stopped, and killed once it has given no sign of life for long."""
    pid = executor.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    with patch.context() as patched:
        patched.setattr(process, "SILENT_S", 0.2)
        with pytest.raises(StoreUnavailable, match="no sign of life"):
            await ask()
    assert not psutil.pid_exists(pid)


def test_a_process_that_hangs_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        offload = ThreadOffload()
        made = await made_streams(tmp_path, offload)
        executor = ProcessExecutor(settings(tmp_path), offload, SystemClock())
        what = spec(made.inputs, [rows(made, 1, 2, 3)])
        await executor.run(job(what))
        await ends_while_it_hangs(executor, lambda: executor.run(job(what, 2000)), monkeypatch)
        assert len((await executor.run(job(what, 3000))).objects) == 1
        await executor.close()
        await offload.close()

    run(scenario)


def test_a_process_that_hangs_before_a_large_request_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pipe holds a part of the request, and nobody reads the rest."""
    random = Random(1)
    ranges = [RangeRow(stream, 1, 0, random.getrandbits(40)) for stream in range(1, 40_000)]
    stats = stats_of(1, ranges, [random.getrandbits(10) for _ in ranges])
    large = PlannedInput(stats.row, stats.rows, stats.bytes_of(stats.rows))
    asked = MergePlanRequest(CompactionPoint(3, 4), [large], STREAM_END, CompactionConfig())
    assert len(encode_request(asked)) > 200_000

    async def scenario() -> None:
        offload = ThreadOffload()
        await made_streams(tmp_path, offload)
        executor = ProcessExecutor(settings(tmp_path), offload, SystemClock())
        assert await executor.plan(asked) == asked.planned()
        await ends_while_it_hangs(executor, lambda: executor.plan(asked), monkeypatch)
        assert await executor.plan(asked) == asked.planned()
        await executor.close()
        await offload.close()

    run(scenario)


class Child:
    """The frames of a process, as ProcessExecutor reads them."""

    pid = 4711

    def __init__(self, output: bytes) -> None:
        self.stdout = asyncio.StreamReader()
        self.stdout.feed_data(output)


def test_frames_of_a_process_before_its_answer(tmp_path: Path) -> None:
    async def scenario() -> None:
        offload = ThreadOffload()
        executor = ProcessExecutor(settings(tmp_path), offload, SystemClock())
        child: Any = Child(encode_frame(Frame.ALIVE) * 2 + encode_frame(Frame.OUTCOME, b"done"))
        assert await executor._receive(child) == (Frame.OUTCOME, b"done")
        child = Child(b"a library that prints\n")
        with pytest.raises(StoreUnavailable, match="not a frame"):
            await executor._receive(child)
        await offload.close()

    run(scenario)


def test_a_cancelled_job_ends_the_process(tmp_path: Path) -> None:
    async def scenario() -> None:
        offload = ThreadOffload()
        made = await made_streams(tmp_path, offload)
        executor = ProcessExecutor(settings(tmp_path, SLOW), offload, SystemClock())
        task = asyncio.ensure_future(
            executor.run(job(spec(made.inputs, [rows(made, 1), rows(made, 2, 3)])))
        )
        await until((tmp_path / "store" / data_key(1000)).exists)
        pid = executor.pid
        assert pid is not None
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not psutil.pid_exists(pid)
        await offload.close()

    run(scenario)


def test_a_store_that_cannot_be_opened_is_reported(tmp_path: Path) -> None:
    async def scenario() -> None:
        offload = ThreadOffload()
        made = await made_streams(tmp_path, offload)
        blocked = tmp_path / "file"
        blocked.write_text("in the way")
        executor = ProcessExecutor(
            settings(tmp_path, store_url=f"local://{blocked}/store"), offload, SystemClock()
        )
        with pytest.raises(StoreUnavailable, match="a file stands where a folder"):
            await executor.run(job(spec(made.inputs, [rows(made, 1, 2, 3)])))
        assert executor.pid is None
        await offload.close()

    run(scenario)


def test_a_process_that_is_refused_its_store_is_tried_again(tmp_path: Path) -> None:
    """The job is not to blame, so it must not be given up."""

    async def scenario() -> None:
        offload = ThreadOffload()
        made = await made_streams(tmp_path, offload)
        executor = ProcessExecutor(
            settings(tmp_path, store_url="elsewhere://bucket"), offload, SystemClock()
        )
        with pytest.raises(StoreUnavailable, match=r"cannot open the store: .*; it is tried again"):
            await executor.run(job(spec(made.inputs, [rows(made, 1, 2, 3)])))
        assert executor.pid is None
        await offload.close()

    run(scenario)


def test_the_process_ends_with_its_node(tmp_path: Path) -> None:
    """Its stdin ends when the node does, however that ended."""
    worker = subprocess.Popen(WORKER, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert worker.stdin is not None
    assert worker.stdout is not None
    worker.stdin.write(encode_frame(Frame.SETTINGS, settings(tmp_path).encode()))
    worker.stdin.flush()
    assert worker.stdout.read(5) == encode_frame(Frame.READY)
    worker.send_signal(signal.SIGINT)
    worker.stdin.write(encode_frame(Frame.BUSY, b"\1"))
    worker.stdin.close()
    assert worker.wait(30) == 0
    assert worker.stdout.read() == b""
    worker.stdout.close()


def test_the_process_started_alone_explains_itself() -> None:
    done = subprocess.run(WORKER, stdin=subprocess.DEVNULL, capture_output=True, timeout=30)
    assert done.returncode == 1
    assert b"part of a streamlog node" in done.stderr


def test_errors_come_over_whole() -> None:
    error = decode_error(encode_error(Corrupt("bad", object_key="data/1", start=3, end=9)))
    assert isinstance(error, Corrupt)
    assert error.fields == {"object_key": "data/1", "start": 3, "end": 9}
    assert isinstance(decode_error(encode_error(TenureFenced("gone"))), TenureFenced)
    refused = decode_error(encode_error(StoreRefused("the store answered 418")))
    assert (type(refused), refused.message) == (Invalid, "the store answered 418")
    assert isinstance(
        decode_error(b'{"type": "SystemExit", "message": "x", "fields": {}}'), Internal
    )


def test_a_node_outlives_its_compactor_process(tmp_path: Path) -> None:
    """Killed in mid-spec: the next tick starts it again; its outputs are swept; data is whole."""

    async def scenario() -> None:
        history = History(6)
        slow = dataclasses.replace(
            BY_HAND,
            compaction=dataclasses.replace(
                BY_HAND.compaction,
                compaction_process="process",
                worker_nice=0,
                compaction_rate_max_bytes_per_s=SLOW,
                # Four to nine inputs each, of one or two batches: a gain, however they are cut.
                object_bytes_max=48 * 1024,
                spec_bytes_max=1 << 20,
                stream_object_bytes_min=24 * 1024,
            ),
        )
        async with engine(tmp_path, slow) as opened:
            streams = await make(opened, 1)
            # All of one size, so of one tier: the first spec has all of them, and many outputs.
            await history.append(streams, 50, [5000])
            await opened.drain()
            inputs = {data_key(row.object_id) for row in await live(opened)}
            compactor = opened.compactor
            assert compactor is not None
            ticking = asyncio.ensure_future(compactor.tick())

            await until(lambda: bool(stored(tmp_path) - inputs))
            (child,) = (
                one
                for one in psutil.Process().children()
                if "streamlog.compaction.workers.worker" in one.cmdline()
            )
            child.kill()
            await ticking
            assert sample(opened, "specs_total", outcome="unavailable") == 1
            committed = sample(opened, "specs_total", outcome="committed")
            await history.check(streams)
            await compactor.compact_all()
            assert sample(opened, "specs_total", outcome="committed") > committed
            await history.check(streams)
            left = {data_key(row.object_id) for row in await live(opened)}
            await until(lambda: stored(tmp_path) == left)
            await history.check(streams)
        async with engine(tmp_path) as opened:
            streams = [await opened.streams.open_stream(stream.stream_id) for stream in streams]
            await history.check(streams)

    run(scenario)


def test_a_process_plans_what_the_loop_plans(tmp_path: Path) -> None:
    def asked(end: int, config: CompactionConfig, *, is_reclaiming: bool) -> MergePlanRequest:
        inputs = []
        for number in range(3):
            stats = stats_of(
                number + 1,
                [RangeRow(s, 1, 10 * number, 10 * number + 10) for s in range(1, 40)],
                [1000 * s for s in range(1, 40)],
            )
            rows = stats.rows.between(0, end)
            inputs.append(PlannedInput(stats.row, rows, stats.bytes_of(rows), 7))
        return MergePlanRequest(CompactionPoint(3, 4), inputs, end, config, is_reclaiming)

    async def scenario() -> None:
        offload = ThreadOffload()
        await made_streams(tmp_path, offload)
        executor = ProcessExecutor(settings(tmp_path), offload, SystemClock())
        small = CompactionConfig(object_bytes_max=300_000, stream_object_bytes_min=100_000)
        for what in (
            asked(STREAM_END, small, is_reclaiming=False),
            asked(20, CompactionConfig(), is_reclaiming=True),
            MergePlanRequest(CompactionPoint(0, 0), [], STREAM_END, small),
        ):
            assert await executor.plan(what) == what.planned()
        assert what.planned().spec is None
        await executor.close()
        await offload.close()

    run(scenario)


def test_bytes_of_planning_are_checked() -> None:
    stats = stats_of(5, [RangeRow(1, 1, 0, 9)], [100])
    input_ = PlannedInput(stats.row, stats.rows, stats.bytes_of(stats.rows))
    asked = MergePlanRequest(CompactionPoint(1, 2), [input_], STREAM_END, CompactionConfig(), True)
    data = encode_request(asked)
    assert decode_request(data) == asked
    answer = encode_plan(asked.planned(), asked)
    assert asked.planned().spec is not None
    none = dataclasses.replace(asked, inputs=[])
    with pytest.raises(Corrupt, match="not asked about"):
        decode_plan(answer, none)
    for whole, decode in ((data, decode_request), (answer, lambda b: decode_plan(b, asked))):
        for wrong in (whole[:-1], whole[:20], bytes([whole[0] ^ 1]) + whole[1:]):
            with pytest.raises((Corrupt, UnsupportedVersion)):
                decode(wrong)
