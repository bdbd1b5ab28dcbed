"""A request that is slow is sent a second time; the first success counts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, TypeVar

from streamlog.errors import Closed, Internal, StreamlogError
from streamlog.runtime.background import Background
from streamlog.runtime.clock import Clock

T = TypeVar("T")


class Sent(NamedTuple):
    """Which of the two answered, and how long that one took.

    Waiting for the other is no part of it: else stragglers would pass for what is usual, and the
    next ones be waited for longer and longer.
    """

    is_second: bool
    seconds: float


async def hedged(
    background: Background,
    request: Callable[[], Awaitable[T]],
    delay_s: float,
    may_repeat: Callable[[], bool],
    clock: Clock,
) -> tuple[T, Sent]:
    """`request()`, and after `delay_s` without an answer another one if `may_repeat()`.

    The loser is cancelled, and so are both when the caller is. Errors: the first request's, when
    all have failed; Closed, when `background` ends first.
    """
    attempts = [_start(background, request)]
    began = [clock.monotonic()]
    try:
        await asyncio.wait(attempts, timeout=delay_s)
        if not attempts[0].done() and may_repeat():
            attempts.append(_start(background, request))
            began.append(clock.monotonic())
        winner = await _first(attempts)
    finally:
        for attempt in attempts:
            attempt.cancel()
    number = attempts.index(winner)
    return winner.result(), Sent(number > 0, clock.monotonic() - began[number])


def _start(background: Background, request: Callable[[], Awaitable[T]]) -> asyncio.Future[T]:
    answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()

    async def attempt() -> None:
        try:
            result = await request()
        except StreamlogError as error:
            if not answer.done():
                answer.set_exception(error)
        else:
            if not answer.done():
                answer.set_result(result)

    task = background.spawn(attempt(), name="attempt")

    def answered(answer: asyncio.Future[T]) -> None:
        if answer.cancelled():
            task.cancel()
        else:
            # Retrieved here too: of two failures one is nobody's.
            answer.exception()

    def ended(task: asyncio.Task[None]) -> None:
        if answer.done():
            return
        if task.cancelled():
            answer.set_exception(Closed("closed while a request was under way"))
        else:
            answer.set_exception(Internal(f"a request failed by a bug: {task.exception()!r}"))

    answer.add_done_callback(answered)
    task.add_done_callback(ended)
    return answer


async def _first(attempts: Sequence[asyncio.Future[T]]) -> asyncio.Future[T]:
    """The first that succeeds; the first one of all when none has."""
    pending = set(attempts)
    while pending:
        _, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        for attempt in attempts:
            if attempt.done() and attempt.exception() is None:
                return attempt
    return attempts[0]
