"""A unified log is cleaned by segments that come in the place of others, whatever readers do."""

from __future__ import annotations

import asyncio
import contextlib
from typing import cast

import pytest

from streamlog.errors import StreamlogError
from streamlog.log.api.abstract_log import Isolation
from streamlog.log.api.cleaning import CleanableLog
from streamlog.log.api.topic_config import parse
from streamlog.log.cleaning.cleanable import log_to_clean
from streamlog.log.cleaning.cleaner import LogCleaning
from streamlog.runtime.offload import ThreadOffload
from streamlog.runtime.rand import SeededRandom
from streamlog.testing.logs.cleaning_conformance import clean, contents, keyed, newest
from streamlog.testing.logs.log_conformance import append
from streamlog.testing.logs.transaction_conformance import begin, end
from streamlog.testing.torn_folder import TornTree
from streamlog.testing.torn_media import DiskFault
from streamlog.unified.recovery.snapshots import snapshot_offsets
from tests.unified.harness import unified_log

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
            left = [step]

            def strike(_operation: str, _name: str) -> DiskFault | None:
                left[0] -= 1
                return DiskFault.IO_ERROR if left[0] < 0 else None

            tree.plan_faults(strike)
            with contextlib.suppress(StreamlogError, OSError):
                await clean(t, configs=COMPACT)
            tree.plan_faults(None)
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
