"""Compaction under an open engine: what was appended is read back equal, whatever runs beside."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path

import pytest

import streamlog
from streamlog.compaction.plan.config import MIB, CompactionConfig
from streamlog.compaction.plan.spec import INPUTS_MAX
from streamlog.errors import Closed
from streamlog.model.batch import RecordBatch
from streamlog.objectstore.keys import data_key
from streamlog.objectstore.memory import MemoryObjectStore
from streamlog.runtime.buffers import Buffer
from streamlog.runtime.clock import SystemClock
from streamlog.wiring import Components
from tests.compaction.compacting_engine import (
    BY_HAND,
    CONFIG,
    History,
    again,
    compacted,
    engine,
    live,
    make,
    run,
    sample,
    stored,
    with_compaction,
)
from tests.engine.harness import until


def test_everything_is_there_after_compaction_deletion_and_restart(tmp_path: Path) -> None:
    async def scenario() -> None:
        history = History(1)
        async with engine(tmp_path, BY_HAND) as opened:
            streams = await make(opened, 12)
            await history.append(streams, 150)
            before = {row.object_id for row in await live(opened)}
            await compacted(opened)
            await history.check(streams)
            assert sample(opened, "specs_total", outcome="committed") > 3
            after = {row.object_id for row in await live(opened)}
            assert len(after) < len(before) / 3
            gone = sorted(before - after)

            await opened.metadata.checkpoint()
            await until(lambda: stored(tmp_path) == {data_key(one) for one in after})
            assert not {data_key(one) for one in gone} & stored(tmp_path)
            await history.check(streams)
        async with engine(tmp_path) as opened:
            streams = await again(opened, streams)
            await history.check(streams)
            await history.append(streams, 20)
            await compacted(opened)
            await history.check(streams)

    run(scenario)


def test_trims_destroys_and_appends_race_with_compaction(tmp_path: Path) -> None:
    async def scenario() -> None:
        history = History(2)
        async with engine(tmp_path) as opened:
            streams = await make(opened, 8)
            doomed = await make(opened, 4)
            for number in range(12):
                await history.append([*streams, *doomed], 25)
                stream = history.random.choice(streams)
                span = stream.confirm_offset - stream.start_offset
                await stream.trim(stream.start_offset + history.random.randint(0, span))
                if number % 3 == 2:
                    await doomed.pop().destroy()
                if number % 4 == 3:
                    await history.check(streams)
            await compacted(opened)
            await history.check(streams)
            assert sample(opened, "specs_total", outcome="committed") > 3
            assert sample(opened, "specs_total", outcome="failed") == 0
            assert sample(opened, "quarantined_objects") == 0
        async with engine(tmp_path) as opened:
            await history.check(await again(opened, streams))

    run(scenario)


def test_mostly_trimmed_objects_are_rewritten(tmp_path: Path) -> None:
    async def scenario() -> None:
        history = History(3)
        packed = with_compaction(
            compaction_interval_ms=10**6,
            stream_object_bytes_min=MIB,
            object_bytes_max=MIB,
            spec_bytes_max=MIB,
        )
        async with engine(tmp_path, packed) as opened:
            streams = await make(opened, 8)
            await history.append(streams, 120)
            await compacted(opened)
            for stream in streams[:7]:
                await stream.trim(stream.confirm_offset)
            before = sum(row.size_bytes for row in await live(opened))
            await compacted(opened)
            after = sum(row.size_bytes for row in await live(opened))
            assert after < before / 3
            await history.check(streams)

    run(scenario)


def test_an_object_dead_by_ranges_alone_does_not_keep_dead_bytes_alive(tmp_path: Path) -> None:
    """Three of four streams are trimmed: in one object they are crumbs, in another nearly all."""

    async def scenario() -> None:
        history = History(6)
        packed = with_compaction(
            compaction_interval_ms=10**6,
            stream_object_bytes_min=MIB,
            object_bytes_max=MIB,
            spec_bytes_max=MIB,
            small_objects_min=60,
            large_objects_min=60,
        )
        async with engine(tmp_path, packed) as opened:
            streams = await make(opened, 8)
            heavy, light = streams[:4], streams[4:]
            await history.append(heavy[:1], 40, [5000])
            for stream in heavy[1:]:
                await history.append([stream], 1, [20])
            await compacted(opened)
            (kept,) = [row.object_id for row in await live(opened)]
            for stream in light:
                await history.append([stream], 12, [2000])
            await compacted(opened)
            assert len(await live(opened)) == 2
            for stream in [*heavy[1:], *light[1:]]:
                await stream.trim(stream.confirm_offset)
            before = await live(opened)
            await compacted(opened)
            after = await live(opened)
            assert kept in {row.object_id for row in before} & {row.object_id for row in after}
            (small,) = [row.size_bytes for row in after if row.object_id != kept]
            (large,) = [row.size_bytes for row in before if row.object_id != kept]
            assert small < large / 2
            await history.check(streams)

    run(scenario)


def test_a_damaged_object_is_left_alone_and_the_rest_compacted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        history = History(4)
        async with engine(tmp_path, BY_HAND) as opened:
            streams = await make(opened, 3)
            # However slow the machine is, there are as many objects as this.
            for _ in range(12):
                await history.append(streams[:2], 3)
                await opened.drain()
            rows = await live(opened)
            # Small, so that a merge always takes it.
            victim = min(rows, key=lambda row: row.size_bytes)
            key = data_key(victim.object_id)
            whole = bytes(await opened.store.get(key))
            data = bytearray(whole)
            data[victim.index_position - 1] ^= 1
            await opened.store.put(key, [bytes(data)])
            await compacted(opened)
            await compacted(opened)
            assert sample(opened, "quarantined_objects") == 1
            assert sample(opened, "specs_total", outcome="corrupt") == 1
            left = [row.object_id for row in await live(opened)]
            assert victim.object_id in left
            assert len(left) < len(rows) / 2
            assert key in caplog.text
            # Put back, it is taken when its time has come.
            await opened.store.put(key, [whole])
            await compacted(opened)
            assert victim.object_id in [row.object_id for row in await live(opened)]
            assert opened.compactor is not None
            opened.compactor._quarantine._pauses[victim.object_id].until = 0.0
            while victim.object_id in [row.object_id for row in await live(opened)]:
                await history.append(streams[:2], 10)
                await compacted(opened)
            assert sample(opened, "quarantined_objects") == 0

    run(scenario)


def test_compacted_objects_leave_nothing_due(tmp_path: Path) -> None:
    async def scenario() -> None:
        history = History(5)
        async with engine(tmp_path) as opened:
            streams = await make(opened, 5)
            await history.append(streams, 60)
            await compacted(opened)
            done = sample(opened, "specs_total", outcome="committed")
            assert opened.compactor is not None
            await opened.compactor.tick()
            await opened.compactor.tick()
            assert sample(opened, "specs_total", outcome="committed") == done

    run(scenario)


def test_off_means_off(tmp_path: Path) -> None:
    async def scenario() -> None:
        off = dataclasses.replace(CONFIG, compaction=CompactionConfig(compaction_process="off"))
        async with engine(tmp_path, off) as opened:
            assert opened.compactor is None
        async with streamlog.open("memory://") as opened:
            assert opened.compactor is None

    run(scenario)


def test_compact_all_merges_at_once_what_one_merge_can_take(tmp_path: Path) -> None:
    """More than a tier's merge takes; every byte is written once more, not twice."""

    async def scenario() -> None:
        history = History(9)
        config = with_compaction(compaction_interval_ms=10**6, spec_bytes_max=MIB)
        async with engine(tmp_path, config) as opened:
            streams = await make(opened, 3)
            for _ in range(INPUTS_MAX + 10):
                await history.append(streams, 1, [3000])
                await opened.drain()
            uploaded = {row.object_id: row.size_bytes for row in await live(opened)}
            assert len(uploaded) > INPUTS_MAX
            await compacted(opened)
            assert sample(opened, "specs_total", outcome="committed") == 1
            assert sample(opened, "input_objects_total") == len(uploaded)
            assert sample(opened, "written_bytes_total") <= sum(uploaded.values())
            await history.check(streams)

    run(scenario)


def test_a_call_that_waits_for_the_store_ends_with_the_engine() -> None:
    """The store never answers; the caller must hear of the close all the same."""

    class Silent(MemoryObjectStore):
        asked: asyncio.Event | None = None

        async def get(self, key: str, start: int = 0, length: int | None = None) -> Buffer:
            if self.asked is not None and key.startswith("data/"):
                self.asked.set()
                await asyncio.Event().wait()
            return await super().get(key, start, length)

    async def scenario() -> None:
        store = Silent(SystemClock())
        components = Components(store=store)
        async with streamlog.open("memory://", config=BY_HAND, components=components) as engine:
            stream = await engine.streams.create_and_open_stream()
            for _ in range(4):
                await stream.append(RecordBatch(1, 1, (bytes(1000),)))
            store.asked = asyncio.Event()
            assert engine.compactor is not None
            call = asyncio.create_task(engine.compactor.compact_all())
            await store.asked.wait()
            await engine.close()
            with pytest.raises(Closed):
                await call

    run(scenario)
