"""Closing an engine with partitions while its store, or its metadata, does not answer."""

from __future__ import annotations

import asyncio
import dataclasses
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

import streamlog
from streamlog.errors import Closed, Internal, OutcomeUnknown, WalPending
from streamlog.kvstore.memory.store import MemoryKVStore
from streamlog.log.api.abstract_log import Isolation
from streamlog.metadata.config import MetadataConfig
from streamlog.model.batch import RecordBatch
from streamlog.model.partition import TopicPartition
from streamlog.runtime.clock import SystemClock
from streamlog.testing.logs.log_conformance import encoded
from streamlog.wal.config import WalMode
from streamlog.wiring import Components, OpenEngine
from tests.engine.harness import QUICK, FlakyStore, batch, error_of, run

PARTITION = TopicPartition("t", 0)
CONFIG = dataclasses.replace(
    QUICK,
    append=dataclasses.replace(QUICK.append, drain_timeout_ms=200),
    metadata=MetadataConfig(operation_timeout_ms=200),
)


@pytest.mark.parametrize("mode", ["disk", "object"])
def test_closing_gives_partitions_up_in_time_while_the_store_is_away(
    mode: WalMode, tmp_path: Path
) -> None:
    async def scenario() -> None:
        store = FlakyStore()
        components = Components(store=store, kv=MemoryKVStore(SystemClock()))
        wal_dir = tmp_path / "wal" if mode == "disk" else None

        def opened() -> AbstractAsyncContextManager[OpenEngine]:
            return streamlog.open(
                "memory://", wal=mode, wal_dir=wal_dir, config=CONFIG, components=components
            )

        async with opened() as engine:
            await engine.logs.create_topic("t", 1)
            log = await engine.logs.log(PARTITION)
            await (await log.append(encoded([b"a"])))
            await engine.drain()
            store.puts_to_fail = 1 << 31
            second = asyncio.ensure_future(await log.append(encoded([b"b"])))
            if mode == "disk":
                await second
        if mode == "object":
            assert isinstance(await error_of(second), OutcomeUnknown)
        store.puts_to_fail = 0
        async with opened() as engine:
            log = await engine.logs.log(PARTITION)
            await log.wait_for(0, Isolation.READ_UNCOMMITTED)
            assert log.high_watermark == (2 if mode == "disk" else 1)
            fetched = await log.fetch(0, 1 << 20)
            assert fetched.next_offset == log.high_watermark

    run(scenario)


def test_a_log_manager_whose_background_work_fails_stops_the_engine_with_the_reason() -> None:
    async def scenario() -> None:
        async with streamlog.open("memory://", config=CONFIG) as engine:
            await engine.logs.create_topic("t", 1)
            log = await engine.logs.log(PARTITION)

            async def broken() -> None:
                raise ValueError("a bug")

            engine.logs._background.spawn(broken(), name="retention")
            reason = await engine.wait_stopped()
            assert isinstance(reason, Internal)
            assert "a bug" in str(reason)
            assert isinstance(await error_of(log.append(encoded([b"x"]))), Internal)

    run(scenario)


def test_a_batch_without_payload_keeps_the_tenure_from_being_drained(tmp_path: Path) -> None:
    """The batch is acknowledged: another node must not open the stream without it."""

    async def scenario() -> None:
        store = FlakyStore()
        components = Components(store=store, kv=MemoryKVStore(SystemClock()))

        def opened(node_id: int) -> AbstractAsyncContextManager[OpenEngine]:
            return streamlog.open(
                "memory://",
                wal="disk",
                wal_dir=tmp_path / f"wal{node_id}",
                node_id=node_id,
                config=CONFIG,
                components=components,
            )

        async with opened(1) as first:
            stream = await first.streams.create_and_open_stream()
            await stream.append(batch(b"stored"))
            await first.drain()
            store.puts_to_fail = 1 << 30
            assert (await stream.append(RecordBatch(1, 1000, (), b"a"))).end_offset == 2
        store.puts_to_fail = 0
        async with opened(2) as other:
            error = await error_of(other.streams.open_stream(stream.stream_id))
            assert isinstance(error, WalPending)
        async with opened(1) as first:
            again = await first.streams.open_stream(stream.stream_id)
            assert again.confirm_offset == 2
            assert [stored.attributes for stored in await again.attributes(0, 2)] == [b"", b"a"]

    run(scenario)


def test_closing_waits_for_a_batch_without_payload(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = FlakyStore()
        components = Components(store=store, kv=MemoryKVStore(SystemClock()))
        async with streamlog.open(
            "memory://", wal="disk", wal_dir=tmp_path / "wal", config=QUICK, components=components
        ) as log:
            stream = await log.streams.create_and_open_stream()
            await stream.append(RecordBatch(1, 1000, ()))
            # A stream that was lost is not among those that a drain waits for.
            log.engine.lost(stream.stream_id, stream.stream_epoch + 1)
            store.puts_to_fail = 2
            await log.engine.close()
            assert log.engine.tails.held_batches == 0
            assert log.engine.is_drained

    run(scenario)


def test_draining_an_engine_that_has_failed_tells_the_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was acknowledged is in the WAL alone: a copy of the bucket would not have it."""

    async def broken(*_: object, **__: object) -> None:
        raise ConnectionResetError("the store reset the connection")

    async def scenario() -> None:
        store = FlakyStore()
        components = Components(store=store, kv=MemoryKVStore(SystemClock()))
        async with streamlog.open(
            "memory://", wal="disk", wal_dir=tmp_path / "wal", config=QUICK, components=components
        ) as log:
            stream = await log.streams.create_and_open_stream()
            monkeypatch.setattr(store, "put", broken)
            await stream.append(batch(b"acknowledged"))
            under_way = asyncio.ensure_future(error_of(log.drain()))
            failure = await log.wait_stopped()
            for told in (await under_way, await error_of(log.drain())):
                assert isinstance(told, Internal)
                assert str(told) == str(failure)

    run(scenario)


def test_draining_an_engine_behind_its_end_is_closed() -> None:
    async def scenario() -> None:
        async with streamlog.open("memory://", config=QUICK) as log:
            await log.drain()
        assert isinstance(await error_of(log.drain()), Closed)

    run(scenario)


@pytest.mark.parametrize("end", ["close", "kill"])
def test_whoever_waits_for_a_failure_is_told_of_the_end(end: str) -> None:
    async def scenario() -> None:
        async with streamlog.open("memory://", config=QUICK) as log:
            waiting = asyncio.ensure_future(error_of(log.wait_stopped()))
            await asyncio.sleep(0)
            if end == "kill":
                await log.kill()
        assert isinstance(await waiting, Closed)
        assert isinstance(await error_of(log.wait_stopped()), Closed)

    run(scenario)
