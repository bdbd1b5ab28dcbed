"""A pipeline whose client sends and does not read."""

from __future__ import annotations

import asyncio

import pytest
from prometheus_client import CollectorRegistry

from streamlog.server.grpc.log import Refusal
from streamlog.server.limits.in_flight import ConnectionBudget
from streamlog.server.limits.pipeline import Answer, Drain, Pipeline
from streamlog.server.metrics import ServerMetrics


def test_tiny_requests_are_charged_an_overhead() -> None:
    async def main() -> None:
        taken = written = 0
        budget = ConnectionBudget(1 << 20, ServerMetrics(CollectorRegistry()))
        may_write = asyncio.Event()

        async def read() -> bytes | None:
            nonlocal taken
            if taken == 10_000:
                return None
            taken += 1
            await asyncio.sleep(0)
            return b"tiny"

        async def write(_: bytes) -> None:
            nonlocal written
            await may_write.wait()
            written += 1

        async def start(_: bytes) -> Answer:
            return Refusal(b"a long reason")

        pipeline = asyncio.create_task(Pipeline(read, write, start, budget, Drain()).run())
        for _ in range(5000):
            await asyncio.sleep(0)
        assert 500 < taken < 1100
        may_write.set()
        await pipeline
        assert (taken, written, budget.used) == (10_000, 10_000, 0)

    asyncio.run(main())


@pytest.mark.parametrize("later", [False, True])
def test_room_is_not_given_to_a_call_that_was_cancelled_in_the_same_moment(later: bool) -> None:
    """That room would never be given back, and the connection would stand still."""

    async def main() -> None:
        budget = ConnectionBudget(10, ServerMetrics(CollectorRegistry()))
        await budget.take(10)
        left = [asyncio.create_task(budget.take(10)) for _ in range(3)]
        kept = asyncio.create_task(budget.take(10))
        await asyncio.sleep(0)
        for task in left:
            task.cancel()
        if later:
            await asyncio.wait(left)
        budget.release(10)
        await asyncio.wait([*left, kept])
        assert all(task.cancelled() for task in left)
        await kept
        assert budget.used == 10
        budget.release(10)
        assert budget.try_take(10)

    asyncio.run(asyncio.wait_for(main(), 30))
