"""More staged objects, and more writers, than one commit record takes."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path

from streamlog.engine.config import StagingConfig
from streamlog.metadata.config import MetadataConfig
from streamlog.wiring import OpenEngine
from tests.engine.harness import batch, until
from tests.engine.streams.site import QUICK, Site, run

SMALL = dataclasses.replace(QUICK, metadata=MetadataConfig(record_bytes_max=1 << 10))
SWEEPING = dataclasses.replace(
    SMALL, staging=StagingConfig(sweep_interval_ms=10, writer_memory_ms=1)
)
OBJECTS, WRITERS = 150, 12
"""A record takes about 100 objects, and one writer with a long name."""


async def stage_many(engine: OpenEngine, expires_ms: int) -> list[int]:
    stream = await engine.streams.create_and_open_stream()
    rows = {stream.stream_id: [batch(b"x")]}
    stage = engine.staging.stage
    staged = await asyncio.gather(
        *(stage("w", str(number), rows, expires_ms=expires_ms) for number in range(OBJECTS))
    )
    return [one.object_id for one in staged]


def long_name(number: int) -> str:
    return f"{number:03}".ljust(190, "w")


def test_a_writer_drops_them_all(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Site(tmp_path, "object", SMALL).open() as engine:
            objects = await stage_many(engine, 3_600_000)
            assert await engine.staging.unstage("w", objects) == OBJECTS
            assert engine.staging.writer("w").staged_objects == 0

    run(scenario)


def test_a_start_drops_and_forgets_what_fell_due_meanwhile(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Site(tmp_path, "object", SMALL).open() as engine:
            await stage_many(engine, 1)
            for number in range(WRITERS):
                await engine.staging.attach(long_name(number), 0, [])
        async with Site(tmp_path, "object", SWEEPING).open() as engine:
            rows = engine.metadata.staging
            await until(lambda: bool(engine.engine.failure) or not (rows.staged or rows.writers))
            assert engine.engine.failure is None

    run(scenario)
