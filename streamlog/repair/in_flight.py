"""Work on many items, a bounded number at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from itertools import islice
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")

AT_ONCE = 16


async def in_flight(
    items: Iterable[T], work: Callable[[T], Awaitable[R]], *, at_once: int = AT_ONCE
) -> list[R]:
    """The results, in the order of the items. The first error cancels the work under way."""
    source, results = iter(items), []
    while batch := list(islice(source, 4 * at_once)):
        slots = asyncio.Semaphore(at_once)

        async def one(item: T, slots: asyncio.Semaphore = slots) -> R:
            async with slots:
                return await work(item)

        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(one(item)) for item in batch]
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from errors
        results += [task.result() for task in tasks]
    return results
