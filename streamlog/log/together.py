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
