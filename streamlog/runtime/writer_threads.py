"""Threads in C that write files for an event loop, without the interpreter's lock (RFC 17).

A Python thread needs that lock to begin a call and to end it. A busy event loop gives it away for
microseconds at a time, in its system calls, and has it back before a waiting thread has woken up:
beside a loop whose turns take 70 µs a write of 0.2 ms took 30 to 230 ms.

1. A write goes to a thread that has none, or waits for the first that has ended.
2. What became of it is told on the loop, once, whatever becomes of its caller.
3. A thread begins with its first write, and ends at `end`, behind what was handed over. Where the
   process ends without, a write under way is cut off, as by a kill.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from streamlog.runtime.buffers import Buffer

try:
    from streamlog.runtime import _native
except ImportError:  # There was no compiler, or this is no Linux.
    ARE_THERE = False
else:
    ARE_THERE = hasattr(_native, "WriterThread")

Done = Callable[[OSError | None, bool], None]
"""Called on the loop with the error, and whether all was written: then the sync has failed."""


_Ended = tuple[Done, int, bool]

log = logging.getLogger(__name__)

WARN_EVERY_S = 60.0


class _Write(NamedTuple):
    descriptor: int
    position: int
    parts: Sequence[Buffer]
    flags: int
    is_synced: bool
    done: Done


class WriterThreads:
    """Up to `most` threads, used on one event loop at a time."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._threads: list[_Thread] = []
        self._waiting: deque[_Write] = deque()
        """While each thread has a write: the first that has ended takes the next one."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._warned_until = float("-inf")

    @property
    def count(self) -> int:
        """Threads that have begun and not ended."""
        return len(self._threads)

    def write(
        self,
        descriptor: int,
        position: int,
        parts: Sequence[Buffer],
        done: Done,
        *,
        flags: int = 0,
        is_synced: bool = False,
    ) -> bool:
        """Writes all parts one behind another. `flags`: of pwritev2; with RWF_DSYNC among them, or
        with `is_synced`, the bytes are durable when `done` is called without an error.

        The descriptor stays open until then. False: nothing was begun, because the system gives no
        thread. What is raised here began nothing, either: TypeError, MemoryError.
        """
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            for thread in self._threads:
                thread.leave(self._loop)
                thread.watch(loop)
            self._loop = loop
        write = _Write(descriptor, position, parts, flags, is_synced, done)
        for thread in self._threads:
            if not thread.under_way:
                thread.write(write)
                return True
        if len(self._threads) < self._most:
            try:
                thread = _Thread(self._freed)
            except OSError as error:
                self._refused(error)
            else:
                thread.watch(loop)
                self._threads.append(thread)
                thread.write(write)
                return True
        if self._threads:
            self._waiting.append(write)
        return bool(self._threads)

    def _refused(self, error: OSError) -> None:
        """Says once in a while that the system gives no thread: each write asks for one."""
        now = asyncio.get_running_loop().time()
        if now >= self._warned_until:
            self._warned_until = now + WARN_EVERY_S
            log.warning("no thread for writing files could be begun: %s", error)

    def _freed(self, thread: _Thread) -> None:
        """Never raises: a write that waited has a caller that hears of it by `done` alone."""
        while self._waiting and not thread.under_way:
            self._submit(thread, self._waiting.popleft())

    def _submit(self, thread: _Thread, write: _Write) -> None:
        try:
            thread.write(write)
        except Exception as error:  # noqa: BLE001 - the caller's
            told = OSError(errno.EIO, f"the write could not be handed over: {error!r}")
            asyncio.get_running_loop().call_soon(write.done, told, False)

    async def end(self) -> None:
        """Waits for what was handed over, and tells what became of it, also where the wait is
        cancelled. Threads begin again with the next write."""
        threads, self._threads = self._threads, []
        while threads and self._waiting:
            self._submit(threads[0], self._waiting.popleft())
        loop, endings = asyncio.get_running_loop(), []
        for thread in threads:
            thread.leave(self._loop)
            ending = loop.run_in_executor(None, thread.end)
            ending.add_done_callback(_tell_left)
            endings.append(ending)
        if endings:
            await asyncio.shield(asyncio.wait(endings))


class _Thread:
    def __init__(self, freed: Callable[[_Thread], None]) -> None:
        """`freed` may give it the next write. Errors: OSError."""
        self._thread: _native.WriterThread[Done] = _native.WriterThread()
        self._freed = freed
        self.under_way = 0

    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.add_reader(self._thread.fileno(), self._look)

    def leave(self, loop: asyncio.AbstractEventLoop | None) -> None:
        if loop is not None and not loop.is_closed():
            loop.remove_reader(self._thread.fileno())

    def write(self, write: _Write) -> None:
        descriptor, position, parts, flags, is_synced, done = write
        self._thread.submit(descriptor, position, parts, flags, is_synced, done)
        self.under_way += 1

    def _look(self) -> None:
        ended = self._thread.take()
        self.under_way -= len(ended)
        if not self.under_way:
            self._freed(self)
        _tell(ended)

    def end(self) -> Sequence[_Ended]:
        """Blocks until the thread has written what it has."""
        ended: list[_Ended] = []
        while (more := self._thread.close()) is not None:
            ended += more
        return ended


def _tell(ended: Sequence[_Ended]) -> None:
    for number, (done, error, is_written) in enumerate(ended):
        try:
            done(OSError(error, os.strerror(error)) if error else None, is_written)
        except BaseException:
            # The others hear of theirs; this error is the loop's to report.
            asyncio.get_running_loop().call_soon(_tell, ended[number + 1 :])
            raise


def _tell_left(ending: asyncio.Future[Sequence[_Ended]]) -> None:
    _tell(ending.result())
