"""A cleaning of files moves at most as many bytes in a second as it may, in virtual time."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from streamlog.errors import Closed
from streamlog.log.api.cleaning import CleanableLog
from streamlog.log.api.topic_config import parse
from streamlog.log.cleaning.cleanable import log_to_clean
from streamlog.log.cleaning.cleaner import LogCleaning
from streamlog.runtime.concurrency.byte_pace import BytePace
from streamlog.runtime.rand import SeededRandom
from streamlog.testing.logs.cleaning_conformance import keyed
from streamlog.testing.logs.log_conformance import append
from streamlog.testing.simulation.world.loop import run
from streamlog.testing.torn_folder import TornTree
from tests.support.virtual_time import LoopClock
from tests.unified.harness import UnifiedLogUnderTest, unified_log

COMPACT = {"log.type": "unified", "cleanup.policy": "compact", "internal.segment.bytes": "600"}
BYTES_PER_S = 100.0


async def filled(t: UnifiedLogUnderTest) -> CleanableLog:
    for number in range(80):
        await append(t.log, keyed(b"k%d" % (number % 9), b"%d" % number))
    await t.log.roll()
    return cast(CleanableLog, t.log)


def test_a_cleaning_keeps_its_pace_and_others_go_on() -> None:
    async def body() -> None:
        clock, tree = LoopClock(), TornTree(SeededRandom(3))
        async with unified_log(lambda: tree, COMPACT) as t:
            log, config = await filled(t), parse(t.configs)
            pace = BytePace(lambda: BYTES_PER_S, clock)
            chosen = log_to_clean(log, config, t.clock.now_ms())
            began = clock.monotonic()
            cleaning = asyncio.ensure_future(
                LogCleaning(t.held, 1 << 20, pace).clean(chosen, config, t.clock.now_ms())
            )
            await asyncio.sleep(10)
            assert not cleaning.done()
            before = clock.monotonic()
            await append(t.log, keyed(b"new", b"v"))
            assert clock.monotonic() == before, "an append does not wait for a cleaning"
            stats = await cleaning
            # Each batch is read for its keys and for the filter, and written where it stays.
            moved = 2 * stats.bytes_read + stats.bytes_written
            assert moved > 10_000
            assert clock.monotonic() - began == pytest.approx(moved / BYTES_PER_S, rel=0.01)

    run(body)


def test_a_log_that_ends_under_a_slow_cleaning_ends_it() -> None:
    async def body() -> None:
        tree = TornTree(SeededRandom(3))
        async with unified_log(lambda: tree, COMPACT) as t:
            log, config = await filled(t), parse(t.configs)
            pace = BytePace(lambda: BYTES_PER_S, LoopClock())
            chosen = log_to_clean(log, config, t.clock.now_ms())
            cleaning = asyncio.ensure_future(
                LogCleaning(t.held, 1 << 20, pace).clean(chosen, config, t.clock.now_ms())
            )
            await asyncio.sleep(100)
            await t.log.delete()
            with pytest.raises(Closed):
                await cleaning
            assert tree.folders() == []

    run(body)
