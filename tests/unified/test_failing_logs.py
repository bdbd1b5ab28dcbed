"""What a failure of a log leaves under way: an acknowledged record stays, and every wait ends."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import pytest

from streamlog.errors import DiskFull, StoreUnavailable, StreamlogError
from streamlog.format.kafka_files.names import INDEX, LOG, LOG_STARTS
from streamlog.log.api.abstract_log import AbstractLog, Isolation, LogAppendInfo
from streamlog.log.api.cleaning import CleanableLog
from streamlog.runtime.buffers import Buffer
from streamlog.runtime.disk import system_folder
from streamlog.runtime.disk.descriptors import write_whole
from streamlog.runtime.disk.system_tree import SystemTree
from streamlog.runtime.offload import ThreadOffload
from streamlog.runtime.rand import SeededRandom
from streamlog.testing.logs.cleaning_conformance import keyed
from streamlog.testing.logs.log_conformance import append, encoded, read, refused
from streamlog.testing.torn_folder import TornTree
from streamlog.testing.torn_media import DiskFault
from streamlog.unified.disk.files import TEMPORARY
from tests.unified.harness import unified_log

WAIT_S = 30
LAZY = {"flush.messages": "1000000"}


async def values(log: AbstractLog) -> list[bytes | None]:
    return [record[3] for record in await read(log)]


async def turns(count: int = 20) -> None:
    """Other tasks get as far as they can."""
    for _ in range(count):
        await asyncio.sleep(0)


def test_what_is_acknowledged_beside_a_failure_stays() -> None:
    """The log fails while its disk writes an append: the write ends well, and is answered."""

    async def body() -> None:
        tree = TornTree(SeededRandom(3))
        async with unified_log(lambda: tree) as t:
            await append(t.log, encoded([b"a"]))
            t.hold()
            deletion = asyncio.ensure_future(t.log.delete_records(1))
            await turns()
            under_way = await t.log.append(encoded([b"b"]))
            await turns()
            tree.plan_faults(
                lambda call, name: (
                    DiskFault.IO_ERROR if call == "rename" and name.startswith(LOG_STARTS) else None
                )
            )
            t.release()
            await refused(StreamlogError, deletion)
            assert (await under_way).base_offset == 1
            tree.plan_faults(None)
            await t.log.close()
            await t.open()
            assert (await values(t.log))[-1] == b"b"

    asyncio.run(body())


def test_the_next_open_waits_for_what_a_failed_log_is_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log that has failed is opened again at once, by the next request that needs it."""
    is_writing, may_go_on = threading.Event(), threading.Event()

    def slow(descriptor: int, position: int, parts: Sequence[Buffer]) -> int:
        if any(b"second" in bytes(part) for part in parts):
            is_writing.set()
            assert may_go_on.wait(WAIT_S)
        return write_whole(descriptor, position, parts)

    async def body() -> None:
        offload = ThreadOffload()
        async with unified_log(lambda: SystemTree(tmp_path), offload=offload) as t:
            await append(t.log, encoded([b"first"]))
            monkeypatch.setattr(system_folder, "write_whole", slow)
            failed = t.log
            under_way = await failed.append(encoded([b"second"]))
            await asyncio.to_thread(is_writing.wait, WAIT_S)
            in_the_way = tmp_path / LOG_STARTS
            in_the_way.mkdir()
            await refused(StreamlogError, failed.delete_records(1))
            in_the_way.rmdir()
            opening = asyncio.ensure_future(t.open())
            # An open that does not wait for the write is over by then.
            await asyncio.wait({opening}, timeout=0.2)
            may_go_on.set()
            await opening
            assert (await under_way).base_offset == 1
            assert (await append(t.log, encoded([b"third"]))).base_offset == 2
            await failed.close()
            assert await values(t.log) == [b"first", b"second", b"third"][t.log.log_start_offset :]
        await offload.close()

    asyncio.run(body())


def test_a_full_disk_costs_no_record_that_was_acknowledged_before() -> None:
    """Also where a topic's appends are acknowledged before they are synced."""

    async def body() -> None:
        tree = TornTree(SeededRandom(3))
        async with unified_log(lambda: tree, LAZY, cut_power=tree.crash) as t:
            await append(t.log, encoded([b"a"]))
            await append(t.log, encoded([b"b"]))
            tree.plan_faults(lambda call, _: DiskFault.FULL if call == "write" else None)
            await refused(DiskFull, append(t.log, encoded([b"c"])))
            tree.plan_faults(None)
            await t.log.close()
            await t.open()
            assert await values(t.log) == [b"a", b"b"]
            await t.crashed()
            assert await values(t.log) == [b"a", b"b"], "they are durable since the failure"

    asyncio.run(body())


def no_room(call: str, _name: str) -> DiskFault | None:
    return DiskFault.FULL if call in ("create", "write") else None


async def two_segments(log: AbstractLog) -> None:
    await append(log, encoded([b"old"]))
    await log.roll()
    await append(log, encoded([b"new"]))


