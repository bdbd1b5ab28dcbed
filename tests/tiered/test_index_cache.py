"""The files of remote-log-index-cache: how many there are, and what the next life takes over."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable

import pytest

from streamlog.errors import OffsetOutOfRange
from streamlog.runtime.offload import Lane
from streamlog.runtime.rand import SeededRandom
from streamlog.testing.logs.log_conformance import refused
from streamlog.testing.torn_folder import TornTree
from streamlog.testing.torn_media import DiskFault
from streamlog.tiered.config import RemoteLogConfig
from tests.log.memory_log import turns
from tests.tiered.harness import TieredLogUnderTest, filled_and_moved, tiered_log, values

FOLDER = "remote-log-index-cache"
KAFKAS = re.compile(r"\d{20}_[A-Za-z0-9_-]{22}\.(index|timeindex|txnindex)\Z")


def run(
    test: Callable[[TieredLogUnderTest, dict[int, bytes]], Awaitable[None]],
    index_cache_bytes: int = 1 << 30,
) -> None:
    """`wanted` is in the remote tier alone, but for its last segment."""

    async def body() -> None:
        config = RemoteLogConfig(index_cache_bytes=index_cache_bytes)
        async with tiered_log(TornTree(SeededRandom(3)), {}, config) as t:
            wanted = await filled_and_moved(t, 60)
            assert t.log.local_log_start_offset > 40
            await test(t, wanted)

    asyncio.run(body())


def files(t: TieredLogUnderTest) -> dict[str, int]:
    folder = t.tree.open(FOLDER)
    found: dict[str, int] = {}
    for name in folder.list():
        file = folder.open(name)
        found[name] = file.size()
        file.close()
    return found


def counted(t: TieredLogUnderTest) -> list[str]:
    """Fetches of indexes from now on."""
    calls: list[str] = []

    def strike(call: str) -> None:
        if call == "index":
            calls.append(call)

    t.storage.strike = strike
    return calls


async def read_within_segments(t: TieredLogUnderTest) -> None:
    """Backwards: a reader that goes on where one has ended needs no index."""
    for offset in reversed(range(t.log.local_log_start_offset)):
        fetched = await t.log.fetch(offset, 1)
        assert fetched.next_offset == offset + 1


def test_indexes_are_fetched_once_and_lie_in_files_of_kafkas_names() -> None:
    async def test(t: TieredLogUnderTest, wanted: dict[int, bytes]) -> None:
        calls = counted(t)
        gathered = asyncio.gather(*(t.log.fetch(3, 1) for _ in range(20)))
        assert {one.next_offset for one in await gathered} == {4}
        assert len(calls) == 1, "twenty readers wait for one fetch"
        await t.reopened()
        await read_within_segments(t)
        found, fetched = files(t), len(calls)
        assert found
        assert all(KAFKAS.match(name) for name in found)
        await t.reopened()
        await read_within_segments(t)
        assert (files(t), len(calls)) == (found, fetched), "the next life takes them over"

    run(test)


def test_the_files_have_no_more_bytes_than_they_may() -> None:
    async def test(t: TieredLogUnderTest, wanted: dict[int, bytes]) -> None:
        calls = counted(t)
        for _ in range(3):
            await t.reopened()
            await read_within_segments(t)
            assert 0 < sum(files(t).values()) <= 40
        segments = len(t.storage.segments)
        assert len(calls) > 2 * segments, "those that were not used for longest went"
        assert await values(t.log) == wanted

    run(test, index_cache_bytes=40)


def test_strangers_go_at_the_start_and_a_file_that_is_damaged_is_fetched_anew() -> None:
    async def test(t: TieredLogUnderTest, wanted: dict[int, bytes]) -> None:
        await read_within_segments(t)
        found, folder = files(t), t.tree.open(FOLDER)
        for name in found:
            file = folder.create(f"{name}.tmp")
            file.append([b"half"])
            file.close()
        folder.create("stranger").close()
        damaged = min(found)
        folder.remove(damaged)
        file = folder.create(damaged)
        file.append([b"\xff" * found[damaged]])
        file.sync()
        file.close()
        await t.reopened()
        assert set(files(t)) == set(found)
        calls = counted(t)
        await read_within_segments(t)
        assert len(calls) == 1
        assert files(t) == found
        assert await values(t.log) == wanted

    run(test)


def test_the_files_of_a_deleted_segment_go_with_it() -> None:
    async def test(t: TieredLogUnderTest, wanted: dict[int, bytes]) -> None:
        await read_within_segments(t)
        assert files(t)
        await t.log.delete_records(t.log.high_watermark)
        await t.copy()
        assert files(t) == {}

    run(test)


def test_a_segment_is_deleted_while_its_damaged_index_is_read_from_the_file() -> None:
    async def test(t: TieredLogUnderTest, wanted: dict[int, bytes]) -> None:
        await read_within_segments(t)
        found, folder = files(t), t.tree.open(FOLDER)
        await t.reopened()
        for name in found:
            file = folder.open(name)
            file.truncate(0)
            file.append([b"\xff" * found[name]])
            file.close()
        t.offload.hold(Lane.READ)
        fetch = asyncio.ensure_future(t.log.fetch(3, 1))
        await turns()
        await t.log.delete_records(t.log.high_watermark)
        copying = asyncio.ensure_future(t.copy())
        await turns()
        t.offload.release()
        await refused(OffsetOutOfRange, fetch)
        await copying
        assert t.manager.alarms() == []

    run(test)


def full(operation: str, name: str) -> DiskFault | None:
    return DiskFault.FULL if KAFKAS.match(name.removesuffix(".tmp")) else None


@pytest.mark.parametrize("struck", ["create", "write", "sync", "rename"])
def test_on_a_full_disk_indexes_are_fetched_and_leave_nothing_there(struck: str) -> None:
    async def test(t: TieredLogUnderTest, wanted: dict[int, bytes]) -> None:
        t.tree.plan_faults(lambda *call: full(*call) if call[0] == struck else None)
        await read_within_segments(t)
        assert files(t) == {}
        t.tree.plan_faults(None)
        await t.reopened()
        await read_within_segments(t)
        assert files(t)
        assert await values(t.log) == wanted

    run(test)


def test_a_segment_is_deleted_although_the_files_of_its_index_stay() -> None:
    async def test(t: TieredLogUnderTest, wanted: dict[int, bytes]) -> None:
        await read_within_segments(t)
        t.tree.plan_faults(lambda *call: full(*call) if call[0] == "remove" else None)
        await t.log.delete_records(t.log.high_watermark)
        await t.copy()
        assert t.storage.segments == {}
        assert t.manager.alarms() == []
        assert files(t)

    run(test)
