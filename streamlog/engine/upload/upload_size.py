"""How large an upload may be while the store's disk is nearly full.

A store in a local folder may have room for a few MiB where an upload of full size has none. What
waits would then stand still although a part of it fits; and where the WAL lies on the same disk,
what goes up makes room there. So an upload that finds no room is cut in half, and so on; each one
that is stored lets the next be twice as large.
"""

from __future__ import annotations

from collections.abc import Callable

PIECE_BYTES_MIN = 64 * 1024
"""Smaller pieces would cost more in requests and index than they bring."""


class UploadSize:
    """`limit_bytes`: of one upload; None while there is room. `scarce(is_scarce)` is told when that
    begins and ends."""

    def __init__(self, bytes_target: int, scarce: Callable[[bool], None]) -> None:
        self._bytes_target = bytes_target
        self._scarce = scarce
        self.limit_bytes: int | None = None

    def refuse(self, size_bytes: int) -> None:
        """An upload of this size found no room."""
        allowed = min(size_bytes, self.limit_bytes or size_bytes)
        self.limit_bytes = max(allowed // 2, PIECE_BYTES_MIN)
        # Told again and again: what the WAL could not give back at first it may later.
        self._scarce(True)

    def stored(self, size_bytes: int) -> None:
        """An upload of this size is in the store."""
        # A much smaller one tells nothing about the room for the next.
        if self.limit_bytes is not None and size_bytes * 2 >= self.limit_bytes:
            self.limit_bytes *= 2
            if self.limit_bytes >= self._bytes_target:
                self.end()

    def is_cut(self, size_bytes: int) -> bool:
        """A batch of this size goes up in pieces."""
        return self.limit_bytes is not None and size_bytes > self.limit_bytes

    def end(self) -> None:
        """Nothing waits any more, or uploads of full size fit."""
        if self.limit_bytes is not None:
            self.limit_bytes = None
            self._scarce(False)
