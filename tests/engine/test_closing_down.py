"""Closing an engine with partitions while its store, or its metadata, does not answer."""

from __future__ import annotations

import asyncio
import dataclasses
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

import streamlog
from streamlog.engine.engine import WalMode
from streamlog.errors import Internal, OutcomeUnknown
from streamlog.kvstore.memory import MemoryKVStore
from streamlog.log.abstract import Isolation, TopicPartition
from streamlog.metadata.config import MetadataConfig
from streamlog.runtime.clock import SystemClock
from streamlog.testing.log_conformance import encoded
from streamlog.wiring import Components, OpenEngine
from tests.engine.harness import QUICK, FlakyStore, error_of, run

PARTITION = TopicPartition("t", 0)
CONFIG = dataclasses.replace(
    QUICK,
    append=dataclasses.replace(QUICK.append, drain_timeout_ms=200),
    metadata=MetadataConfig(operation_timeout_ms=200),
)


@pytest.mark.parametrize("mode", ["disk", "object"])
def test_partitions_are_given_up_in_time_with_the_store_away(mode: WalMode, tmp_path: Path) -> None:
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
            found = await log.fetch(0, 1 << 20)
            assert found.next_offset == log.high_watermark

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
