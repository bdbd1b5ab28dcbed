"""What one request asks of many partitions, several of them at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

T = TypeVar("T")

AT_ONCE_MAX = 32
"""Less than log.opens_at_once_max, so that one large request leaves turns to other requests."""


async def in_order(work: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """The results, in the order of `work`, whose coroutines run AT_ONCE_MAX at a time.

    A partition that is to be opened waits for the store a few times: one after another, thousands
    of them take as long as all their waits together. The first error ends the others; so does
    cancellation.
    """
    if len(work) == 1:
        return [await work[0]]
    results: dict[int, T] = {}
    items = iter(enumerate(work))

    async def take() -> None:
        for number, one in items:
            results[number] = await one

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(AT_ONCE_MAX, len(work))):
                group.create_task(take())
    except BaseExceptionGroup as errors:
        raise _first(errors) from errors
    finally:
        for _, one in items:
            one.close()
    return [results[number] for number in range(len(work))]


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
