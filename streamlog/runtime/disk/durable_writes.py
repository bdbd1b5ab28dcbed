"""Writes that an event loop hands over, each durable when it has ended.

Files of a SystemDisk are written by threads in C (`writer_threads`); where it was not compiled,
and for files of any other kind, Lane.WAL does it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from streamlog.errors import Closed
from streamlog.runtime.buffers import Buffer
from streamlog.runtime.disk.interface import DiskFile
from streamlog.runtime.disk.system_disk import NOT_SUPPORTED, SystemFile
from streamlog.runtime.offload import Lane, Offload, writers_of

Done = Callable[[BaseException | None], None]
"""Called on the loop with None, or with what the write has raised."""


class DurableWrites:
    """Of one log, on one event loop."""

    def __init__(self, offload: Offload) -> None:
        self._offload = offload
        self._threads = writers_of(offload, Lane.WAL)
        self._calls: set[asyncio.Future[None]] = set()

    def start(self, file: DiskFile, position: int, parts: Sequence[Buffer], done: Done) -> None:
        """As `file.write_sync`; a write begins when a thread is free. Those under way together end
        in any order, and need a descriptor each (`wal/writer.py` says why).

        It runs to its end whatever becomes of the caller, and `done` is called once, later. What
        is raised here began nothing.
        """
        if self._threads is None or type(file) is not SystemFile or not file.flags:
            self._in_lane(file, position, parts, done)
            return

        def ended(error: OSError | None, is_written: bool) -> None:
            if error is not None and error.errno in NOT_SUPPORTED and not is_written:
                # `write_sync` finds a way that this file system has, and `flags` then say so.
                self._in_lane(file, position, parts, done)
            else:
                done(error)

        if not self._threads.write(file.descriptor, position, parts, ended, flags=file.flags):
            self._in_lane(file, position, parts, done)

    def _in_lane(self, file: DiskFile, position: int, parts: Sequence[Buffer], done: Done) -> None:
        call = asyncio.ensure_future(self._offload.run(Lane.WAL, file.write_sync, position, parts))
        self._calls.add(call)

        def ended(call: asyncio.Future[None]) -> None:
            self._calls.discard(call)
            done(Closed("the node stops") if call.cancelled() else call.exception())

        call.add_done_callback(ended)
