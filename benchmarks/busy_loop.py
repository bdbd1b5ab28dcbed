"""Synced writes of 4 KiB that an event loop hands over while it is idle, and while it is busy.

The busy loop takes turns of some 60 µs of Python, with the system call that each turn makes in
between. A lane's thread in Python is compared with a thread in C (RFC 17), and both with the write
itself, on the same file, in turns.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

from benchmarks.report import Report, Row, percentile
from streamlog.runtime.offload import Lane, ThreadOffload

WRITE_BYTES = 4096
FILE_BYTES = 1 << 20
TURN_STEPS = 2000
ROUNDS = 3
WRITES = {"idle": 500, "busy": 60}
"""Of a round at scale 1. A lane's thread takes a tenth of a second beside a busy loop."""

Write = Callable[[int], Awaitable[None]]


def run(report: Report, folder: Path, *, scale: float) -> None:
    asyncio.run(_measured(report, folder / "file", scale))


async def _measured(report: Report, path: Path, scale: float) -> None:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
    os.pwrite(descriptor, os.urandom(FILE_BYTES), 0)
    os.fsync(descriptor)
    offload = ThreadOffload()
    ways: dict[str, Write] = {"lane": partial(_by_lane, offload, descriptor)}
    if offload.writers(Lane.WAL) is not None:
        ways["thread in C"] = partial(_by_thread, offload, descriptor)
    try:
        for loop, writes in WRITES.items():
            count = max(5, int(writes * scale))
            raw: list[float] = []
            times: dict[str, list[float]] = {name: [] for name in ways}
            for _ in range(ROUNDS):
                raw += [_timed_raw(descriptor, number) for number in range(count)]
                for name, write in ways.items():
                    times[name] += await _times(write, count, is_busy=loop == "busy")
            for name, found in times.items():
                case = (
                    f"synced write beside {'a busy' if loop == 'busy' else 'an idle'} loop, {name}"
                )
                row = Row("busy_loop", case, percentile(found, 0.5), "ms p50", less_is_better=True)
                row.floor, row.floor_name = percentile(raw, 0.5), "the write itself"
                row.facts = {"p99_ms": percentile(found, 0.99)}
                report.add(row)
    finally:
        await offload.close()
        os.close(descriptor)


def _place(number: int) -> int:
    return number * WRITE_BYTES % FILE_BYTES


def _write(descriptor: int, number: int) -> None:
    os.pwritev(descriptor, [bytes(WRITE_BYTES)], _place(number), os.RWF_DSYNC)


def _timed_raw(descriptor: int, number: int) -> float:
    began = time.perf_counter()
    _write(descriptor, number)
    return (time.perf_counter() - began) * 1e3


async def _by_lane(offload: ThreadOffload, descriptor: int, number: int) -> None:
    await offload.run(Lane.WAL, _write, descriptor, number)


async def _by_thread(offload: ThreadOffload, descriptor: int, number: int) -> None:
    threads = offload.writers(Lane.WAL)
    assert threads is not None
    ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def done(error: OSError | None, is_written: bool) -> None:
        if error is None:
            ended.set_result(None)
        else:
            ended.set_exception(error)

    data = [bytes(WRITE_BYTES)]
    threads.write(descriptor, _place(number), data, done, flags=os.RWF_DSYNC)
    await ended


async def _times(write: Write, count: int, *, is_busy: bool) -> list[float]:
    """Milliseconds of each write, one after another."""
    busy = asyncio.create_task(_turns()) if is_busy else None
    found: list[float] = []
    for number in range(count):
        began = time.perf_counter()
        await write(number)
        found.append((time.perf_counter() - began) * 1e3)
    if busy is not None:
        busy.cancel()
    return found


async def _turns() -> None:
    while True:
        for _ in range(TURN_STEPS):
            pass
        await asyncio.sleep(0)
