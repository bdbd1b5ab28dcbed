"""Writes that run to their end although their caller is cancelled."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

from streamlog.runtime.concurrency.cancellation import to_its_end


@pytest.mark.parametrize("cancellations", [1, 2])
def test_a_write_that_fails_behind_its_cancelled_caller_is_no_error_of_nobody(
    cancellations: int,
) -> None:
    async def body() -> None:
        may_end, unheard = asyncio.Event(), list[dict[str, Any]]()
        asyncio.get_running_loop().set_exception_handler(lambda _, told: unheard.append(told))

        async def write() -> None:
            await may_end.wait()
            raise OSError("no room")

        caller = asyncio.ensure_future(to_its_end(write()))
        for _ in range(cancellations):
            await asyncio.sleep(0)
            caller.cancel()
        await asyncio.sleep(0)
        may_end.set()
        await asyncio.wait({caller})
        assert caller.cancelled()
        del caller
        for _ in range(3):
            await asyncio.sleep(0)
        gc.collect()
        assert unheard == []

    asyncio.run(body())
