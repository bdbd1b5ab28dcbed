"""The work of one request on many partitions, several of them at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

T = TypeVar("T")

AT_ONCE_MAX = 32
"""Less than log.opens_at_once_max, so that one large request does not take all opens."""


async def in_order(
    work: Sequence[Coroutine[Any, Any, T]], at_once_max: int = AT_ONCE_MAX
) -> list[T]:
    """The results, in the order of `work`, whose coroutines run `at_once_max` at a time.

    Opening a partition waits for the store a few times; thousands opened one after another would
    add up all these waits. The first error cancels the rest, and so does cancellation.
    """
    if len(work) == 1:
        return [await work[0]]
    results: dict[int, T] = {}
    items = iter(enumerate(work))

    async def take() -> None:
        for index, job in items:
            results[index] = await job

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(at_once_max, len(work))):
                group.create_task(take())
    except BaseExceptionGroup as errors:
        raise _first(errors) from errors
    finally:
        for _, job in items:
            job.close()
    return [results[number] for number in range(len(work))]


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
