"""Copies that fail are tried again after a pause, not only at the next round."""

from __future__ import annotations

import asyncio

from streamlog.runtime.rand import SeededRandom
from streamlog.testing.logs.log_conformance import append, encoded
from streamlog.testing.simulation.world.loop import run as run_virtually
from streamlog.testing.torn_folder import TornTree
from streamlog.tiered.config import RemoteLogConfig
from streamlog.tiered.copying.backoff import TaskBackoff
from tests.tiered.harness import VirtualClock, tiered_log


def test_pauses_double_up_to_the_longest_and_vary() -> None:
    exact = TaskBackoff(SeededRandom(1), jitter=0)
    assert [exact.delay_s(failures) for failures in (1, 2, 3, 6, 7, 1000)] == [
        0.5,
        1,
        2,
        16,
        30,
        30,
    ]
    varied = TaskBackoff(SeededRandom(1))
    delays = [varied.delay_s(1) for _ in range(1000)]
    assert 0.4 <= min(delays) < 0.41
    assert 0.59 < max(delays) <= 0.6


def test_a_copy_that_failed_is_made_before_the_next_round() -> None:
    async def body() -> None:
        config = RemoteLogConfig(retry_backoff_ms=1, retry_backoff_ms_max=5)
        async with tiered_log(TornTree(SeededRandom(3)), {}, config) as t:
            for _ in range(20):
                await append(t.log, encoded([b"x" * 200]))
            failures, made = 0, asyncio.Event()

            def strike(call: str) -> None:
                nonlocal failures
                if call == "copy" and failures < 5:
                    failures += 1
                    raise ConnectionError("the store is away")
                if call == "copied":
                    made.set()

            t.storage.strike = strike
            await t.copy()
            assert not any(segment.get("LOG") for segment in t.storage.segments.values())
            async with asyncio.timeout(10):
                await made.wait()
            await t.copy()
            assert failures == 5
            assert t.manager.alarms() == []
            assert t.manager.highest_offset(t.partition.topic_partition) >= 0

    asyncio.run(body())


def test_a_log_that_ends_is_not_tried_again() -> None:
    async def body() -> None:
        config = RemoteLogConfig(retry_backoff_ms=20)
        async with tiered_log(TornTree(SeededRandom(3)), {}, config) as t:
            for _ in range(20):
                await append(t.log, encoded([b"x" * 200]))
            calls: list[str] = []

            def strike(call: str) -> None:
                calls.append(call)
                raise ConnectionError("the store is away")

            t.storage.strike = strike
            await t.copy()
            await t.log.close()
            made = len(calls)
            await asyncio.sleep(0.1)
            assert len(calls) == made
            await t.open()

    asyncio.run(body())


def test_a_log_that_is_opened_is_copied_at_once_and_not_at_the_next_round() -> None:
    async def body() -> None:
        async with tiered_log(TornTree(SeededRandom(3)), {}, clock=VirtualClock()) as t:
            for _ in range(20):
                await append(t.log, encoded([b"x" * 200]))
            await t.reopened()
            closed = max(one.end_offset for one in t.log.segments if not one.is_active)
            await asyncio.sleep(1)
            assert t.log.copied_end_offset == closed

    run_virtually(body)
