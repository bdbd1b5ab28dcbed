"""Metrics of the remote tier say what was copied, read, deleted, and what waits."""

from __future__ import annotations

import asyncio

import pytest

from streamlog.errors import StoreUnavailable
from streamlog.runtime.rand import SeededRandom
from streamlog.testing.logs.log_conformance import append, encoded
from streamlog.testing.torn_folder import TornTree
from streamlog.tiered.config import RemoteLogConfig
from streamlog.tiered.reading.chunks import ChunkConfig
from tests.tiered.harness import TieredLogUnderTest, tiered_log, values


def metric(t: TieredLogUnderTest, name: str, **labels: str) -> float:
    value = t.registry.get_sample_value(f"streamlog_remote_{name}", {"topic": "t", **labels})
    return 0.0 if value is None else value


def test_what_moves_is_counted() -> None:
    async def body() -> None:
        async with tiered_log(TornTree(SeededRandom(1))) as t:
            for number in range(30):
                await append(t.log, encoded([b"%06d" % number * 16]))
            closed = [one for one in t.log.segments if not one.is_active]

            def fails(call: str) -> None:
                if call == "copy":
                    raise OSError("away")

            t.storage.strike = fails
            await t.copy()
            await t.copy()
            assert metric(t, "errors_total", operation="copy") == 2
            assert metric(t, "copy_lag_segments") == len(closed)
            assert metric(t, "copy_lag_bytes") == sum(one.size for one in closed)
            t.storage.strike = lambda _: None
            await t.copy()
            assert metric(t, "copied_segments_total") == len(closed)
            assert metric(t, "copy_bytes_total") == sum(one.size for one in closed)
            await t.configure(local_retention_bytes="0")
            await t.retain()
            assert len(await values(t.log)) == 30
            assert metric(t, "fetch_bytes_total") >= sum(one.size for one in closed)
            assert metric(t, "fetches_total") > 0
            await t.log.delete_records(t.log.high_watermark)
            await t.copy()
            assert metric(t, "deleted_segments_total") == len(closed)
            await t.copy()
            assert metric(t, "copy_lag_segments") == metric(t, "segments") == 0

    asyncio.run(body())


def test_what_is_kept_for_the_next_fetch_has_a_bound() -> None:
    config = RemoteLogConfig(
        reads_kept_bytes=2000, batch_bytes_max=300, chunks=ChunkConfig(chunk_bytes=64)
    )

    async def body() -> None:
        async with tiered_log(TornTree(SeededRandom(1)), {}, config) as t:
            for number in range(60):
                await append(t.log, encoded([b"%06d" % number * 16]))
            await t.configure(local_retention_bytes="0")
            await t.copy()
            await t.retain()
            assert len(await values(t.log)) == 60
            await t.copy()
            assert metric(t, "copy_bytes_total") > 4 * 2000
            names = ("chunk_bytes", "late_index_bytes", "read_memory_bytes_max")
            found = [t.registry.get_sample_value(f"streamlog_remote_{name}") for name in names]
            chunk_bytes, late_bytes, bound = (one or 0.0 for one in found)
            assert 1024 < chunk_bytes <= 1600
            assert (late_bytes, bound) == (0, 2000)

    asyncio.run(body())


def test_reads_that_fail_are_counted() -> None:
    async def body() -> None:
        async with tiered_log(TornTree(SeededRandom(1))) as t:
            for number in range(30):
                await append(t.log, encoded([b"%06d" % number * 16]))
            await t.configure(local_retention_bytes="0")
            await t.copy()
            await t.retain()
            assert metric(t, "errors_total", operation="fetch") == 0

            def fails(_: str) -> None:
                raise OSError("away")

            t.storage.strike = fails
            with pytest.raises(StoreUnavailable):
                await values(t.log)
            assert metric(t, "errors_total", operation="fetch") > 0

    asyncio.run(body())
