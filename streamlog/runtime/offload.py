"""Runs work that blocks, or takes long, off the event loop.

A call that may take more than 2 ms (fdatasync, a synced RocksDB write, zstd, a store request, a CRC
over more than 2 MiB) goes through `Offload.run`, never directly. Under simulation the same call
runs inline after a virtual delay.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import Enum
from typing import Protocol, TypeVar, TypeVarTuple

from streamlog.runtime import writer_threads
from streamlog.runtime.threads import Arrivals, LaneThreads
from streamlog.runtime.writer_threads import WriterThreads

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class Lane(Enum):
    """Kinds of work; each has its own bounded pool, so that one kind cannot starve another."""

    WAL = "wal"
    """Writes and syncs of the local log, up to four at a time."""
    FILES = "files"
    """Writes and syncs of logs in local files, each file by one thread at a time."""
    META = "meta"
    """RocksDB: one thread, in order."""
    STORE = "store"
    """Object store requests, except GETs of remote stores. Local GETs are decoded here, too."""
    GET = "get"
    """GETs of remote stores, and decoding of their bytes."""
    READ = "read"
    """Decoding of blocks for catch-up reads."""
    CPU = "cpu"
    """Compression, decoding, building of objects and checkpoints."""
    TLS = "tls"
    """Files of certificates, on a disk that may hang: one thread."""


class Offload(Protocol):
    async def run(self, lane: Lane, fn: Callable[[*Ts], T], *args: *Ts) -> T:
        """`fn(*args)` off the loop. Exceptions propagate.

        Cancellation stops the wait: `fn` runs to its end if it has begun, and may be left out if it
        has not.
        """
        ...

    async def close(self) -> None:
        """Waits for work under way, then frees the threads."""
        ...


THREADS: dict[Lane, int] = {
    Lane.WAL: 4,
    Lane.FILES: 4,
    Lane.META: 1,
    Lane.STORE: 8,
    Lane.GET: 8,
    Lane.READ: 4,
    Lane.CPU: 2,
    Lane.TLS: 1,
}


class ThreadOffload:
    """Offload to named threads, made when first used. Used on one event loop at a time."""

    def __init__(self, threads: dict[Lane, int] | None = None) -> None:
        self._numbers = {**THREADS, **(threads or {})}
        self._lanes: dict[Lane, LaneThreads] = {}
        self._arrivals: Arrivals | None = None
        self._writers: dict[Lane, WriterThreads] = {}

    def writers(self, lane: Lane) -> WriterThreads | None:
        """As many threads in C as the lane has in Python; None where they were not compiled."""
        if not writer_threads.ARE_THERE:
            return None
        if lane not in self._writers:
            self._writers[lane] = WriterThreads(self._numbers[lane])
        return self._writers[lane]

    async def run(self, lane: Lane, fn: Callable[[*Ts], T], *args: *Ts) -> T:
        threads = self._lanes.get(lane)
        if threads is None:
            threads = LaneThreads(f"streamlog-{lane.value}", self._numbers[lane])
            self._lanes[lane] = threads
        arrivals, loop = self._arrivals, asyncio.get_running_loop()
        if arrivals is None or arrivals.loop is not loop:
            arrivals = self._arrivals = Arrivals(loop)
        return await threads.call(arrivals, fn, args)

    async def close(self) -> None:
        # First: a write that a thread in C cannot do goes to a lane.
        for writers in list(self._writers.values()):
            await writers.end()
        lanes, self._lanes = self._lanes, {}
        arrivals, self._arrivals = self._arrivals, None
        loop = asyncio.get_running_loop()
        for threads in lanes.values():
            await loop.run_in_executor(None, threads.end)
        if arrivals is not None:
            arrivals.close()


def writers_of(offload: Offload, lane: Lane) -> WriterThreads | None:
    """What writes files past the lane's own threads; None: they do it, as in the simulation and
    where a class of its own says how calls are made."""
    return offload.writers(lane) if type(offload) is ThreadOffload else None


async def run_owned(
    offload: Offload, lane: Lane, fn: Callable[[], T], undo: Callable[[T], object]
) -> T:
    """Opens something with `fn()` off the loop; the caller closes the result.

    Cancellation does not stop `fn`, whose result would then have no owner: `undo(result)` closes
    it, off the loop too, before the cancellation is raised.
    """
    work = asyncio.ensure_future(offload.run(lane, fn))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        await asyncio.wait({work})
        if not work.cancelled() and work.exception() is None:
            await offload.run(lane, undo, work.result())
        raise
