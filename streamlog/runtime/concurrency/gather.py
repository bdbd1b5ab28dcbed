"""Runs awaitables concurrently; all of them run to their end before the first error is raised."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from typing import TypeVar

T = TypeVar("T")


async def gather_all(work: Iterable[Awaitable[T]]) -> list[T]:
    """Returns the results in order. One task for each item: use it for few items."""
    results = await asyncio.gather(*work, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return [result for result in results if not isinstance(result, BaseException)]


async def gather_limited(slots: asyncio.Semaphore, work: Iterable[Awaitable[object]]) -> None:
    """As `gather_all`; each item holds one of `slots` while it runs."""

    async def run(item: Awaitable[object]) -> None:
        async with slots:
            await item

    await gather_all(run(item) for item in work)


async def run_limited(concurrency_max: int, work: Iterable[Awaitable[None]]) -> None:
    """Runs very many items, at most `concurrency_max` at a time. The items must not raise.

    `concurrency_max` tasks take one item after another from `work`. A task for each item, waiting
    at a semaphore, would cost quadratic time: each release looks at all waiters woken before it.
    """
    items = iter(work)

    async def worker() -> None:
        for item in items:
            await item

    await gather_all(worker() for _ in range(concurrency_max))
