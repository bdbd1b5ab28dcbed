"""Very many small appends at once: groups and objects stay within the bounds of WAL and record."""

from __future__ import annotations

import asyncio
import dataclasses
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

import streamlog
from streamlog.engine.config import StreamEngineConfig
from streamlog.kvstore.memory.store import MemoryKVStore
from streamlog.metadata.config import MetadataConfig
from streamlog.model.batch import CreateStreamOptions, RecordBatch
from streamlog.runtime.clock import SystemClock
from streamlog.wal.config import WalConfig, WalMode
from streamlog.wiring import Components, OpenEngine
from tests.engine.harness import QUICK, FlakyStore, batch, payloads, run, sent

SMALL_WAL = dataclasses.replace(QUICK, wal=WalConfig(wal_bytes_max=256 << 10, file_bytes=64 << 10))
FEW_ROWS = dataclasses.replace(QUICK, metadata=MetadataConfig(object_streams_max=5))
SHORT_RECORDS = dataclasses.replace(QUICK, metadata=MetadataConfig(record_bytes_max=1024))
STREAMS = 120


class Place:
    """Store, metadata and WAL folder, which outlive an engine."""

    def __init__(self, mode: WalMode, tmp_path: Path) -> None:
        self.mode: WalMode = mode
        self.store = FlakyStore()
        self.wal_dir = tmp_path / "wal" if mode == "disk" else None
        self.parts = Components(store=self.store, kv=MemoryKVStore(SystemClock()))

    def opened(self, config: StreamEngineConfig) -> AbstractAsyncContextManager[OpenEngine]:
        return streamlog.open(
            "memory://", wal=self.mode, wal_dir=self.wal_dir, config=config, components=self.parts
        )


def test_many_appends_without_payload_fit_into_a_small_wal(tmp_path: Path) -> None:
    """Their tables and attributes alone would exceed one group of the WAL."""

    async def scenario() -> None:
        async with Place("disk", tmp_path).opened(SMALL_WAL) as log:
            stream = await log.streams.create_and_open_stream()
            appends = [stream.append(RecordBatch(1, 0, (), bytes(64))) for _ in range(3000)]
            assert [(await append).base_offset for append in appends] == list(range(3000))
            assert log.engine.failure is None

    run(scenario)


@pytest.mark.parametrize("mode", ["disk", "object"])
@pytest.mark.parametrize("config", [FEW_ROWS, SHORT_RECORDS], ids=["rows", "bytes"])
def test_appends_to_many_streams_with_small_records(
    mode: WalMode, config: StreamEngineConfig, tmp_path: Path
) -> None:
    async def scenario() -> None:
        place = Place(mode, tmp_path)
        async with place.opened(config) as log:
            streams = [await log.streams.create_and_open_stream() for _ in range(STREAMS)]
            # Uploads behind the one that fails are in the store when it is: they commit together.
            place.store.puts_to_fail = 2
            appends = [sent(stream.append(batch(b"%d" % stream.stream_id))) for stream in streams]
            assert [(await append).base_offset for append in appends] == [0] * STREAMS
            await log.drain()
            for stream in streams:
                batches = (await stream.fetch(0, 1, 1)).batches
                assert payloads(batches) == [b"%d" % stream.stream_id]

    run(scenario)


def test_a_replay_is_cut_to_smaller_records_than_it_was_written_for(tmp_path: Path) -> None:
    async def scenario() -> None:
        place = Place("disk", tmp_path)
        async with place.opened(QUICK) as log:
            options = [CreateStreamOptions()] * STREAMS
            ids = [
                stream.stream_id for stream in await log.streams.create_and_open_streams(options)
            ]
            streams = [await log.streams.open_stream(stream_id) for stream_id in ids]
            place.store.puts_to_fail = 1 << 30
            await asyncio.gather(*[stream.append(batch(b"a")) for stream in streams])
            await log.kill()
        place.store.puts_to_fail = 0
        async with place.opened(FEW_ROWS) as log:
            await log.drain()
            assert log.engine.failure is None
            wal = log.engine.parts.wal
            assert wal is not None
            assert wal.live_bytes == 0
            for stream_id in ids:
                assert (await log.streams.open_stream(stream_id)).confirm_offset == 1

    run(scenario)
