"""Many awaitables at once, a bounded number at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable


async def each(slots: asyncio.Semaphore, work: Iterable[Awaitable[object]]) -> None:
    """Runs all of it to its end; then raises the first error, if there was one."""

    async def one(item: Awaitable[object]) -> None:
        async with slots:
            await item

    results = await asyncio.gather(*(one(item) for item in work), return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