@pytest.mark.parametrize("has_crash", [True, False])
def test_a_removal_of_segments_frees_a_full_disk(has_crash: bool) -> None:
    """The checkpoint of log starts has no room before, and the log begins with its files."""

    async def body() -> None:
        tree = TornTree(SeededRandom(3))
        async with unified_log(lambda: tree, cut_power=tree.crash) as t:
            await two_segments(t.log)
            tree.plan_faults(no_room)
            assert await t.log.delete_oldest_segments(1, "test") == 1
            assert (t.log.log_start_offset, await values(t.log)) == (1, [b"new"])
            full = t.folder.full_disk()
            assert full is not None
            assert "free some space" in full.waits_for
            if not has_crash:
                # An open needs no room for the start either.
                tree.plan_faults(
                    lambda call, name: no_room(call, name) if name.startswith(LOG_STARTS) else None
                )
                await t.log.kill()
                await t.open()
                assert await values(t.log) == [b"new"]
            tree.plan_faults(None)
            await append(t.log, encoded([b"newer"]))
            assert t.folder.full_disk() is None
            await (t.crashed() if has_crash else t.reopened())
            assert (t.log.log_start_offset, await values(t.log)) == (1, [b"new", b"newer"])

    asyncio.run(body())


def test_a_full_disk_is_freed_where_all_records_are_expired() -> None:
    """The last segment is rolled before it goes, which needs room: it goes behind the others."""

    async def body() -> None:
        tree = TornTree(SeededRandom(3))
        async with unified_log(lambda: tree, cut_power=tree.crash) as t:
            await two_segments(t.log)
            tree.plan_faults(no_room)
            await refused(DiskFull, t.log.delete_oldest_segments(2, "test"))
            # What was removed has made room.
            tree.plan_faults(None)
            await t.log.kill()
            await t.open()
            assert (t.log.log_start_offset, await values(t.log)) == (1, [b"new"])
            assert await t.log.delete_oldest_segments(2, "test") == 1
            await t.crashed()
            assert (t.log.log_start_offset, t.log.log_end_offset) == (2, 2)

    asyncio.run(body())


@pytest.mark.parametrize("is_tiered", [True, False])
def test_a_start_for_which_there_is_no_room_leaves_the_log_as_it_is(is_tiered: bool) -> None:
    """With a tier, also one that takes no copies any more, the checkpoint alone says where the log
    begins: it comes before the removal."""

    async def raises(log: AbstractLog) -> int:
        if is_tiered:
            return await log.delete_oldest_segments(1, "test")
        return await log.delete_records(1)

    async def body() -> None:
        tree = TornTree(SeededRandom(3))
        configs = {"log.type": "unified"}
        if is_tiered:
            configs |= {"remote.storage.enable": "true", "remote.log.copy.disable": "true"}
        async with unified_log(lambda: tree, configs, cut_power=tree.crash) as t:
            await two_segments(t.log)
            log = t.log
            tree.plan_faults(no_room)
            await refused(DiskFull, raises(log))
            assert await values(log) == [b"old", b"new"]
            tree.plan_faults(None)
            await append(log, encoded([b"newer"]))
            assert await raises(log) == 1
            await t.crashed()
            assert await values(t.log) == [b"new", b"newer"]

    asyncio.run(body())


@pytest.mark.parametrize("seed", range(8))
def test_a_sync_that_failed_when_the_log_was_closed_is_not_taken_for_done(seed: int) -> None:
    """The next open of the same process finds the pages readable and clean. What it shows stays."""

    async def body() -> None:
        tree = TornTree(SeededRandom(seed))
        async with unified_log(lambda: tree, LAZY, cut_power=tree.crash) as t:
            await append(t.log, encoded([bytes(600)]))
            tree.plan_faults(
                lambda call, name: (
                    DiskFault.IO_ERROR if call == "sync" and name.endswith(LOG) else None
                )
            )
            await refused(StreamlogError, t.log.close())
            tree.plan_faults(None)
            await t.open()
            shown = await values(t.log)
            await t.log.roll()
            await t.crashed()
            assert await values(t.log) == shown

    asyncio.run(body())


def test_a_failed_close_leaves_what_was_synced() -> None:
    async def body() -> None:
        tree = TornTree(SeededRandom(3))
        async with unified_log(lambda: tree) as t:
            await append(t.log, encoded([b"a"]))
            tree.plan_faults(
                lambda _, name: DiskFault.FULL if name.endswith(INDEX + TEMPORARY) else None
            )
            await refused(DiskFull, t.log.close())
            tree.plan_faults(None)
            await t.open()
            assert await values(t.log) == [b"a"]

    asyncio.run(body())


def test_whoever_waits_for_the_disk_hears_that_the_log_was_killed() -> None:
    """The kill comes before the task that writes has run at all."""

    async def body() -> None:
        tree = TornTree(SeededRandom(3))
        async with unified_log(lambda: tree) as t:
            await append(t.log, encoded([b"a"]))
            roll = asyncio.ensure_future(t.log.roll())
            killed = asyncio.ensure_future(t.log.kill())
            await killed
            done, _ = await asyncio.wait({roll}, timeout=5)
            assert done
            assert isinstance(roll.exception(), StreamlogError)
            await t.open()

    asyncio.run(body())


