"""A future whose waiter is woken in the turn of the loop in which it ends, and a wait with a bound.

asyncio calls what waits for a future in the next turn, and a wait with a bound ends in the turn
after that. A turn costs some 10 µs: nothing for one call, much for each small request.
"""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar

T = TypeVar("T")

_set_result = asyncio.Future.set_result
"""Called for each append: `super()` costs as much again."""


class PromptFuture(asyncio.Future[T]):
    """A future that tells one `ended_within` at once that it has ended."""

    _waiter: asyncio.Future[None] | None = None

    def set_result(self, result: T, /) -> None:
        _set_result(self, result)
        if self._waiter is not None:
            _end(self._waiter)

    def set_exception(self, exception: type | BaseException, /) -> None:
        super().set_exception(exception)
        if self._waiter is not None:
            _end(self._waiter)

    def cancel(self, msg: Any | None = None) -> bool:
        is_cancelled = super().cancel(msg=msg)
        if self._waiter is not None:
            _end(self._waiter)
        return is_cancelled

    def tell(self, waiter: asyncio.Future[None]) -> bool:
        """Ends `waiter` when this future ends; False: another one waits already."""
        if self._waiter is not None:
            return False
        self._waiter = waiter
        return True

    def forget(self) -> None:
        """Undoes `tell`."""
        self._waiter = None


async def ended_within(future: asyncio.Future[Any], wait_s: float) -> bool:
    """Whether the future has ended, once it has, or after `wait_s` seconds.

    The future goes on after the time and after a cancellation. Its outcome is not looked at.
    """
    if future.done():
        return True
    loop = asyncio.get_running_loop()
    waiter: asyncio.Future[None] = loop.create_future()

    def ended(_: object) -> None:
        _end(waiter)

    prompt = future if isinstance(future, PromptFuture) and future.tell(waiter) else None
    if prompt is None:
        future.add_done_callback(ended)
    timer = loop.call_later(wait_s, _end, waiter)
    try:
        await waiter
    finally:
        timer.cancel()
        if prompt is not None:
            prompt.forget()
        else:
            future.remove_done_callback(ended)
    return future.done()


def _end(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
