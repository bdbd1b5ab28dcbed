"""Staged batches over a real engine, with both WAL modes: unseen, then all there at once."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from streamlog.engine.config import StagingConfig
from streamlog.errors import (
    Conflict,
    Invalid,
    MessageTooLarge,
    OutcomeUnknown,
    Overloaded,
    StagedNotFound,
    StreamNotFound,
)
from streamlog.metadata.config import MetadataConfig
from streamlog.model.batch import AppendContext, RecordBatch
from streamlog.model.staging import AttachedRow, UnattachedObject
from streamlog.model.stream import Stream
from streamlog.wal.config import WalMode
from streamlog.wiring import OpenEngine
from tests.compaction.compacting_engine import COMPACTION, CONFIG
from tests.engine.harness import batch, error_of, read_all, sent, until
from tests.engine.streams.site import MODES, QUICK, Site, answer_lost, run


async def staged(
    engine: OpenEngine,
    rows: Mapping[int, Sequence[bytes]],
    *,
    writer: str = "w",
    attempt: str,
    expires_ms: int = 0,
) -> UnattachedObject:
    batches = {
        stream_id: [batch(payload, records=2, attributes=b"f") for payload in payloads]
        for stream_id, payloads in rows.items()
    }
    return await engine.staging.stage(writer, attempt, batches, expires_ms=expires_ms)


async def two_streams(engine: OpenEngine) -> tuple[Stream, Stream]:
    return (
        await engine.streams.create_and_open_stream(),
        await engine.streams.create_and_open_stream(),
    )


@MODES
def test_staged_batches_come_into_their_streams_in_order_with_appends(
    tmp_path: Path, wal: WalMode
) -> None:
    async def scenario() -> None:
        site = Site(tmp_path, wal)
        async with site.open(crash=True) as engine:
            a, b = await two_streams(engine)
            first = await staged(
                engine, {a.stream_id: [b"s1", b"s2"], b.stream_id: [b"t"]}, attempt="1"
            )
            second = await staged(engine, {a.stream_id: [b"s3"]}, attempt="2")
            assert (a.next_offset, b.next_offset) == (0, 0)
            before = [sent(a.append(batch(b"x%d" % n))) for n in range(5)]
            waiter = asyncio.create_task(b.wait_confirmed(2))
            commit = asyncio.create_task(
                engine.staging.attach("w", 0, [first.object_id, second.object_id])
            )
            await until(
                lambda: engine.engine.cores[a.stream_id].append_barrier is not None or commit.done()
            )
            after = [sent(a.append(batch(b"y%d" % n))) for n in range(5)]
            attached = await commit
            assert attached.rows == (
                AttachedRow(a.stream_id, 5, 11),
                AttachedRow(b.stream_id, 0, 2),
            )
            assert not attached.was_attached
            assert [(await append).base_offset for append in before] == list(range(5))
            assert [(await append).base_offset for append in after] == list(range(11, 16))
            await waiter
            expected = [b"x%d" % n for n in range(5)] + [b"s1", b"s2", b"s3"]
            expected += [b"y%d" % n for n in range(5)]
            assert await read_all(a) == expected
            attributes = await a.attributes(4, 12)
            assert [stored.base_offset for stored in attributes] == [4, 5, 7, 9, 11]
            ids = a.stream_id, b.stream_id
        async with site.open() as engine:
            a, b = [await engine.streams.open_stream(stream_id) for stream_id in ids]
            assert await read_all(a) == expected
            assert await read_all(b) == [b"t"]
            again = await engine.staging.attach("w", 0, [first.object_id])
            assert again == dataclasses.replace(attached, was_attached=True)
            assert a.next_offset == 16

    run(scenario)


@MODES
def test_after_a_crash_before_the_commit_the_commit_can_be_repeated(
    tmp_path: Path, wal: WalMode
) -> None:
    async def scenario() -> None:
        site = Site(tmp_path, wal)
        async with site.open(crash=True) as engine:
            a, b = await two_streams(engine)
            stage = await staged(engine, {a.stream_id: [b"s"], b.stream_id: [b"t"]}, attempt="1")
            await a.append(batch(b"x"))
        async with site.open() as engine:
            assert engine.staging.staged(stage.object_id) == stage
            a = await engine.streams.open_stream(stage.rows[0].stream_id)
            # A stream that nobody has opened here is its holder's all the same.
            assert stage.rows[1].stream_id not in engine.engine.cores
            await engine.staging.attach("w", 3, [stage.object_id])
            assert await read_all(a) == [b"x", b"s"]
            state = engine.staging.writer("w")
            assert (state.last_epoch, state.staged_objects) == (3, 0)

    run(scenario)


@MODES
def test_a_staged_commit_cut_off_by_a_crash_may_be_applied(
    tmp_path: Path, wal: WalMode, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        site = Site(tmp_path, wal)
        async with site.open() as engine:
            a, _ = await two_streams(engine)
            stage = await staged(engine, {a.stream_id: [b"s"]}, attempt="1")
            recorded = answer_lost(engine, monkeypatch)
            call = asyncio.create_task(engine.staging.attach("w", 0, [stage.object_id]))
            await recorded.wait()
            await engine.kill()
            error = await error_of(call)
            assert isinstance(error, OutcomeUnknown), repr(error)
            assert "commit the same epoch again" in str(error)
        async with site.open() as engine:
            assert (await engine.staging.attach("w", 0, [stage.object_id])).was_attached
            assert await read_all(await engine.streams.open_stream(a.stream_id)) == [b"s"]

    run(scenario)


def test_readers_see_attached_batches_once_a_checkpoint_has_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with Site(tmp_path, "object").open() as engine:
            a, _ = await two_streams(engine)
            stage = await staged(engine, {a.stream_id: [b"s"]}, attempt="1")
            asked, let, checkpoint = asyncio.Event(), asyncio.Event(), engine.metadata.checkpoint

            async def slow() -> None:
                asked.set()
                await let.wait()
                await checkpoint()

            monkeypatch.setattr(engine.metadata, "checkpoint", slow)
            call = asyncio.create_task(engine.staging.attach("w", 0, [stage.object_id]))
            await asked.wait()
            assert engine.staging.writer("w").last_epoch == 0
            assert a.confirm_offset == 0
            let.set()
            # Whoever hears that it was committed can read it.
            assert (await engine.staging.attach("w", 0, [stage.object_id])).was_attached
            assert a.confirm_offset == 2
            assert not (await call).was_attached
            assert await read_all(a) == [b"s"]

    run(scenario)


def test_the_same_attempt_is_stored_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Site(tmp_path, "object").open() as engine:
            a, _ = await two_streams(engine)
            calls = [staged(engine, {a.stream_id: [b"s"]}, attempt="1") for _ in range(3)]
            stages = await asyncio.gather(*calls)
            assert len({stage.object_id for stage in stages}) == 1
            assert engine.staging.writer("w").staged_objects == 1
            other = await staged(engine, {a.stream_id: [b"s"]}, attempt="2")
            assert await engine.staging.unstage("v", [other.object_id]) == 0
            assert await engine.staging.unstage("w", [other.object_id]) == 1
            assert await engine.staging.unstage("w", [other.object_id]) == 0
            with pytest.raises(StagedNotFound, match="Stage everything again"):
                await engine.staging.attach("w", 0, [stages[0].object_id, other.object_id])
            assert a.next_offset == 0

    run(scenario)


def test_a_stage_under_way_keeps_its_bytes_after_its_caller_is_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with Site(tmp_path, "object").open() as engine:
            a, _ = await two_streams(engine)
            begun, let, put = asyncio.Event(), asyncio.Event(), engine.engine.put.put
            keys: list[str] = []

            async def slow(key: str, *args: Any, **options: Any) -> Any:
                keys.append(key)
                begun.set()
                await let.wait()
                return await put(key, *args, **options)

            monkeypatch.setattr(engine.engine.put, "put", slow)
            staging = engine.staging
            for _ in range(5):
                call = asyncio.create_task(staged(engine, {a.stream_id: [b"s"]}, attempt="1"))
                await begun.wait()
                # The turn is tried for before the caller leaves.
                await asyncio.sleep(0)
                call.cancel()
                assert isinstance(await error_of(call), asyncio.CancelledError)
                assert staging.bytes_in_flight == 1
            assert len(keys) == len(staging._under_way) == 1
            last = asyncio.create_task(staged(engine, {a.stream_id: [b"s"]}, attempt="1"))
            await asyncio.sleep(0)
            let.set()
            stage = await last
            assert len(keys) == 1
            assert staging.staged(stage.object_id) == stage
            await until(lambda: not staging.bytes_in_flight)
            assert not len(staging._under_way)

    run(scenario)


def test_expired_staged_objects_are_dropped_and_deleted(tmp_path: Path) -> None:
    async def scenario() -> None:
        config = dataclasses.replace(
            CONFIG, staging=StagingConfig(sweep_interval_ms=10, writer_memory_ms=1000)
        )
        async with Site(tmp_path, "object", config).open() as engine:
            a, _ = await two_streams(engine)
            stage = await staged(engine, {a.stream_id: [b"s"]}, attempt="1", expires_ms=1)
            await until(lambda: engine.staging.staged(stage.object_id) is None)
            with pytest.raises(StagedNotFound):
                await engine.staging.attach("w", 0, [stage.object_id])
            await engine.staging.attach("w", 1, [])

            async def objects() -> int:
                return len((await engine.store.list("data/")).objects)

            while await objects():  # noqa: ASYNC110 - the store tells nobody
                await asyncio.sleep(0.01)
            await until(lambda: engine.staging.writer("w").last_epoch == -1)

    run(scenario)


def test_more_objects_than_the_bound_wait_for_a_commit_or_an_abort(tmp_path: Path) -> None:
    async def scenario() -> None:
        config = dataclasses.replace(QUICK, staging=StagingConfig(staged_objects_max=2))
        async with Site(tmp_path, "object", config).open() as engine:
            a, _ = await two_streams(engine)
            rows = {a.stream_id: [b"s"]}
            first, second = [await staged(engine, rows, attempt=n) for n in "12"]
            error = await error_of(staged(engine, rows, attempt="3"))
            assert isinstance(error, Overloaded), repr(error)
            assert "staging.staged_objects_max" in str(error)
            # Of what is staged already nothing is refused.
            assert await staged(engine, rows, attempt="2") == second
            await engine.staging.attach("w", 0, [first.object_id])
            await staged(engine, rows, attempt="3")
            assert isinstance(await error_of(staged(engine, rows, attempt="4")), Overloaded)
            await engine.staging.unstage("w", [second.object_id])
            await staged(engine, rows, attempt="4")

    run(scenario)


def test_an_impossible_stage_is_refused_and_stages_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        config = dataclasses.replace(QUICK, staging=StagingConfig(object_bytes_max=1024))
        async with Site(tmp_path, "object", config).open() as engine:
            a, _ = await two_streams(engine)
            stage, s = engine.staging.stage, a.stream_id
            assert isinstance(await error_of(stage("", "1", {s: [batch(b"x")]})), Invalid)
            assert isinstance(await error_of(stage("w", "1" * 201, {s: [batch(b"x")]})), Invalid)
            assert isinstance(await error_of(stage("w", "1", {})), Invalid)
            assert isinstance(await error_of(stage("w", "1", {s: []})), Invalid)
            empty = RecordBatch(0, 0, (b"x",))
            assert isinstance(await error_of(stage("w", "1", {s: [empty]})), Invalid)
            assert isinstance(await error_of(stage("w", "1", {999: [batch(b"x")]})), StreamNotFound)
            large = await error_of(stage("w", "1", {s: [batch(bytes(2000))]}))
            assert isinstance(large, MessageTooLarge)
            assert engine.staging.writer("w").staged_objects == 0

    run(scenario)


def test_an_attach_that_is_refused_leaves_its_objects_staged(tmp_path: Path) -> None:
    async def scenario() -> None:
        config = dataclasses.replace(QUICK, staging=StagingConfig(commit_rows_max=1))
        async with Site(tmp_path, "object", config).open() as engine:
            a, b = await two_streams(engine)
            rows = {a.stream_id: [b"x"], b.stream_id: [b"y"]}
            large = await staged(engine, rows, attempt="1")
            small = await staged(engine, {a.stream_id: [b"x"]}, attempt="2")
            attach = engine.staging.attach
            crowded = await error_of(attach("w", 0, [large.object_id]))
            assert isinstance(crowded, Invalid)
            assert "2 rows" in str(crowded)
            assert "Nothing was committed" in str(crowded)
            assert "bufferBytes" in str(crowded)
            assert isinstance(await error_of(attach("w", -1, [small.object_id])), Invalid)
            await a.destroy()
            assert isinstance(await error_of(attach("w", 0, [small.object_id])), Conflict)
            assert engine.staging.writer("w").staged_objects == 2

    run(scenario)


def test_an_append_at_a_barrier_fails_at_its_deadline(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Site(tmp_path, "object").open() as engine:
            a, _ = await two_streams(engine)
            sequencer, core = engine.engine.sequencer, engine.engine.cores[a.stream_id]
            sequencer.raise_barrier(core)
            deadline = engine.clock.monotonic() + 0.01
            late = sent(a.append(batch(b"late"), AppendContext(deadline=deadline)))
            kept = sent(a.append(batch(b"kept")))
            assert isinstance(await error_of(late), Overloaded)
            assert not kept.done()
            sequencer.lift_barrier(core)
            assert (await kept).base_offset == 0
            assert await read_all(a) == [b"kept"]
            assert engine.engine.budget.used_bytes == 0

    run(scenario)


@MODES
def test_two_writers_between_appends_under_load(tmp_path: Path, wal: WalMode) -> None:
    async def scenario() -> None:
        site = Site(tmp_path, wal)
        async with site.open() as engine:
            streams = [await engine.streams.create_and_open_stream() for _ in range(16)]
            acked: dict[int, dict[int, bytes]] = {s.stream_id: {} for s in streams}

            async def produce(stream: Stream) -> None:
                for n in range(20):
                    payload = b"p%d" % n
                    result = await stream.append(batch(payload))
                    acked[stream.stream_id][result.base_offset] = payload

            async def write(writer: str) -> None:
                for epoch in range(4):
                    rows = {s.stream_id: [f"{writer}{epoch}".encode()] for s in streams}
                    stage = await staged(engine, rows, writer=writer, attempt=str(epoch))
                    attached = await engine.staging.attach(writer, epoch, [stage.object_id])
                    for row in attached.rows:
                        acked[row.stream_id][row.start] = f"{writer}{epoch}".encode()
                    again = await engine.staging.attach(writer, epoch, [stage.object_id])
                    assert again.rows == attached.rows

            await asyncio.gather(*map(produce, streams), write("u"), write("v"))
            for stream in streams:
                expected = [p for _, p in sorted(acked[stream.stream_id].items())]
                assert len(expected) == 28
                assert await read_all(stream) == expected

    run(scenario)


def test_attached_batches_survive_compaction_trims_and_checkpoints(tmp_path: Path) -> None:
    async def scenario() -> None:
        config = dataclasses.replace(
            CONFIG,
            compaction=dataclasses.replace(COMPACTION, compaction_interval_ms=10),
            metadata=MetadataConfig(checkpoint_interval_ms=50),
        )
        site = Site(tmp_path, "object", config)
        async with site.open() as engine:
            a, b = await two_streams(engine)
            expected: list[bytes] = []
            ids = set()
            for n in range(30):
                payload = (b"%d-" % n) * 40
                await a.append(batch(payload))
                stage = await staged(
                    engine, {a.stream_id: [payload], b.stream_id: [payload] * 2}, attempt=str(n)
                )
                await engine.staging.attach("w", n, [stage.object_id])
                ids.add(stage.object_id)
                expected += [payload, payload]
            # A few stay: too little for a merge.
            await until(lambda: len(ids & set(engine.metadata.staging.attached)) < 8)
            assert await read_all(a) == expected
            assert len(await read_all(b)) == 60
            await a.trim(a.next_offset - 3)
            assert await read_all(a) == expected[-2:]
            ends = a.next_offset, b.next_offset
        async with site.open() as engine:
            a = await engine.streams.open_stream(a.stream_id)
            b = await engine.streams.open_stream(b.stream_id)
            assert (a.next_offset, b.next_offset) == ends
            assert await read_all(a) == expected[-2:]

    run(scenario)