def test_a_close_that_an_open_overtakes_distrusts_nothing_of_the_open_log() -> None:
    """The open closes the files of the log before: that one fails, and is not the owner by then."""

    async def body() -> None:
        tree = TornTree(SeededRandom(3))
        async with unified_log(lambda: tree) as t:
            await append(t.log, encoded([b"old"]))
            t.hold()
            pending = await t.log.append(encoded([b"pending"]))
            closing = asyncio.ensure_future(t.log.close())
            await turns()
            opening = asyncio.ensure_future(t.open())
            await turns()
            t.release()
            await asyncio.gather(closing, opening, pending, return_exceptions=True)
            await opening
            for number in range(5):
                await append(t.log, encoded([b"new%d" % number]))
            shown = await values(t.log)
            await t.log.close()
            await t.open()
            assert await values(t.log) == shown

    asyncio.run(body())


def test_one_write_is_under_way_at_a_time_when_syncs_are_due_by_the_clock() -> None:
    """Two would bring the batches out of order."""

    async def body() -> None:
        tree, choose = TornTree(SeededRandom(3)), random.Random(1)
        async with unified_log(lambda: tree, {"flush.ms": "1"}) as t:
            waits, most = [], 0
            for number in range(3000):
                waits.append(await t.log.append(encoded([b"%d" % number])))
                for _ in range(choose.randrange(12)):
                    await asyncio.sleep(0)
                    most = max(most, len(t.folder.writes.under_way))
            await asyncio.gather(*waits)
            assert most == 1
            assert await values(t.log) == [b"%d" % number for number in range(3000)]

    asyncio.run(body())


def test_deletions_and_rolls_end_beside_appends_without_a_pause() -> None:
    """The disk always has something to write then. Else nothing would be deleted before it is full,
    and a deletion of records would wait for the one of segments."""

    async def body() -> None:
        tree = TornTree(SeededRandom(3))
        async with unified_log(lambda: tree, {"internal.segment.bytes": "600"}) as t:
            is_over = asyncio.Event()

            async def produce() -> Sequence[asyncio.Future[LogAppendInfo]]:
                waits = []
                while not is_over.is_set():
                    waits.append(asyncio.ensure_future(await t.log.append(encoded([b"v"]))))
                    await asyncio.sleep(0)
                return waits

            producing = asyncio.ensure_future(produce())
            await t.log.wait_for(30, Isolation.READ_UNCOMMITTED)
            calls = [
                asyncio.ensure_future(t.log.delete_oldest_segments(20, "test")),
                asyncio.ensure_future(t.log.roll()),
                asyncio.ensure_future(t.log.delete_records(25)),
            ]
            done, _ = await asyncio.wait(calls, timeout=5)
            is_over.set()
            await asyncio.gather(*await producing, *calls)
            assert len(done) == len(calls)
            assert t.log.log_start_offset == 25

    asyncio.run(body())


def test_a_cleaning_begins_when_the_files_of_its_segments_are_whole() -> None:
    """Else the roll that is under way would write the old indexes over those of the cleaned one."""

    async def body() -> None:
        tree = TornTree(SeededRandom(3))
        configs = {"log.type": "unified", "cleanup.policy": "compact"}
        async with unified_log(lambda: tree, configs) as t:
            await append(t.log, keyed(b"k", b"v"))
            t.hold()
            roll = asyncio.ensure_future(t.log.roll())
            await turns()
            log = cast(CleanableLog, t.log)
            begun = asyncio.ensure_future(log.replace_segments(log.segments[:1]))
            await turns()
            assert not begun.done()
            t.release()
            await roll
            await (await begun).abandon()

    asyncio.run(body())


@pytest.mark.parametrize("seed", range(20))
def test_what_a_new_process_shows_is_durable_though_a_sync_of_the_old_one_failed(seed: int) -> None:
    """The pages of a failed write-back are readable and clean: a sync alone passes over them."""

    async def body() -> None:
        tree = TornTree(SeededRandom(seed))
        async with unified_log(lambda: tree, cut_power=tree.restart) as t:
            await append(t.log, encoded([b"acknowledged" * 30]))

            def strike(operation: str, name: str) -> DiskFault | None:
                return DiskFault.IO_ERROR if operation == "sync" and name.endswith(".log") else None

            tree.plan_faults(strike)
            await refused(StoreUnavailable, append(t.log, encoded([b"unknown" * 60])))
            tree.plan_faults(None)
            await t.crashed()
            await append(t.log, encoded([b"newer"]))
            shown = await read(t.log)
            assert len(shown) >= 2
            t.cut_power = tree.crash
            await t.crashed()
            assert await read(t.log) == shown

    asyncio.run(body())
