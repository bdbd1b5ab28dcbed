"""A unified log is cleaned by segments that come in the place of others, whatever readers do."""

from __future__ import annotations

import asyncio
import contextlib
from typing import cast

import pytest

from streamlog.errors import StreamlogError
from streamlog.format.kafka_files.names import (
    INDEX,
    RECOVERY_POINTS,
    SNAPSHOT,
    TXN_INDEX,
    file_name,
)
from streamlog.log.api.abstract_log import Isolation
from streamlog.log.api.cleaning import CleanableLog
from streamlog.log.api.topic_config import parse
from streamlog.log.cleaning.cleanable import log_to_clean
from streamlog.log.cleaning.cleaner import LogCleaning
from streamlog.runtime.offload import ThreadOffload
from streamlog.runtime.rand import SeededRandom
from streamlog.testing.logs.cleaning_conformance import (
    batches,
    clean,
    contents,
    keyed,
    newest,
)
from streamlog.testing.logs.log_conformance import UNCOMMITTED, append
from streamlog.testing.logs.transaction_conformance import AT_MS, begin, end
from streamlog.testing.torn_folder import TornTree
from streamlog.testing.torn_media import DiskFault
from streamlog.unified.disk.files import write_new
from streamlog.unified.recovery.snapshots import snapshot_offsets
from tests.unified.harness import disk_that_fails_after, unified_log

COMPACT = {
    "log.type": "unified",
    "cleanup.policy": "compact",
    "internal.segment.bytes": "600",
    "index.interval.bytes": "200",
    "delete.retention.ms": "1000",
}


@pytest.mark.parametrize("step", range(48))
def test_a_cleaning_that_fails_at_any_call_of_the_disk_loses_no_newest_value(step: int) -> None:
    """The folder stays as it was left: a rename that was made is there, and those behind it are
    not."""

    async def body() -> None:
        tree = TornTree(SeededRandom(step))
        async with unified_log(lambda: tree, COMPACT) as t:
            for number in range(30):
                value = None if number % 9 == 0 else b"%d" % number
                await append(t.log, keyed(b"k%d" % (number % 7), value))
            await t.log.roll()
            expected = newest(await contents(t.log))
            with disk_that_fails_after(tree, step):
                await clean(t, configs=COMPACT)
            tree.restart()
            await t.crashed()
            assert newest(await contents(t.log)) == expected
            assert t.log.log_start_offset == 0

    asyncio.run(body())


def test_the_snapshots_of_segments_that_were_merged_go_with_them() -> None:
    async def body() -> None:
        tree = TornTree(SeededRandom(1))
        async with unified_log(lambda: tree, COMPACT) as t:

            def snapshots() -> list[int]:
                return snapshot_offsets(tree.open("t-0").list())

            for number in range(3):
                await append(t.log, keyed(b"k%d" % number, b"v"))
                await t.log.roll()
            assert snapshots() == [1, 2, 3]
            await clean(t, configs=COMPACT)
            assert [one.base_offset for one in t.log.segments] == [0, 3]
            assert snapshots() == [3]

    asyncio.run(body())


def test_a_committed_fetch_of_offsets_that_a_cleaning_emptied_goes_on_behind_them() -> None:
    """Batches beyond the cleaned range go, too, where they were aborted meanwhile."""

    async def body() -> None:
        tree = TornTree(SeededRandom(1))
        async with unified_log(lambda: tree, COMPACT) as t:
            log = cast(CleanableLog, t.log)
            await append(t.log, keyed(b"k", b"kept"))
            for producer in (1, 2):
                data = keyed(b"k", b"open", producer=(producer, 0, 0), is_transactional=True)
                await begin(t.log, data)
            await t.log.roll()
            await append(t.log, keyed(b"l", b"active"))
            config, now_ms = parse(t.configs), t.clock.now_ms()
            chosen = log_to_clean(log, config, now_ms)
            assert chosen.first_uncleanable_offset == 1
            await end(t.log, is_commit=False, producer_id=1)
            # The batch at 1 is not its producer's last one, whose header would stay.
            await append(t.log, keyed(b"l", b"newer", producer=(1, 0, 1)))
            offload = ThreadOffload()
            try:
                await LogCleaning(offload, 1 << 20).clean(chosen, config, now_ms)
            finally:
                await offload.close()
            assert t.log.last_stable_offset == 2
            fetched = await t.log.fetch(1, 1000, isolation=Isolation.READ_COMMITTED)
            assert (fetched.size_bytes, fetched.next_offset) == (0, 2)
            assert await t.log.fetch(1, 1000)

    asyncio.run(body())


