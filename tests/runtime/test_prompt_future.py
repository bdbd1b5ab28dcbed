"""Waits that end in the turn of the loop in which their future does, and answers of runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, ParamSpec

import pytest

from streamlog.errors import Closed
from streamlog.runtime.concurrency.prompt_future import PromptFuture, ended_within
from streamlog.runtime.concurrency.run_ack import RunAck

P = ParamSpec("P")

LONG_S = 3600.0
Future = asyncio.Future[Any]
ENDS: list[Callable[[Future], object]] = [
    lambda future: future.set_result(1),
    lambda future: future.set_exception(Closed("gone")),
    lambda future: future.cancel(),
]


def on_a_loop(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    @wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        asyncio.run(test(*args, **kwargs))

    return run


def prompt() -> PromptFuture[int]:
    return PromptFuture(loop=asyncio.get_running_loop())


async def turns_until(task: asyncio.Task[bool]) -> int:
    """Turns of the loop until the task has ended."""
    for turn in range(20):
        if task.done():
            return turn
        await asyncio.sleep(0)
    raise AssertionError("the task has not ended")


async def waiting(future: Future) -> asyncio.Task[bool]:
    """A task that waits for the future already."""
    task = asyncio.create_task(ended_within(future, LONG_S))
    await asyncio.sleep(0)
    assert not task.done()
    return task


@pytest.mark.parametrize("end", ENDS)
@on_a_loop
async def test_a_waiter_of_a_prompt_future_runs_in_the_next_turn(
    end: Callable[[Future], object],
) -> None:
    future = prompt()
    task = await waiting(future)
    end(future)
    assert await turns_until(task) == 1
    assert task.result()
    if not future.cancelled():
        future.exception()


@pytest.mark.parametrize("end", ENDS)
@on_a_loop
async def test_a_wait_for_any_other_future_ends_too(end: Callable[[Future], object]) -> None:
    future: Future = asyncio.get_running_loop().create_future()
    task = await waiting(future)
    end(future)
    await turns_until(task)
    assert task.result()
    if not future.cancelled():
        future.exception()


@on_a_loop
async def test_a_second_waiter_is_told_as_well() -> None:
    future = prompt()
    first, second = await waiting(future), await waiting(future)
    future.set_result(1)
    assert await first
    assert await second


@on_a_loop
async def test_the_future_goes_on_when_the_time_is_over_or_the_wait_is_cancelled() -> None:
    future = prompt()
    assert not await ended_within(future, 0.0)
    task = await waiting(future)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not future.done()
    again = await waiting(future)
    future.set_result(7)
    assert await again
    assert await future == 7


@on_a_loop
async def test_a_future_that_has_ended_is_not_waited_for() -> None:
    future = prompt()
    future.set_result(1)
    assert await turns_until(asyncio.create_task(ended_within(future, LONG_S))) == 1


@on_a_loop
async def test_a_run_tells_its_follower_at_once_and_only_when_it_is_told_to() -> None:
    ack, told = RunAck(), []
    ack.notify(lambda: told.append(ack.durable))
    reached = asyncio.create_task(ack.reached(3))
    ack.count(2)
    ack.count(1)
    await asyncio.sleep(0)
    assert told == []
    ack.tell()
    assert told == [3]
    assert await reached == 3
    ack.tell()
    await asyncio.sleep(0)
    assert told == [3]


@on_a_loop
async def test_a_follower_that_raises_is_told_of_and_holds_no_other_run_up() -> None:
    told: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    ack = RunAck()

    def raises() -> None:
        raise ValueError("a mistake")

    ack.notify(raises)
    ack.count(1)
    ack.tell()
    assert "a mistake" in told[0]["message"]
