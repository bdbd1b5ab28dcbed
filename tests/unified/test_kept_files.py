"""Files of sealed segments stay open between reads, and no longer than their segments are there."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TypeVar, TypeVarTuple

import pytest

from streamlog.errors import Closed, Corrupt, StreamlogError
from streamlog.log.api.log_factory import TopicIdentity
from streamlog.log.api.topic_config import parse
from streamlog.runtime.disk.system_folder import SystemFolder, SystemGrowingFile
from streamlog.runtime.disk.system_tree import SystemTree
from streamlog.runtime.offload import Lane
from streamlog.testing.logs.log_conformance import append, encoded
from streamlog.unified.read.kept_files import KeptFiles
from streamlog.unified.read.segment_reader import NOW_BATCHES_MAX
from streamlog.unified.state.segment import UnifiedLogSegment
from tests.log.memory_log import turns
from tests.support.turns import Turns
from tests.unified.harness import HeldOffload, UnifiedLogUnderTest, unified_log

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

FIRST = "00000000000000000000.log"
BATCHES = 20
BATCH = encoded([b"x" * 200_000])


class CountedOffload(HeldOffload):
    def __init__(self) -> None:
        super().__init__()
        self.reads = 0

    async def run(self, lane: Lane, fn: Callable[[*Ts], T], *args: *Ts) -> T:
        self.reads += lane is Lane.READ
        return await super().run(lane, fn, *args)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each file was opened."""
    counts: Counter[str] = Counter()
    original = SystemFolder.open_to_read

    def counted(folder: SystemFolder, name: str) -> SystemGrowingFile:
        counts[name] += 1
        return original(folder, name)

    monkeypatch.setattr(SystemFolder, "open_to_read", counted)
    return counts


def open_segments(folder: Path) -> list[str]:
    """Segments of which this process has a file open, removed ones among them."""
    found = []
    for number in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # That of the listing itself.
            found.append(os.readlink(f"/proc/self/fd/{number}"))
    return sorted(Path(one).name for one in found if one.startswith(str(folder)) and ".log" in one)


@asynccontextmanager
async def two_segments(folder: Path) -> AsyncIterator[UnifiedLogUnderTest]:
    """A sealed one of `BATCHES`, and one that is active."""
    async with unified_log(lambda: SystemTree(folder)) as t:
        for _ in range(BATCHES):
            await append(t.log, BATCH)
        await t.log.roll()
        await append(t.log, BATCH)
        yield t


@pytest.mark.parametrize("batches", [2, 8], ids=["on the loop", "in a thread"])
def test_a_sealed_segment_is_opened_once_and_closed_at_its_end(
    tmp_path: Path, opened: Counter[str], batches: int
) -> None:
    async def body() -> None:
        async with two_segments(tmp_path) as t:
            before, offset = open_segments(tmp_path), 0
            assert FIRST not in before
            opened.clear()
            while offset < BATCHES:
                fetched = await t.log.fetch(offset, batches * len(BATCH))
                assert fetched.next_offset > offset
                offset = fetched.next_offset
                assert (FIRST in open_segments(tmp_path)) == (offset < BATCHES)
            assert opened[FIRST] == 1
            assert (await t.log.fetch(BATCHES, len(BATCH))).batches == 1
            assert open_segments(tmp_path) == before

    asyncio.run(body())


