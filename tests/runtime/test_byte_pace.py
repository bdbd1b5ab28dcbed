"""A pace bounds bytes in any time, and follows its rate at once."""

from __future__ import annotations

import asyncio
import random

import pytest

from streamlog.runtime.concurrency.byte_pace import LOOK_S, UNLIMITED, BytePace
from streamlog.testing.simulation.world.loop import run
from tests.support.virtual_time import LoopClock


@pytest.mark.parametrize("seed", range(20))
def test_in_any_time_the_bytes_are_what_the_rate_pays_and_one_call(seed: int) -> None:
    async def body() -> None:
        choose, clock, rate = random.Random(seed), LoopClock(), 1000
        pace = BytePace(lambda: rate, clock)
        begun: list[tuple[float, int]] = []
        for _ in range(200):
            size = choose.randrange(3000)
            begun.append((clock.monotonic(), size))
            await pace.spend(size)
            await asyncio.sleep(choose.choice([0, 0, 0.5, 5]))
        for first in range(0, len(begun), 7):
            total = 0
            for at, size in begun[first:]:
                assert total <= rate * (at - begun[first][0] + 0.002)
                total += size

    run(body)


def test_who_is_always_ahead_moves_at_the_rate() -> None:
    async def body() -> None:
        clock = LoopClock()
        pace, began = BytePace(lambda: 500.0, clock), clock.monotonic()
        for _ in range(100):
            await pace.spend(50)
        assert clock.monotonic() - began == pytest.approx(10, abs=0.01)

    run(body)


def test_a_call_that_waits_follows_the_rate() -> None:
    async def body() -> None:
        clock, rates = LoopClock(), [1.0]
        pace, began = BytePace(lambda: rates[0], clock), clock.monotonic()
        waiting = asyncio.ensure_future(pace.spend(1_000_000))
        await asyncio.sleep(10)
        assert not waiting.done()
        rates[0] = UNLIMITED
        await waiting
        assert clock.monotonic() - began <= 10 + LOOK_S
        await pace.spend(1 << 40)
        assert clock.monotonic() - began <= 10 + LOOK_S

    run(body)


def test_what_a_cancelled_call_moved_is_owed() -> None:
    async def body() -> None:
        clock = LoopClock()
        pace, began = BytePace(lambda: 100.0, clock), clock.monotonic()
        waiting = asyncio.ensure_future(pace.spend(1000))
        await asyncio.sleep(1)
        waiting.cancel()
        await asyncio.wait({waiting})
        await pace.spend(100)
        assert clock.monotonic() - began == pytest.approx(11, abs=0.01)

    run(body)
