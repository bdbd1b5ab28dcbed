"""Threads in C that write files for an event loop, without the interpreter's lock (RFC 17).

A Python thread needs that lock to begin a call and to end it. A busy event loop gives it away for
microseconds at a time, in its system calls, and has it back before a waiting thread has woken up:
beside a loop whose turns take 70 µs a write of 0.2 ms took 30 to 230 ms.

1. A write goes to the thread that has least to do; a thread makes its writes in order.
2. What became of it is told on the loop, once, whatever becomes of its caller.
3. A thread begins with its first write, and ends at `end`, behind what was handed over. Where the
   process ends without, a write under way is cut off, as by a kill.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from functools import partial

from streamlog.runtime.buffers import Buffer

try:
    from streamlog.runtime import _native
except ImportError:  # There was no compiler, or this is no Linux.
    ARE_THERE = False
else:
    ARE_THERE = hasattr(_native, "WriterThread")

Done = Callable[[OSError | None, bool], None]
"""Called on the loop with the error, and whether all was written: then the sync has failed."""


class WriterThreads:
    """Up to `most` threads, used on one event loop at a time."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._threads: list[_Thread] = []
        self._loop: asyncio.AbstractEventLoop | None = None

    def write(
        self,
        descriptor: int,
        position: int,
        parts: Sequence[Buffer],
        done: Done,
        *,
        flags: int = 0,
        is_synced: bool = False,
    ) -> None:
        """Writes all parts one behind another. `flags`: of pwritev2; with RWF_DSYNC among them, or
        with `is_synced`, the bytes are durable when `done` is called without an error.

        The descriptor stays open until then. What is raised here began nothing: OSError (no thread
        can be begun), TypeError, MemoryError.
        """
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            for thread in self._threads:
                thread.leave(self._loop)
                thread.watch(loop)
            self._loop = loop
        thread = self._least_busy(loop)
        thread.write(descriptor, position, parts, flags, is_synced, done)

    def _least_busy(self, loop: asyncio.AbstractEventLoop) -> _Thread:
        thread = min(self._threads, key=lambda one: one.under_way, default=None)
        if thread is None or (thread.under_way and len(self._threads) < self._most):
            thread = _Thread()
            thread.watch(loop)
            self._threads.append(thread)
        return thread

    async def end(self) -> None:
        """Waits for what was handed over, and tells what became of it."""
        threads, self._threads = self._threads, []
        for thread in threads:
            thread.leave(self._loop)
            left = await asyncio.get_running_loop().run_in_executor(None, thread.end)
            thread.tell(left)


class _Thread:
    def __init__(self) -> None:
        self._thread: _native.WriterThread[Done] = _native.WriterThread()
        self.under_way = 0

    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.add_reader(self._thread.fileno(), self._look)

    def leave(self, loop: asyncio.AbstractEventLoop | None) -> None:
        if loop is not None and not loop.is_closed():
            loop.remove_reader(self._thread.fileno())

    def write(
        self,
        descriptor: int,
        position: int,
        parts: Sequence[Buffer],
        flags: int,
        is_synced: bool,
        done: Done,
    ) -> None:
        self._thread.submit(descriptor, position, parts, flags, is_synced, done)
        self.under_way += 1

    def _look(self) -> None:
        self.tell(self._thread.take())

    def tell(self, ended: Sequence[tuple[Done, int, bool]]) -> None:
        self.under_way -= len(ended)
        for number, (done, error, is_written) in enumerate(ended):
            try:
                done(OSError(error, os.strerror(error)) if error else None, is_written)
            except BaseException:
                # The others hear of theirs; this error is the loop's to report.
                self.under_way += len(ended) - number - 1
                asyncio.get_running_loop().call_soon(partial(self.tell, ended[number + 1 :]))
                raise

    def end(self) -> Sequence[tuple[Done, int, bool]]:
        """Blocks until the thread has written what it has."""
        return self._thread.close() or ()