def test_a_file_whose_bytes_are_not_in_memory_is_opened_once(
    tmp_path: Path, opened: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop finds that they are not, and a thread goes on with its file."""
    monkeypatch.setattr(SystemGrowingFile, "read_now", lambda *_: None)

    async def body() -> None:
        async with two_segments(tmp_path) as t:
            opened.clear()
            offset = 0
            while offset < BATCHES:
                offset = (await t.log.fetch(offset, 2 * len(BATCH))).next_offset
            assert opened[FIRST] == 1

    asyncio.run(body())


def test_what_is_read_on_the_loop_leaves_others_their_turns(tmp_path: Path) -> None:
    async def body() -> None:
        async with two_segments(tmp_path) as t:
            offset = (await t.log.fetch(0, 2 * len(BATCH))).next_offset
            async with Turns() as others:
                assert (await t.log.fetch(offset, 2 * len(BATCH))).batches == 2
                assert others.count

    asyncio.run(body())


@pytest.mark.parametrize("size", [100, 1000, 10_000, 100_000])
def test_a_reader_that_goes_on_reads_no_index(
    tmp_path: Path, opened: Counter[str], size: int
) -> None:
    """Also where the last batch of a read was more than the fetch had room for."""

    async def body() -> None:
        async with unified_log(lambda: SystemTree(tmp_path)) as t:
            batch = encoded([b"x" * size])
            count = (2 << 20) // len(batch)
            for ack in [await t.log.append(batch) for _ in range(count)]:
                await ack
            await t.log.roll()
            opened.clear()
            offset = fetches = 0
            while offset < count:
                offset = (await t.log.fetch(offset, 300_000)).next_offset
                fetches += 1
            assert fetches >= 7
            assert opened == {FIRST: 1}

    asyncio.run(body())


def test_a_long_search_is_no_work_of_the_loop(tmp_path: Path) -> None:
    """Batches lie between index entries in any number."""

    async def body() -> None:
        offload = CountedOffload()
        configs = {"index.interval.bytes": "1000000000"}
        async with unified_log(lambda: SystemTree(tmp_path), configs, offload=offload) as t:
            small = encoded([b"x"])
            for ack in [await t.log.append(small) for _ in range(10_000)]:
                await ack
            offload.reads = 0
            assert (await t.log.fetch(9_000, 100)).next_offset == 9_001
            assert offload.reads == 1
            assert (await t.log.fetch(9_001, 100)).next_offset == 9_002
            assert offload.reads == 1

    asyncio.run(body())


def test_small_batches_behind_a_large_one_come_in_short_runs(tmp_path: Path) -> None:
    async def body() -> None:
        async with unified_log(lambda: SystemTree(tmp_path)) as t:
            small = encoded([b"x"])
            await append(t.log, BATCH)
            for ack in [await t.log.append(small) for _ in range(2_000)]:
                await ack
            assert (await t.log.fetch(0, len(BATCH))).next_offset == 1
            async with Turns() as others:
                fetched = await t.log.fetch(1, 2_000 * len(small))
                assert fetched.batches == 2_000
                assert others.count >= 2_000 // NOW_BATCHES_MAX

    asyncio.run(body())


def test_many_batches_are_no_work_of_the_loop(tmp_path: Path) -> None:
    async def body() -> None:
        offload = CountedOffload()
        async with unified_log(lambda: SystemTree(tmp_path), offload=offload) as t:
            small = encoded([b"x" * 100])
            for ack in [await t.log.append(small) for _ in range(10_000)]:
                await ack
            offset = (await t.log.fetch(0, 300_000)).next_offset
            offload.reads = 0
            offset = (await t.log.fetch(offset, 300_000)).next_offset
            assert offload.reads == 1
            assert (await t.log.fetch(offset, 30_000)).next_offset > offset
            assert offload.reads == 1

    asyncio.run(body())


def test_a_newest_batch_is_read_on_the_loop_however_much_is_asked_for(tmp_path: Path) -> None:
    async def body() -> None:
        offload = CountedOffload()
        async with unified_log(lambda: SystemTree(tmp_path), offload=offload) as t:
            await append(t.log, encoded([b"x"]))
            assert (await t.log.fetch(0, 50 << 20)).batches == 1
            assert not offload.reads

    asyncio.run(body())


def test_a_fetch_has_no_records_of_a_topic_of_the_same_name(tmp_path: Path) -> None:
    """Its first read is under way while the topic is deleted and made anew."""

    async def body() -> None:
        offload = CountedOffload()
        async with unified_log(lambda: SystemTree(tmp_path), offload=offload) as t:
            old, new = encoded([b"o" * 200_000]), encoded([b"n" * 200_000])
            for _ in range(2 * BATCHES):
                await append(t.log, old)
            offload.hold(Lane.READ)
            fetch = asyncio.ensure_future(t.log.fetch(0, 8 << 20))
            await turns()
            await t.log.delete()
            topic = TopicIdentity("t", t.random.uuid(), "anew")
            (t.handle,) = await t.factory.create(topic, [0], parse({}))
            await t.open()
            for _ in range(2 * BATCHES):
                await append(t.log, new)
            offload.release()
            with pytest.raises(Closed):
                await fetch

    asyncio.run(body())


def test_a_fetch_of_a_topic_that_is_deleted_hears_of_that(tmp_path: Path) -> None:
    """And not of files that somebody has removed."""

    async def body() -> None:
        offload = CountedOffload()
        async with unified_log(lambda: SystemTree(tmp_path), offload=offload) as t:
            for _ in range(BATCHES):
                await append(t.log, BATCH)
            offload.hold(Lane.READ)
            fetch = asyncio.ensure_future(t.log.fetch(0, 8 << 20))
            await turns()
            await t.log.delete()
            offload.release()
            with pytest.raises(Closed):
                await fetch

    asyncio.run(body())


@pytest.mark.parametrize("ends", ["removal", "failure"])
def test_a_file_that_does_not_close_ends_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    """As a file system of another machine may tell of an error by then."""

    def no_close(file: SystemGrowingFile) -> None:
        raise OSError(5, "no close")

    def no_sync(file: SystemGrowingFile) -> None:
        raise OSError(5, "no sync")

    async def body() -> None:
        async with two_segments(tmp_path) as t:
            await t.log.fetch(0, 2 * len(BATCH))
            monkeypatch.setattr(SystemGrowingFile, "close", no_close)
            if ends == "removal":
                assert await t.log.delete_oldest_segments(BATCHES, "test") == 1
                assert t.log.log_start_offset == BATCHES
            else:
                monkeypatch.setattr(SystemGrowingFile, "sync", no_sync)
                with pytest.raises(StreamlogError):
                    await append(t.log, BATCH)
            monkeypatch.undo()
            assert len(t.failures) == (ends == "failure")

    asyncio.run(body())


def test_a_segment_that_leaves_the_log_is_closed(tmp_path: Path) -> None:
    async def body() -> None:
        async with two_segments(tmp_path) as t:
            await t.log.fetch(0, 2 * len(BATCH))
            assert FIRST in open_segments(tmp_path)
            assert await t.log.delete_oldest_segments(BATCHES, "test") == 1
            assert len(open_segments(tmp_path)) == 1

    asyncio.run(body())


def test_a_file_that_is_cut_while_it_is_kept_is_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The size that it had when it was opened has a reader go on for ever."""
    reads = Counter[str]()
    original = SystemGrowingFile.read

    def counted(file: SystemGrowingFile, position: int, length: int) -> bytes:
        reads["all"] += 1
        assert reads["all"] < 100
        return original(file, position, length)

    async def body() -> None:
        async with two_segments(tmp_path) as t:
            await t.log.fetch(0, 5 * len(BATCH))
            assert FIRST in open_segments(tmp_path)
            os.truncate(tmp_path / "t-0" / FIRST, 3 * len(BATCH) + 100)
            monkeypatch.setattr(SystemGrowingFile, "read", counted)
            for offset in (3, 5, 10):
                with pytest.raises(Corrupt):
                    await t.log.fetch(offset, 8 * len(BATCH))
            assert (await t.log.fetch(0, 2 * len(BATCH))).batches == 2

    asyncio.run(body())


@pytest.mark.parametrize("end", ["close", "kill", "delete"])
def test_a_log_that_ends_closes_its_files(tmp_path: Path, end: str) -> None:
    async def body() -> None:
        async with two_segments(tmp_path) as t:
            await t.log.fetch(0, 2 * len(BATCH))
            assert FIRST in open_segments(tmp_path)
            await getattr(t.log, end)()
            assert open_segments(tmp_path) == []

    asyncio.run(body())


def test_a_log_that_fails_closes_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_sync(file: SystemGrowingFile) -> None:
        raise OSError(5, "no sync")

    async def body() -> None:
        async with two_segments(tmp_path) as t:
            await t.log.fetch(0, 2 * len(BATCH))
            assert FIRST in open_segments(tmp_path)
            monkeypatch.setattr(SystemGrowingFile, "sync", no_sync)
            with pytest.raises(StreamlogError):
                await append(t.log, BATCH)
            monkeypatch.undo()
            assert len(t.failures) == 1
            assert FIRST not in open_segments(tmp_path)

    asyncio.run(body())


def test_a_file_that_comes_back_late_is_closed(tmp_path: Path) -> None:
    """Its segment left the log while the read was under way."""
    folder, kept, segment = SystemFolder(tmp_path), KeptFiles(), UnifiedLogSegment(0)
    kept.keep(segment, folder.create(FIRST), lambda: True)
    assert open_segments(tmp_path) == []
    assert kept.take(segment) is None


def test_a_segment_has_one_file_and_a_node_so_many(tmp_path: Path) -> None:
    """Two reads of a segment side by side have a file each."""
    folder, kept = SystemFolder(tmp_path), KeptFiles(files_max=2)
    segments = [UnifiedLogSegment(base) for base in range(3)]
    files = [folder.create(segment.log_name) for segment in segments[:2]]
    for segment, file in zip(segments, files, strict=False):
        kept.keep(segment, file, lambda: False)
    kept.keep(segments[0], folder.open(segments[0].log_name), lambda: False)
    assert open_segments(tmp_path) == [one.log_name for one in segments[:2]]
    assert kept.take(segments[0]) is files[0]
    kept.keep(segments[0], files[0], lambda: False)
    kept.keep(segments[2], folder.create(segments[2].log_name), lambda: False)
    assert open_segments(tmp_path) == [segments[0].log_name, segments[2].log_name]
    kept.forget(segments)
    assert open_segments(tmp_path) == []
    assert len(kept) == 0
