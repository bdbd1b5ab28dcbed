"""Awaitables at once: all of them run to their end before an error of one is raised."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from typing import TypeVar

T = TypeVar("T")


async def all_of(work: Iterable[Awaitable[T]]) -> list[T]:
    """The results, in order; for few items, which may share one commit below."""
    results = await asyncio.gather(*work, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return [result for result in results if not isinstance(result, BaseException)]


async def each(slots: asyncio.Semaphore, work: Iterable[Awaitable[object]]) -> None:
    """A bounded number at a time."""

    async def one(item: Awaitable[object]) -> None:
        async with slots:
            await item

    await all_of(one(item) for item in work)


async def in_turn(at_once_max: int, work: Iterable[Awaitable[None]]) -> None:
    """A bounded number at a time, each taken from `work` when its turn comes; they raise nothing.

    For very many: `at_once_max` tasks take one item after another. With a task for each item that
    waits at a semaphore, every release would look through all that were woken before it.
    """
    items = iter(work)

    async def take() -> None:
        for item in items:
            await item

    await all_of(take() for _ in range(at_once_max))
