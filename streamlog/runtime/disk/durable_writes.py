"""Writes that an event loop hands over in order, each durable when it has ended.

Files of a SystemDisk are written by a thread in C, which never waits for the interpreter's lock
(RFC 17); where it was not compiled, and for files of any other kind, Lane.WAL does it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence

from streamlog.errors import Closed
from streamlog.runtime.buffers import Buffer
from streamlog.runtime.disk.interface import DiskFile
from streamlog.runtime.disk.system_disk import NOT_SUPPORTED, SystemFile
from streamlog.runtime.offload import Lane, Offload, ThreadOffload

try:
    from streamlog.runtime.disk import _native
except ImportError:  # There was no compiler, or this is no Linux.
    HAS_THREAD = False
else:
    HAS_THREAD = hasattr(_native, "WriterThread")

Done = Callable[[BaseException | None], None]
"""Called on the loop with None, or with what the write has raised."""


class DurableWrites:
    """Of one log, on one event loop."""

    def __init__(self, offload: Offload) -> None:
        self._offload = offload
        self._has_thread = HAS_THREAD and isinstance(offload, ThreadOffload)
        self._thread: _Thread | None = None
        self._calls: set[asyncio.Future[None]] = set()

    def start(self, file: DiskFile, position: int, parts: Sequence[Buffer], done: Done) -> None:
        """As `file.write_sync`; a write begins when the one before has ended.

        It runs to its end whatever becomes of the caller, and `done` is called once, later. What
        is raised here began nothing.
        """
        if not (self._has_thread and type(file) is SystemFile and file.flags):
            self._in_lane(file, position, parts, done)
            return
        if self._thread is None:
            self._thread = _Thread(asyncio.get_running_loop())

        def ended(error: BaseException | None) -> None:
            if isinstance(error, OSError) and error.errno in NOT_SUPPORTED:
                # `write_sync` finds a way that this file system has, and `flags` then say so.
                self._in_lane(file, position, parts, done)
            else:
                done(error)

        self._thread.write(file, position, parts, ended)

    def _in_lane(self, file: DiskFile, position: int, parts: Sequence[Buffer], done: Done) -> None:
        call = asyncio.ensure_future(self._offload.run(Lane.WAL, file.write_sync, position, parts))
        self._calls.add(call)

        def ended(call: asyncio.Future[None]) -> None:
            self._calls.discard(call)
            done(Closed("the node stops") if call.cancelled() else call.exception())

        call.add_done_callback(ended)

    def close(self) -> None:
        """Nothing is under way any more."""
        if self._thread is not None:
            self._thread.close()


class _Thread:
    """What the thread in C has done, on its way to the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._thread: _native.WriterThread[Done] = _native.WriterThread()
        self._loop = loop
        loop.add_reader(self._thread.fileno(), self._look)

    def write(self, file: SystemFile, position: int, parts: Sequence[Buffer], done: Done) -> None:
        self._thread.submit(file.descriptor, position, parts, file.flags, done)

    def _look(self) -> None:
        for done, number in self._thread.take():
            done(OSError(number, os.strerror(number)) if number else None)

    def close(self) -> None:
        if not self._loop.is_closed():
            self._loop.remove_reader(self._thread.fileno())
        self._thread.close()
