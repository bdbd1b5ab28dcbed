"""A producer snapshot may hold times to come: a Kafka writes the records' own, and a clock errs."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from streamlog.format.kafka_files.names import SNAPSHOT
from streamlog.format.kafka_files.producer_snapshot import decode_snapshot, encode_snapshot
from streamlog.log.api.config import LogConfig
from streamlog.runtime.disk.growing import GrowingFolder
from streamlog.runtime.disk.system_tree import SystemTree
from streamlog.runtime.rand import SeededRandom
from streamlog.testing.logs.log_conformance import append, encoded
from streamlog.testing.torn_folder import TornTree
from streamlog.unified.disk.files import read_file, write_new
from tests.unified.harness import UnifiedLogUnderTest, unified_log

PRODUCERS, BATCHES = 100, 3
IN_MICROSECONDS = 1000
NIGHT_MS = 8 * 3_600_000


def sent(producer_id: int, sequence: int = 0) -> bytes:
    return encoded([b"x"], producer=(producer_id, 0, sequence))


def slip(folder: GrowingFolder, producer_ids: range) -> None:
    """Their client takes microseconds for milliseconds."""
    for name in folder.list():
        if name.endswith(SNAPSHOT):
            entries = [
                one._replace(timestamp_ms=one.timestamp_ms * IN_MICROSECONDS)
                if one.producer_id in producer_ids
                else one
                for one in decode_snapshot(name, read_file(folder, name))
            ]
            write_new(folder, name, encode_snapshot(entries))
    folder.sync()


async def closed_at_its_time(t: UnifiedLogUnderTest, tmp_path: Path) -> None:
    """The files have the times of the log's clock."""
    await t.log.close()
    now_s = t.clock.now_ms() / 1000
    for name in (tmp_path / "t-0").iterdir():
        os.utime(name, (now_s, now_s))


@pytest.mark.parametrize("slipped", [1, PRODUCERS], ids=["one", "all"])
def test_retries_are_duplicates_and_new_producers_have_room_in_time(slipped: int) -> None:
    async def body() -> None:
        tree = TornTree(SeededRandom(1))
        config = LogConfig(producer_ids_max=PRODUCERS)
        async with unified_log(lambda: tree, {}, config) as t:
            for number in range(PRODUCERS):
                for sequence in range(BATCHES):
                    await append(t.log, sent(number, sequence))
            await t.log.close()
            slip(tree.open("t-0"), range(slipped))
            t.clock.advance(NIGHT_MS)
            await t.open()
            for number in range(PRODUCERS):
                assert (await append(t.log, sent(number, 0))).is_duplicate
            t.clock.advance(config.producer_idle_ms_min)
            for number in range(PRODUCERS, 3 * PRODUCERS):
                assert not (await append(t.log, sent(number))).is_duplicate
                t.clock.advance(config.producer_idle_ms_min)

    asyncio.run(body())


def test_an_open_with_a_clock_that_is_behind_makes_no_producer_older(tmp_path: Path) -> None:
    """Who is forgotten too early has its retries stored twice; the file tells when it was made."""

    async def body() -> None:
        config = LogConfig()
        async with unified_log(lambda: SystemTree(tmp_path), {}, config) as t:
            await append(t.log, sent(1))
            await closed_at_its_time(t, tmp_path)
            t.clock.advance(-config.producer_id_expiration_ms)
            await t.open()
            t.clock.advance(config.producer_id_expiration_ms)
            assert (await append(t.log, sent(1))).is_duplicate

    asyncio.run(body())


def test_retries_are_duplicates_where_the_clock_was_ahead_when_the_snapshot_was_written(
    tmp_path: Path,
) -> None:
    """The file has that clock's time, too."""

    async def body() -> None:
        async with unified_log(lambda: SystemTree(tmp_path), {}) as t:
            for sequence in range(BATCHES):
                await append(t.log, sent(1, sequence))
            t.clock.set_by(NIGHT_MS)
            await append(t.log, sent(2, 0))
            await append(t.log, sent(2, 1))
            await closed_at_its_time(t, tmp_path)
            t.clock.set_by(-NIGHT_MS)
            t.clock.advance(NIGHT_MS // 2)
            await t.open()
            for producer_id, sequence in [(1, 0), (1, 1), (1, 2), (2, 0), (2, 1)]:
                assert (await append(t.log, sent(producer_id, sequence))).is_duplicate

    asyncio.run(body())
