"""Cuts requests out of what the kernel delivers: each is an int32 size and as many bytes.

1. The kernel fills a scratch that all connections share: nothing of it outlives the callback.
2. A request that lies in it whole is copied out, once, into memory of its own size.
3. A larger one, or the last one if it is cut, gets its own memory, which the kernel then fills
   itself; that memory is what the log keeps.

A size that is no size, or an API that is not served, ends the connection before anything is
allocated. Memory that was allocated for bytes still to come is bounded for all connections
together: beyond that bound, and above 4 MiB, it is mapped, and costs nothing until bytes arrive.
"""

from __future__ import annotations

import asyncio
import mmap
from abc import abstractmethod
from collections.abc import Container, Sequence
from struct import Struct

from streamlog.runtime.allocator import uncleared
from streamlog.server.wrong_ports import FIRST_BYTES_MAX

SCRATCH_BYTES = 1024 * 1024
LARGE_BYTES = 192 * 1024
"""From this size on, a second read costs less than copying the request."""
HEAD_BYTES = 4 * 1024
"""What is read behind a large request. Another large one is likely to follow, and less of it has
to be copied out of the scratch then."""
MAPPED_FROM_BYTES = 4 * 1024 * 1024
UNFILLED_BYTES_MAX = 64 * 1024 * 1024
"""Bound on memory that waits for bytes, all connections together."""
RECEIVE_BYTES_MAX = 1024 * 1024
"""Bound on one read, so that a fast connection does not hold up the others."""
SIZE_BYTES = 4
HEADER_BYTES_MIN = 10
"""API, version, correlation id and an empty client id."""

_SIZE = Struct(">i")
_API = Struct(">h")


class ReceiveMemory:
    """What the connections of one listener share; made and used on one event loop."""

    def __init__(self, request_bytes_max: int) -> None:
        self.request_bytes_max = request_bytes_max
        self.apis: Container[int] = ()
        """Numbers of the APIs that are served."""
        self.scratch = bytearray(SCRATCH_BYTES)
        self.view = memoryview(self.scratch)
        self.head_view = self.view[:HEAD_BYTES]
        self.unfilled_bytes = 0

    def of(self, size_bytes: int, filled_bytes: int) -> tuple[memoryview, bool]:
        """Memory of that size, and whether it counts as unfilled from now on.

        Its bytes are those of whoever had it before, until the caller has filled them.
        """
        unfilled = size_bytes - filled_bytes
        if size_bytes > MAPPED_FROM_BYTES or self.unfilled_bytes + unfilled > UNFILLED_BYTES_MAX:
            return memoryview(mmap.mmap(-1, size_bytes)), False
        self.unfilled_bytes += unfilled
        return memoryview(uncleared(size_bytes)), True


class FrameReceiver(asyncio.BufferedProtocol):
    """One connection's incoming side. asyncio calls `get_buffer`, reads, and calls
    `buffer_updated` without anything in between, so the scratch can be shared."""

    __slots__ = ("_filled", "_frame", "_head", "_is_after_large", "_is_unfilled", "_memory")

    def __init__(self, memory: ReceiveMemory) -> None:
        self._memory = memory
        self._head = b""
        """Fewer bytes than are needed to know what a request is."""
        self._frame: memoryview | None = None
        """A request's own memory, until it is filled."""
        self._filled = 0
        self._is_unfilled = False
        """`_frame` counts in the memory's `unfilled_bytes`."""
        self._is_after_large = False

    @abstractmethod
    def requests_received(self, frames: Sequence[memoryview]) -> None:
        """Whole requests without their sizes, in order; each has memory of its own."""

    @abstractmethod
    def large_request_begun(self, size_bytes: int) -> None:
        """The rest of a request will be read into its own memory."""

    @abstractmethod
    def not_a_request(self, first_bytes: bytes, reason: str) -> None:
        """The bytes are no request of ours; the connection has to end."""

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._frame is not None:
            return self._frame[self._filled : self._filled + RECEIVE_BYTES_MAX]
        memory = self._memory
        if self._head:
            size = len(self._head)
            memory.view[:size] = self._head
            return memory.view[size:]
        return memory.head_view if self._is_after_large else memory.view

    def buffer_updated(self, nbytes: int) -> None:
        if self._frame is None:
            self._cut(len(self._head) + nbytes)
            return
        frame = self._frame
        self._filled += nbytes
        if self._is_unfilled:
            self._memory.unfilled_bytes -= nbytes
        if self._filled == len(frame):
            self._frame = None
            self._is_unfilled = False
            self.requests_received((frame,))

    def release_frame(self) -> None:
        """The connection has ended, perhaps within a request."""
        if self._frame is not None and self._is_unfilled:
            self._memory.unfilled_bytes -= len(self._frame) - self._filled
        self._frame = None
        self._head = b""

    def _cut(self, end: int) -> None:
        """Takes the requests out of the scratch, which is filled up to `end`."""
        memory = self._memory
        view, scratch = memory.view, memory.scratch
        frames: list[memoryview] = []
        at = begun = 0
        self._is_after_large = False
        while end - at >= SIZE_BYTES:
            size = _SIZE.unpack_from(scratch, at)[0]
            start = at + SIZE_BYTES
            if not HEADER_BYTES_MIN <= size <= memory.request_bytes_max:
                self._refuse(frames, bytes(view[at:end]), f"a request of {size} bytes")
                return
            if end - start < size:
                begun = size
                break
            at = start + size
            frames.append(memoryview(bytes(view[start:at])))
        if begun and end - at >= SIZE_BYTES + _API.size:
            api = _API.unpack_from(scratch, at + SIZE_BYTES)[0]
            if api not in memory.apis:
                self._refuse(frames, bytes(view[at:end]), f"the unknown API {api}")
                return
            self._begin(begun, at + SIZE_BYTES, end)
            self._head = b""
            if frames:
                self.requests_received(frames)
            self.large_request_begun(begun)
            return
        self._head = bytes(view[at:end])
        if frames:
            self.requests_received(frames)

    def _begin(self, size: int, start: int, end: int) -> None:
        memory = self._memory
        self._filled = end - start
        frame, self._is_unfilled = memory.of(size, self._filled)
        frame[: self._filled] = memory.view[start:end]
        self._frame = frame
        self._is_after_large = size > LARGE_BYTES

    def _refuse(self, frames: list[memoryview], first_bytes: bytes, reason: str) -> None:
        self._head = b""
        if frames:
            self.requests_received(frames)
        self.not_a_request(first_bytes[:FIRST_BYTES_MAX], reason)
