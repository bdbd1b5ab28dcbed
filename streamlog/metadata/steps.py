"""Work cut into steps, so that nothing holds the event loop, or the interpreter, for long.

A step is at most about 1 ms. `run_breathing` takes the steps on the loop and lets other tasks run
in between; `run_offloaded` takes each in the CPU lane, for even there a long run of bytecode keeps
the loop's thread waiting for the interpreter.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import Generic, TypeVar

from streamlog.runtime.offload import Lane, Offload

T = TypeVar("T")
Steps = Generator[None, None, T]


def run(steps: Steps[T]) -> T:
    """All steps at once."""
    done = _Done[T]()
    while not _step(steps, done):
        pass
    return done.value


async def run_breathing(steps: Steps[T]) -> T:
    """All steps on the loop; other tasks run between them."""
    done = _Done[T]()
    while True:
        if _step(steps, done):
            return done.value
        await asyncio.sleep(0)


async def run_offloaded(offload: Offload, steps: Steps[T]) -> T:
    """All steps in the CPU lane, one call each."""
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
