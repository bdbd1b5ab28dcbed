"""A small WAL on a real disk, with real threads and objects beside it: full all the time, while
many times its size passes through it, and no append waits for ever."""

from __future__ import annotations

import asyncio
from pathlib import Path

import streamlog
from streamlog.engine.config import StreamEngineConfig, UploadConfig
from streamlog.model.batch import CreateStreamOptions
from streamlog.model.stream import Stream
from streamlog.wal.config import WalConfig
from tests.engine.harness import batch
from tests.support.disk_machine import DiskMachine

KIB = 1 << 10
CONFIG = StreamEngineConfig(
    upload=UploadConfig(upload_bytes_target=64 * KIB, upload_interval_ms=1),
    wal=WalConfig(wal_bytes_max=256 * KIB, file_bytes=128 * KIB),
)
PAYLOAD = bytes(8 * KIB)
STREAMS = 6
PRODUCERS_PER_STREAM = 4
APPENDS_PER_PRODUCER = 250
WAIT_S = 120.0
"""Far more than a slow disk needs; a lost wake-up waits for ever."""


async def produce(stream: Stream) -> None:
    for _ in range(APPENDS_PER_PRODUCER):
        await stream.append(batch(PAYLOAD))


def test_every_append_is_answered_while_the_wal_is_always_full(tmp_path: Path) -> None:
    appends = STREAMS * PRODUCERS_PER_STREAM * APPENDS_PER_PRODUCER
    assert appends * len(PAYLOAD) > 150 * CONFIG.wal.wal_bytes_max
    wal_dir = tmp_path / "wal"

    async def scenario() -> None:
        async with streamlog.open(
            f"local://{tmp_path}/objects", wal="disk", wal_dir=wal_dir, config=CONFIG
        ) as engine:
            options = [CreateStreamOptions()] * STREAMS
            streams = await engine.streams.create_and_open_streams(options)
            producers = [produce(stream) for stream in streams * PRODUCERS_PER_STREAM]
            await asyncio.gather(*producers)
            assert sum(stream.confirm_offset for stream in streams) == appends
            await engine.drain()
            assert (await engine.status()).wal_bytes == 0
            files = [path.stat().st_size for path in wal_dir.glob("wal-0*")]
            assert sum(files) <= CONFIG.wal.wal_bytes_max

    asyncio.run(asyncio.wait_for(scenario(), WAIT_S))


def test_a_full_wal_is_uploaded_without_waiting_for_the_upload_interval() -> None:
    """Small appends fill a WAL long before they fill an object: each group takes a page."""
    config = StreamEngineConfig(upload=UploadConfig(upload_interval_ms=3_600_000), wal=CONFIG.wal)

    async def scenario() -> None:
        async with DiskMachine(config).engine() as engine:
            stream = await engine.streams.create_and_open_stream()
            for number in range(200):
                assert (await stream.append(batch(b"x"))).base_offset == number

    asyncio.run(asyncio.wait_for(scenario(), 20.0))
