"""A segment whose records were durable, and whose file ends before them when the log is opened."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest

from streamlog.errors import Corrupt
from streamlog.format.kafka_files.names import INDEX, LOG, file_name
from streamlog.log.api.cleaning import CleanableLog
from streamlog.runtime.disk.system_folder import SystemGrowingFile
from streamlog.runtime.disk.system_tree import SystemTree
from streamlog.testing.logs.cleaning_conformance import keyed
from streamlog.testing.logs.log_conformance import append, encoded, read, refused
from tests.unified.harness import UnifiedLogUnderTest, unified_log

BATCHES = 20
"""Of a segment; each has one record."""
BATCH = encoded([b"x" * 1000])
MIDDLE = file_name(BATCHES, LOG)
Cut = Callable[[Path], None]


async def filled(t: UnifiedLogUnderTest) -> None:
    """Three sealed segments, and one that is active."""
    for _ in range(3):
        for _ in range(BATCHES):
            await append(t.log, BATCH)
        await t.log.roll()
    await append(t.log, BATCH)


async def opened_anew(t: UnifiedLogUnderTest, *, accepts_data_loss: bool = False) -> None:
    await t.log.close()
    await t.folder.close()
    await t.open_folder(accepts_data_loss=accepts_data_loss)
    await t.open()


def cut_to(size: int) -> Cut:
    return lambda path: os.truncate(path, size)


@pytest.mark.parametrize(
    ("cut", "left"),
    [
        (cut_to(19 * len(BATCH)), 19),
        (cut_to(18 * len(BATCH) + 100), 18),
        (cut_to(20 * len(BATCH) - 1), 19),
        (cut_to(3 * len(BATCH)), 3),
        (cut_to(0), 0),
    ],
    ids=["one batch", "within a batch", "one byte", "behind a few index entries", "all of it"],
)
def test_readers_are_not_led_past_what_is_lost(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, cut: Cut, left: int
) -> None:
    async def body() -> None:
        async with unified_log(lambda: SystemTree(tmp_path)) as t:
            await filled(t)
            cut(tmp_path / "t-0" / MIDDLE)
            for _ in range(2):
                await opened_anew(t)
                first = BATCHES + left
                for offset in range(first, 2 * BATCHES):
                    await refused(Corrupt, t.log.fetch(offset, len(BATCH)))
                for offset in (*range(first), 2 * BATCHES):
                    assert (await t.log.fetch(offset, len(BATCH))).next_offset == offset + 1
                assert len(await read(t.log, 2 * BATCHES)) == BATCHES + 1
                (told,) = (one for one in caplog.records if one.levelno == logging.ERROR)
                assert f"{MIDDLE} holds sound batches up to offset {first} " in told.message
                assert f"the next segment begins at {2 * BATCHES}" in told.message
                caplog.clear()

    asyncio.run(body())


def test_a_whole_segment_is_missed_until_its_loss_is_accepted(tmp_path: Path) -> None:
    async def body() -> None:
        async with unified_log(lambda: SystemTree(tmp_path)) as t:
            await filled(t)
            (tmp_path / "t-0" / MIDDLE).unlink()
            await opened_anew(t)
            for offset in (BATCHES, 2 * BATCHES - 1):
                error = await refused(Corrupt, t.log.fetch(offset, 100))
                assert f"offsets {BATCHES} to {2 * BATCHES - 1} are lost" in str(error)
            await opened_anew(t, accepts_data_loss=True)
            for _ in range(2):
                assert len(await read(t.log)) == 2 * BATCHES + 1
                await opened_anew(t)

    asyncio.run(body())


def test_what_is_lost_before_the_logs_start_is_nobodys_loss(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def body() -> None:
        async with unified_log(lambda: SystemTree(tmp_path)) as t:
            await filled(t)
            await t.log.delete_records(2 * BATCHES)
            cut_to(len(BATCH))(tmp_path / "t-0" / MIDDLE)
            await opened_anew(t)
            assert len(await read(t.log)) == BATCHES + 1
            assert not [one for one in caplog.records if one.levelno == logging.ERROR]

    asyncio.run(body())


def test_what_a_cleaning_removed_is_not_lost(tmp_path: Path) -> None:
    """Also where the first round of all was cut off, and the topic is compacted no more."""
    compacted = {"cleanup.policy": "compact", "log.type": "unified"}

    async def body() -> None:
        async with unified_log(lambda: SystemTree(tmp_path), compacted) as t:
            for _ in range(2):
                for number in range(3):
                    await append(t.log, keyed(b"key", b"%d" % number))
                await t.log.roll()
            log = cast(CleanableLog, t.log)
            (first, *_) = log.segments
            pieces = [piece async for piece in log.read_for_cleaning(first, 0)]
            replacement = await log.replace_segments([first])
            await replacement.append(b"".join(pieces)[: -len(keyed(b"key", b"0"))])
            await replacement.commit()
            t.configs["cleanup.policy"] = "delete"
            await opened_anew(t)
            assert [one[0] for one in await read(t.log)] == [0, 1, 3, 4, 5]

    asyncio.run(body())


@pytest.mark.parametrize("is_index_cut", [False, True])
def test_an_open_reads_only_the_end_of_a_segment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_index_cut: bool
) -> None:
    """An index that lacks its last entries has the segment read once."""
    read_bytes = 0
    original = SystemGrowingFile.read

    def counted(file: SystemGrowingFile, position: int, length: int) -> bytes:
        nonlocal read_bytes
        data = original(file, position, length)
        read_bytes += len(data)
        return data

    large = encoded([b"x" * 100_000])

    async def body() -> None:
        async with unified_log(lambda: SystemTree(tmp_path)) as t:
            for _ in range(50):
                await append(t.log, large)
            await t.log.roll()
            if is_index_cut:
                os.truncate(tmp_path / "t-0" / file_name(0, INDEX), 80)
                await opened_anew(t)
            monkeypatch.setattr(SystemGrowingFile, "read", counted)
            await opened_anew(t)
            assert 0 < read_bytes < 3 * len(large)

    asyncio.run(body())
