"""An object that is written to its folder while it grows: 1 MiB of it is held.

1. Its bytes go into a temporary file, which `finish` syncs and renames, as a put does.
2. A call that is cancelled runs to its end in its thread; whoever comes next waits for it there.
3. A process that dies leaves the temporary file, which nobody has locked then: the next open
   deletes it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from streamlog.errors import Closed
from streamlog.objectstore.interface import ObjectInfo
from streamlog.objectstore.local.files import LocalFiles, NewFile
from streamlog.runtime.buffers import Buffer
from streamlog.runtime.clock import Clock
from streamlog.runtime.offload import Lane, Offload


class LocalUpload:
    """An ObjectUpload. One call at a time."""

    def __init__(
        self,
        files: LocalFiles,
        key: str,
        about_bytes: int,
        offload: Offload,
        lane: Lane,
        clock: Clock,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        """`spawn` runs what `give_up` leaves to do."""
        self._files = files
        self._key = key
        self._about_bytes = about_bytes
        self._offload = offload
        self._lane = lane
        self._clock = clock
        self._spawn = spawn
        self._new: NewFile | None = None
        self._is_given_up = self._has_ended = False
        self._turn = threading.Lock()

    async def write(self, parts: Sequence[Buffer]) -> None:
        """As ObjectUpload.write."""
        await self._offload.run(self._lane, self._write, parts)

    async def finish(self) -> ObjectInfo:
        """As ObjectUpload.finish."""
        return await self._offload.run(self._lane, self._finish, self._clock.now_ms())

    def give_up(self) -> None:
        """As ObjectUpload.give_up."""
        if not (self._has_ended or self._is_given_up):
            self._is_given_up = True
            self._spawn(self._offload.run(self._lane, self._give_up))

    def _write(self, parts: Sequence[Buffer]) -> None:
        with self._turn:
            self._files.add(self._begun(), parts)

    def _finish(self, now_ms: int) -> ObjectInfo:
        with self._turn:
            try:
                return self._files.finish(self._begun(), now_ms)
            finally:
                self._end()

    def _give_up(self) -> None:
        with self._turn:
            self._end()

    def _begun(self) -> NewFile:
        if self._is_given_up or self._has_ended:
            raise Closed(f"the upload of {self._key} was given up, or has ended")
        if self._new is None:
            self._new = self._files.begin(self._key, self._about_bytes)
        return self._new

    def _end(self) -> None:
        self._has_ended = True
        new, self._new = self._new, None
        if new is not None:
            self._files.give_up(new)