@pytest.mark.parametrize("lost", [RECOVERY_POINTS, INDEX, SNAPSHOT, TXN_INDEX])
def test_the_header_that_a_cleaning_left_of_a_marker_is_read_by_every_recovery(lost: str) -> None:
    """The last marker of a producer, when it bumped the epoch, keeps its header for the epoch."""

    async def body() -> None:
        tree = TornTree(SeededRandom(1))
        async with unified_log(lambda: tree, COMPACT) as t:
            await begin(t.log, keyed(b"k", b"old", producer=(1, 0, 0), is_transactional=True))
            await end(t.log, is_commit=True, epoch=1)
            for number in range(6):
                await append(t.log, keyed(b"k", b"%d" % number, at_ms=AT_MS + number))
                await append(t.log, keyed(b"k%d" % number, b"kept", at_ms=AT_MS + number))
                await t.log.roll()
                t.clock.advance(2000)
                await clean(t, configs=COMPACT)
            left = [header.record_count for header, _ in await batches(t.log) if header.is_control]
            assert left == [0]
            await append(t.log, keyed(b"l", b"active"))
            expected = await contents(t.log)
            places = [await t.log.offset_for_timestamp(AT_MS + n, UNCOMMITTED) for n in range(6)]
            await t.log.close()
            await t.folder.close()
            lose(tree, lost)
            await t.open_folder()
            await t.open()
            assert await contents(t.log) == expected
            assert places == [
                await t.log.offset_for_timestamp(AT_MS + n, UNCOMMITTED) for n in range(6)
            ]
            assert t.log.last_stable_offset == t.log.log_end_offset == 15
            await append(t.log, keyed(b"m", b"goes on"))

    asyncio.run(body())


def lose(tree: TornTree, what: str) -> None:
    """Removes a checkpoint, or all of a partition's files of a kind; an index of aborted
    transactions is damaged, because none is what there mostly is."""
    if what == RECOVERY_POINTS:
        tree.top.remove(what)
        tree.top.sync()
        return
    folder = tree.open("t-0")
    names = [name for name in folder.list() if name.endswith(what)]
    for name in names:
        folder.remove(name)
    if what == TXN_INDEX:
        write_new(folder, file_name(0, TXN_INDEX), b"damaged")
    folder.sync()


def test_a_crash_after_a_cleaning_meets_no_recovery_point_within_the_new_segment() -> None:
    """Offsets that a cleaning removed at the end of a segment would pass for lost ones."""

    async def body() -> None:
        tree = TornTree(SeededRandom(1))
        configs = {**COMPACT, "internal.segment.bytes": "2000"}
        async with unified_log(lambda: tree, configs, cut_power=tree.restart) as t:
            for key in (b"a", b"b", b"c", b"d", b"e"):
                await append(t.log, keyed(key, b"x" * 150))
            await append(t.log, keyed(b"l", b"superseded"))
            await t.log.roll()
            await t.folder.recovery_points.save()

            def strike(_operation: str, name: str) -> DiskFault | None:
                is_checkpoint = name.startswith("recovery-point")
                return DiskFault.IO_ERROR if is_checkpoint else None

            tree.plan_faults(strike)
            await append(t.log, keyed(b"m", b"x" * 200))
            await append(t.log, keyed(b"l", b"newest"))
            await t.log.roll()
            expected = newest(await contents(t.log))
            with contextlib.suppress(StreamlogError):
                await clean(t, configs=configs)
            tree.plan_faults(None)
            await t.crashed()
            assert newest(await contents(t.log)) == expected

    asyncio.run(body())


def test_a_cleaning_after_a_crash_meets_no_recovery_point_of_before() -> None:
    """That of the last roll was not written down when the process died."""

    async def body() -> None:
        tree = TornTree(SeededRandom(1))
        configs = {**COMPACT, "internal.segment.bytes": "2000"}
        async with unified_log(lambda: tree, configs, cut_power=tree.restart) as t:
            for key in (b"a", b"b", b"c", b"d", b"e"):
                await append(t.log, keyed(key, b"x" * 150))
            await append(t.log, keyed(b"l", b"superseded"))
            await t.log.roll()
            await t.folder.recovery_points.save()
            tree.plan_faults(
                lambda _, name: DiskFault.IO_ERROR if name.startswith(RECOVERY_POINTS) else None
            )
            await append(t.log, keyed(b"m", b"x" * 200))
            await append(t.log, keyed(b"l", b"newest"))
            await t.log.roll()
            expected = newest(await contents(t.log))
            tree.plan_faults(None)
            await t.crashed()
            await clean(t, configs=configs)
            assert len(t.log.segments) == 2
            await t.crashed()
            assert newest(await contents(t.log)) == expected

    asyncio.run(body())


def test_a_log_opens_while_its_recovery_point_cannot_be_written() -> None:
    """The disk is full, and what is there can be read."""

    async def body() -> None:
        tree = TornTree(SeededRandom(1))
        async with unified_log(lambda: tree, COMPACT, cut_power=tree.restart) as t:
            tree.plan_faults(
                lambda _, name: DiskFault.FULL if name.startswith(RECOVERY_POINTS) else None
            )
            await append(t.log, keyed(b"k", b"v"))
            await t.log.roll()
            expected = await contents(t.log)
            await t.crashed()
            assert await contents(t.log) == expected
            await t.log.kill()
            await t.open()
            assert await contents(t.log) == expected
            tree.plan_faults(None)

    asyncio.run(body())
