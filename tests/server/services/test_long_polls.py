"""The waits of fetches: none ends before its time, and none is left behind."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from streamlog.server.services.records.long_polls import LongPolls

WAITS_S = (0.0001, 0.0015, 0.0999, 0.1, 0.1049, 0.123)


def test_no_wait_ends_before_its_time_and_none_is_left() -> None:
    async def main() -> None:
        polls, loop = LongPolls(), asyncio.get_running_loop()
        lasted: dict[int, float] = {}

        async def wait(number: int) -> None:
            began = loop.time()
            await polls.until(loop.create_future(), WAITS_S[number % len(WAITS_S)])
            lasted[number] = loop.time() - began

        count = 20 * len(WAITS_S)
        await asyncio.gather(*(wait(number) for number in range(count)))
        assert len(lasted) == count
        for number, seconds in lasted.items():
            assert seconds >= WAITS_S[number % len(WAITS_S)]
        assert polls.waiting == 0
        assert polls.progress() is None

    asyncio.run(main())


def test_waits_of_many_consumers_share_their_timers(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        polls, loop = LongPolls(), asyncio.get_running_loop()
        timers: list[float] = []
        call_at = loop.call_at

        def counted(when: float, *args: Any) -> asyncio.TimerHandle:
            timers.append(when)
            return call_at(when, *args)

        monkeypatch.setattr(loop, "call_at", counted)
        await asyncio.gather(*(polls.until(loop.create_future(), 0.2) for _ in range(1000)))
        assert 1 <= len(timers) <= 100

    asyncio.run(main())


@pytest.mark.parametrize("how", ["served", "cancelled", "drained"])
def test_a_wait_that_ends_early_leaves_nothing_to_its_time(how: str) -> None:
    async def main() -> None:
        polls, loop = LongPolls(), asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        task = asyncio.create_task(polls.until(waiter, 0.11))
        other = asyncio.create_task(polls.until(loop.create_future(), 0.11))
        await asyncio.sleep(0)
        assert polls.waiting == 2
        if how == "served":
            waiter.set_result(None)
        elif how == "cancelled":
            task.cancel()
        else:
            polls.drain()
        await asyncio.wait([task])
        assert how == "drained" or polls.waiting == 1
        await other
        assert polls.waiting == 0
        assert polls.progress() is None

    asyncio.run(main())
