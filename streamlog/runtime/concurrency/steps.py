"""Work cut into steps, so that nothing holds the event loop, or the interpreter, for long.

A step takes at most about 1 ms. `run_cooperatively` runs the steps on the event loop and lets other
tasks run in between. `run_offloaded` runs each step as a call of its own in the CPU lane: even in
another thread, a long run of bytecode keeps the loop waiting for the interpreter lock.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import Generic, TypeVar

from streamlog.runtime.offload import Lane, Offload

T = TypeVar("T")
Steps = Generator[None, None, T]


def run(steps: Steps[T]) -> T:
    """Runs all steps at once."""
    done = _Done[T]()
    while not _step(steps, done):
        pass
    return done.value


async def run_cooperatively(steps: Steps[T]) -> T:
    """Runs all steps on the loop; other tasks run between them."""
    done = _Done[T]()
    while True:
        if _step(steps, done):
            return done.value
        await asyncio.sleep(0)


async def run_offloaded(offload: Offload, steps: Steps[T]) -> T:
    """Runs each step as one call in the CPU lane."""
    done = _Done[T]()
    while not await offload.run(Lane.CPU, _step, steps, done):
        pass
    return done.value


class _Done(Generic[T]):
    value: T


def _step(steps: Steps[T], done: _Done[T]) -> bool:
    try:
        next(steps)
    except StopIteration as end:
        done.value = end.value
        return True
    return False
