"""What a fetch reads of a log's files, and what its answer keeps of that."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from streamlog.codec.batch import scan
from streamlog.errors import Corrupt
from streamlog.format.kafka_files.names import LOG, file_name
from streamlog.log.api.abstract_log import LogFetch
from streamlog.log.api.topic_config import parse
from streamlog.runtime.buffers import Buffer
from streamlog.runtime.disk.system_folder import SystemGrowingFile
from streamlog.runtime.disk.system_tree import SystemTree
from streamlog.testing.logs.log_conformance import append, encoded
from tests.unified.harness import unified_log

SMALL = encoded([b"x"])
LARGE = encoded([bytes(1_000_000)])


@pytest.fixture
def read_bytes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Of each read of a file."""
    sizes: list[int] = []
    read, read_now = SystemGrowingFile.read, SystemGrowingFile.read_now

    def counted(file: SystemGrowingFile, position: int, length: int) -> bytes:
        data = read(file, position, length)
        sizes.append(len(data))
        return data

    def counted_now(file: SystemGrowingFile, position: int, length: int) -> Buffer | None:
        data = read_now(file, position, length)
        sizes.append(len(data or b""))
        return data

    monkeypatch.setattr(SystemGrowingFile, "read", counted)
    monkeypatch.setattr(SystemGrowingFile, "read_now", counted_now)
    return sizes


@pytest.mark.parametrize("room", [100, 30_000])
def test_a_batch_that_has_no_room_is_not_read(
    tmp_path: Path, read_bytes: list[int], room: int
) -> None:
    async def body() -> None:
        async with unified_log(lambda: SystemTree(tmp_path)) as t:
            for data in (LARGE, LARGE, SMALL, LARGE):
                await append(t.log, data)
            read_bytes.clear()
            fetched = await t.log.fetch(0, room, min_one_batch=False)
            assert (fetched.batches, fetched.next_offset) == (0, 0)
            assert sum(read_bytes) < 100_000
            assert (await t.log.fetch(0, room)).next_offset == 1
            read_bytes.clear()
            # Also behind one that has room.
            assert (await t.log.fetch(2, room)).next_offset == 3
            assert sum(read_bytes) < 200_000

    asyncio.run(body())


def test_a_batch_has_room_that_lies_behind_one_that_would_have_none(tmp_path: Path) -> None:
    """Where its reader has to read that one to find it."""

    async def body() -> None:
        configs = {"index.interval.bytes": "1000000000"}
        async with unified_log(lambda: SystemTree(tmp_path), configs) as t:
            for data in (LARGE, SMALL):
                await append(t.log, data)
            fetched = await t.log.fetch(1, 1000, min_one_batch=False)
            assert (fetched.batches, fetched.next_offset) == (1, 2)

    asyncio.run(body())


HUGE = encoded([bytes(10_000_000)])


def flip_length(folder: Path, position: int, bit: int) -> None:
    """Of the batch that begins there in the first segment."""
    with (folder / "t-0" / file_name(0, LOG)).open("r+b") as file:
        file.seek(position + 8)
        length = int.from_bytes(file.read(4), "big")
        file.seek(position + 8)
        file.write((length ^ 1 << bit).to_bytes(4, "big"))


@pytest.mark.parametrize("is_sealed", [False, True])
def test_a_length_that_was_damaged_has_nobody_read_the_segment(
    tmp_path: Path, read_bytes: list[int], is_sealed: bool
) -> None:
    async def body() -> None:
        async with unified_log(lambda: SystemTree(tmp_path)) as t:
            for _ in range(40):
                await append(t.log, LARGE)
            if is_sealed:
                await t.log.roll()
                await append(t.log, LARGE)
            flip_length(tmp_path, 10 * len(LARGE), 24)
            read_bytes.clear()
            for _ in range(2):
                with pytest.raises(Corrupt):
                    await t.log.fetch(10, 1 << 20)
            assert (await t.log.fetch(10, 1000, min_one_batch=False)).batches == 0
            assert sum(read_bytes) < 5_000_000
            assert (await t.log.fetch(11, 1 << 20)).next_offset == 12

    asyncio.run(body())


def test_a_large_batch_is_read_wherever_it_lies_whatever_the_topic_takes_by_now(
    tmp_path: Path,
) -> None:
    async def body() -> None:
        large = {"max.message.bytes": "20000000"}
        async with unified_log(lambda: SystemTree(tmp_path), large) as t:
            for data in (HUGE, HUGE, SMALL, HUGE):
                await append(t.log, data)
            await t.log.roll()
            for data in (HUGE, SMALL, HUGE):
                await append(t.log, data)
            await t.log.configure(parse({}))
            for offset in range(7):
                for max_bytes in (1, 1 << 20, 64 << 20):
                    fetched = await t.log.fetch(offset, max_bytes)
                    first = scan(b"".join(fetched.parts))[0]
                    assert first.header.base_offset == offset

    asyncio.run(body())


def held_bytes(fetched: LogFetch) -> int:
    """Of the memory that its parts keep."""
    views = [memoryview(part) for part in fetched.parts]
    owners = {id(view.obj): memoryview(view.obj).nbytes for view in views}
    return sum(owners.values())


@pytest.mark.parametrize("max_bytes", [100, 1 << 20])
def test_a_fetch_of_a_few_bytes_keeps_little_more(tmp_path: Path, max_bytes: int) -> None:
    """And not what was read with them, which nobody counts."""

    async def body() -> None:
        async with unified_log(lambda: SystemTree(tmp_path)) as t:
            small, large = SMALL, encoded([bytes((1 << 20) - 100)])
            for _ in range(4):
                for ack in [await t.log.append(small) for _ in range(10)]:
                    await ack
                await append(t.log, large)
            for offset in (0, 11, 8, 31):
                fetched = await t.log.fetch(offset, max_bytes)
                assert fetched.batches
                assert fetched.size_bytes <= 10 * len(small)
                assert held_bytes(fetched) <= 2 * fetched.size_bytes
                offsets = [one.header.base_offset for one in scan(b"".join(fetched.parts))]
                assert offsets == list(range(offset, fetched.next_offset))

    asyncio.run(body())


@pytest.mark.parametrize("size", [1_000, 16_000, 100_000, 500_000, 900_000])
def test_what_fills_a_fetch_is_not_copied(tmp_path: Path, size: int) -> None:
    async def body() -> None:
        async with unified_log(lambda: SystemTree(tmp_path)) as t:
            batch = encoded([bytes(size)])
            count = (4 << 20) // size
            for ack in [await t.log.append(batch) for _ in range(count)]:
                await ack
            await t.log.roll()
            offset = (await t.log.fetch(0, 1 << 20)).next_offset
            while offset < count - (1 << 20) // size:
                fetched = await t.log.fetch(offset, 1 << 20)
                assert len(fetched.parts) == fetched.batches
                assert all(isinstance(part, memoryview) for part in fetched.parts)
                offset = fetched.next_offset

    asyncio.run(body())
