"""How long a coroutine holds the event loop: the time of its steps, without that of its waits.

A task's time from begin to end is mostly time in which others run. So each step, from one await
that waits to the next, is measured by itself. What the coroutine hands to other tasks or threads is
not counted.
"""

from __future__ import annotations

from collections.abc import Coroutine, Generator
from typing import Any, Generic, TypeVar

from streamlog.runtime.clock import Clock

T = TypeVar("T")


class LoopTime(Generic[T]):
    """Await it once in place of `work`; `seconds` is the time until then, or so far."""

    __slots__ = ("_clock", "_work", "seconds")

    def __init__(self, work: Coroutine[Any, Any, T], clock: Clock) -> None:
        self._work = work
        self._clock = clock
        self.seconds = 0.0

    def __await__(self) -> Generator[Any, Any, T]:
        steps, clock = self._work, self._clock
        sent: Any = None
        thrown: BaseException | None = None
        while True:
            began = clock.monotonic()
            try:
                waits_for = steps.send(sent) if thrown is None else steps.throw(thrown)
            except StopIteration as end:
                result: T = end.value
                return result
            finally:
                self.seconds += clock.monotonic() - began
            sent = thrown = None
            try:
                sent = yield waits_for
            except BaseException as error:  # noqa: BLE001 - thrown on into the coroutine
                thrown = error
