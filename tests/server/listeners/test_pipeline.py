"""A pipeline whose client sends and does not read, or whose node drains."""

from __future__ import annotations

import asyncio

import pytest
from prometheus_client import CollectorRegistry

from streamlog.errors import Closed
from streamlog.server.grpc.log import Refusal
from streamlog.server.limits.in_flight import Budgets, ConnectionBudget
from streamlog.server.limits.pipeline import Answer, Drain, Pipeline
from streamlog.server.metrics import ServerMetrics
from streamlog.server.services.records.long_polls import LongPolls


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


def test_a_connection_without_a_request_has_no_budget() -> None:
    """The budgets of all that ever connected would fill the memory."""
    budgets = Budgets(10, ServerMetrics(CollectorRegistry()))
    with budgets.of("ipv4:127.0.0.1:1") as first, budgets.of("ipv4:127.0.0.1:1") as second:
        assert first is second
    with budgets.of("ipv4:127.0.0.1:1") as later:
        assert later is not first


@pytest.mark.parametrize("is_draining_first", [False, True])
def test_a_call_that_begins_as_the_node_drains_ends_at_once(is_draining_first: bool) -> None:
    """It once waited for a reader that was cancelled before its first step, until the grace."""

    async def main() -> None:
        async def read() -> bytes | None:
            await asyncio.Event().wait()
            return None

        async def write(_: bytes) -> None:
            raise AssertionError("there is nothing to answer")

        async def start(_: bytes) -> Answer:
            raise AssertionError("there is no request")

        drain = Drain()
        budget = ConnectionBudget(1 << 20, ServerMetrics(CollectorRegistry()))
        call = asyncio.ensure_future(Pipeline(read, write, start, budget, drain).run())
        if not is_draining_first:
            asyncio.get_running_loop().call_soon(drain.start)
        else:
            drain.start()
        with pytest.raises(Closed, match="shutting down"):
            await asyncio.wait_for(call, 30)

    asyncio.run(main())


@pytest.mark.filterwarnings("error")
def test_a_long_poll_of_a_draining_node_leaves_no_watch_behind() -> None:
    async def main() -> None:
        async def watch() -> None:
            await asyncio.Event().wait()

        polls = LongPolls()
        polls.drain()
        await polls.wait([watch()], 60)

    asyncio.run(main())
