"""LoopTime: the steps of a coroutine are timed, its waits are not, and nothing else changes."""

from __future__ import annotations

import asyncio

import pytest

from streamlog.runtime.concurrency.loop_time import LoopTime
from streamlog.testing.clocks import ManualClock


def test_steps_count_and_waits_do_not() -> None:
    async def main() -> None:
        clock, go_on = ManualClock(), asyncio.Event()

        async def work() -> str:
            clock.advance(3)
            await go_on.wait()
            clock.advance(4)
            await asyncio.sleep(0)
            clock.advance(5)
            return "done"

        async def others() -> None:
            clock.advance(1000)
            go_on.set()

        timed = LoopTime(work(), clock)
        other = asyncio.create_task(others())
        assert await timed == "done"
        await other
        assert timed.seconds == pytest.approx(0.012)

    asyncio.run(main())


def test_errors_and_cancellation_reach_the_coroutine_and_come_back() -> None:
    async def main() -> None:
        clock = ManualClock()
        seen: list[str] = []

        async def fails() -> None:
            clock.advance(7)
            raise ValueError("no")

        timed = LoopTime(fails(), clock)
        with pytest.raises(ValueError, match="no"):
            await timed
        assert timed.seconds == pytest.approx(0.007)

        async def waits() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                seen.append("cleaned up")

        async def outer() -> None:
            await LoopTime(waits(), clock)

        task = asyncio.create_task(outer())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert seen == ["cleaned up"]

    asyncio.run(main())
