"""A unified log is cleaned by segments that come in the place of others, whatever readers do."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import cast

import pytest

from streamlog.codec.batch import scan
from streamlog.codec.records import iterate
from streamlog.errors import StreamlogError
from streamlog.log.api.abstract_log import Isolation
from streamlog.log.api.cleaning import CleanableLog
from streamlog.log.api.topic_config import TopicConfig, parse
from streamlog.log.cleaning.cleanable import log_to_clean
from streamlog.log.cleaning.cleaner import LogCleaning
from streamlog.runtime.disk.system_tree import SystemTree
from streamlog.runtime.offload import ThreadOffload
from streamlog.runtime.rand import SeededRandom
from streamlog.testing.logs.log_conformance import append
from streamlog.testing.logs.transaction_conformance import begin, end
from streamlog.testing.torn_folder import TornTree
from streamlog.testing.torn_media import DiskFault
from tests.unified.harness import UnifiedLogUnderTest, unified_log
from tests.unified.records import keyed

COMPACT = {
    "log.type": "unified",
    "cleanup.policy": "compact",
    "internal.segment.bytes": "600",
    "index.interval.bytes": "200",
    "delete.retention.ms": "1000",
}
Scene = Callable[[UnifiedLogUnderTest], Awaitable[None]]


async def clean(t: UnifiedLogUnderTest, keys: int = 10_000) -> None:
    """One round, over all inactive segments."""
    offload = ThreadOffload()
    try:
        config: TopicConfig = parse(t.configs)
        now_ms = t.clock.now_ms()
        log = cast(CleanableLog, t.log)
        await LogCleaning(offload, keys * 256).clean(
            log_to_clean(log, config, now_ms), config, now_ms
        )
    finally:
        await offload.close()


async def contents(t: UnifiedLogUnderTest) -> dict[int, tuple[bytes | None, bytes | None]]:
    """Offset → key and value of every record that a reader gets from the start."""
    found: dict[int, tuple[bytes | None, bytes | None]] = {}
    position = t.log.log_start_offset
    while position < t.log.high_watermark:
        fetched = await t.log.fetch(position, 1500)
        assert fetched.next_offset > position
        for batch in scan(b"".join(fetched.parts)):
            if not batch.header.is_control:
                for offset, _, key, value, _ in iterate(batch.view):
                    found[offset] = (key, value)
        position = fetched.next_offset
    return found


def newest(stored: dict[int, tuple[bytes | None, bytes | None]]) -> dict[bytes, bytes | None]:
    state: dict[bytes, bytes | None] = {}
    for offset in sorted(stored):
        key, value = stored[offset]
        assert key is not None
        state[key] = value
    return {key: value for key, value in state.items() if value is not None}


def over_both(scene: Scene, tmp_path: Path) -> None:
    async def body() -> None:
        torn = TornTree(SeededRandom(3))
        async with unified_log(lambda: torn, COMPACT, cut_power=torn.crash) as t:
            await scene(t)
        async with unified_log(lambda: SystemTree(tmp_path / "logs"), COMPACT) as t:
            await scene(t)

    asyncio.run(body())


def test_the_newest_value_of_each_key_stays_at_its_offset(tmp_path: Path) -> None:
    async def scene(t: UnifiedLogUnderTest) -> None:
        choose = random.Random(5)
        sent: dict[int, tuple[bytes | None, bytes | None]] = {}
        for turn in range(4):
            for number in range(60):
                key = b"k%d" % choose.randrange(12)
                value = None if choose.random() < 0.1 else b"%d-%d" % (turn, number)
                info = await append(t.log, keyed(key, value))
                sent[info.base_offset] = (key, value)
            await t.log.roll()
            size, segments = t.log.size_bytes, len(t.log.segments)
            await clean(t)
            for _ in range(2):
                left = await contents(t)
                assert newest(left) == newest(sent)
                assert left.items() <= sent.items()
                assert t.log.log_end_offset == len(sent)
                assert t.log.size_bytes < size
                assert len(t.log.segments) <= segments
                await (t.crashed() if turn % 2 else t.reopened())
        keys = {key for key, _ in sent.values()}
        assert len(await contents(t)) <= len(keys)

    over_both(scene, tmp_path)


def test_readers_beside_a_cleaning_see_every_newest_value(tmp_path: Path) -> None:
    async def scene(t: UnifiedLogUnderTest) -> None:
        for number in range(300):
            await append(t.log, keyed(b"k%d" % (number % 40), b"%d" % number))
        await t.log.roll()
        expected = newest(await contents(t))
        cleaning = asyncio.ensure_future(clean(t))
        rounds = 0
        while not cleaning.done() or rounds < 3:
            assert newest(await contents(t)) == expected
            rounds += 1
        await cleaning

    over_both(scene, tmp_path)


@pytest.mark.parametrize("seed", range(40))
def test_a_power_cut_at_any_call_of_a_cleaning_loses_no_newest_value(seed: int) -> None:
    """Each changing call of the disk, one after the other, is the last before the power fails."""

    async def body() -> None:
        tree = TornTree(SeededRandom(seed))
        async with unified_log(lambda: tree, COMPACT, cut_power=tree.crash) as t:
            for number in range(60):
                value = None if number % 9 == 0 else b"%d" % number
                await append(t.log, keyed(b"k%d" % (number % 13), value))
            await t.log.roll()
            expected = newest(await contents(t))
            left = [seed]

            def strike(_operation: str, _name: str) -> DiskFault | None:
                left[0] -= 1
                return DiskFault.POWER if left[0] < 0 else None

            tree.plan_faults(strike)
            with contextlib.suppress(StreamlogError, OSError):
                await clean(t)
            tree.plan_faults(None)
            await t.crashed()
            assert newest(await contents(t)) == expected
            assert t.log.log_end_offset == 60
            await clean(t)
            assert newest(await contents(t)) == expected
            await t.reopened()
            assert newest(await contents(t)) == expected

    asyncio.run(body())


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
            expected = newest(await contents(t))
            left = [step]

            def strike(_operation: str, _name: str) -> DiskFault | None:
                left[0] -= 1
                return DiskFault.IO_ERROR if left[0] < 0 else None

            tree.plan_faults(strike)
            with contextlib.suppress(StreamlogError, OSError):
                await clean(t)
            tree.plan_faults(None)
            tree.restart()
            await t.crashed()
            assert newest(await contents(t)) == expected
            assert t.log.log_start_offset == 0

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
            expected = newest(await contents(t))
            with contextlib.suppress(StreamlogError):
                await clean(t)
            tree.plan_faults(None)
            await t.crashed()
            assert newest(await contents(t)) == expected

    asyncio.run(body())
