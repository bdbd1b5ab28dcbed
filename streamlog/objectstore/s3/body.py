"""The parts of an object as a request body, without joining them."""

from __future__ import annotations

import io
import math
import time
from collections.abc import Iterator, Sequence

from streamlog.objectstore.interface import FULL_RATE, SendRate
from streamlog.runtime.buffers import Buffer

_JOIN_BYTES = 32 * 1024
"""Smaller neighbours are joined: a system call each would cost more than the copy."""
_SPREAD_BYTES = 128 * 1024
"""Of a body that is spread: so much is sent at full speed, in a tenth of a millisecond or two."""
_LATE_S = 0.01
"""How much of a delay is made up for."""


def sliced(parts: Sequence[Buffer], start: int, end: int) -> list[memoryview]:
    """The bytes from `start` to `end` (exclusive) of the parts in order, as views."""
    views: list[memoryview] = []
    at = 0
    for part in parts:
        size = len(part)
        if at + size > start and at < end and size:
            views.append(memoryview(part)[max(start - at, 0) : end - at])
        at += size
        if at >= end:
            break
    return views


def split(parts: Sequence[Buffer], size_bytes: int) -> list[list[memoryview]]:
    """The parts in order, as views, in runs of `size_bytes`; the last one may be shorter."""
    runs: list[list[memoryview]] = []
    left = 0
    for part in parts:
        view = memoryview(part)
        while len(view):
            if not left:
                runs.append([])
                left = size_bytes
            runs[-1].append(view[:left])
            taken = min(left, len(view))
            view, left = view[taken:], left - taken
    return runs


class S3Body:
    """The part of a file that an HTTP client needs: `read`, `seek`, `tell` and a length.

    `read` returns the next piece as it is, whatever the requested size. A client that sends the
    body again seeks to 0. With a rate `read` waits, so it is for a thread of its own.
    """

    def __init__(
        self, parts: Sequence[Buffer], size_bytes: int, rate: SendRate = FULL_RATE
    ) -> None:
        self.parts = parts
        self._size_bytes = size_bytes
        self._rate = rate
        self._position = 0
        self._pieces = _spread(parts, rate)

    def __len__(self) -> int:
        return self._size_bytes

    def read(self, size_bytes: int = -1) -> Buffer:
        piece = next(self._pieces, b"")
        self._position += len(piece)
        return piece

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        if whence == io.SEEK_END and offset == 0:
            self._pieces = iter(())
            self._position = self._size_bytes
        elif whence == io.SEEK_SET and offset == 0:
            self._pieces = _spread(self.parts, self._rate)
            self._position = 0
        elif whence != io.SEEK_SET or offset != self._position:
            raise io.UnsupportedOperation("a body is read from its start or not at all")
        return self._position

    def tell(self) -> int:
        return self._position


def _spread(parts: Sequence[Buffer], rate: SendRate) -> Iterator[Buffer]:
    """Pieces when they are due. A large piece at full speed takes cores from everything else.

    The thread is the client's, whose requests take real time.
    """
    due = time.monotonic()  # noqa: TID251
    for piece in _pieces(parts):
        view = memoryview(piece)
        while len(view) and (bytes_per_s := rate.bytes_per_s) != math.inf:
            time.sleep(max(due - time.monotonic(), 0))  # noqa: TID251
            due = max(due, time.monotonic() - _LATE_S) + _SPREAD_BYTES / bytes_per_s  # noqa: TID251
            yield view[:_SPREAD_BYTES]
            view = view[_SPREAD_BYTES:]
        if len(view):
            yield view


def _pieces(parts: Sequence[Buffer]) -> Iterator[Buffer]:
    small: list[Buffer] = []
    small_bytes = 0
    for part in parts:
        if len(part) >= _JOIN_BYTES:
            if small:
                yield b"".join(small)
                small, small_bytes = [], 0
            yield part
        elif len(part):
            small.append(part)
            small_bytes += len(part)
            if small_bytes >= _JOIN_BYTES:
                yield b"".join(small)
                small, small_bytes = [], 0
    if small:
        yield b"".join(small)
