"""How large an upload may be while the store's disk is nearly full.

A store in a local folder may have room for a few MiB but not for an upload of full size. Uploads
would then stand still although a part of them fits; and where the WAL lies on the same disk, each
upload makes room there. So after an upload that finds no room the limit is half its size, and after
each stored upload the limit doubles.
"""

from __future__ import annotations

from collections.abc import Callable

PIECE_BYTES_MIN = 64 * 1024
"""Smaller pieces would cost more in requests and index than they gain."""


class UploadSize:
    """`limit_bytes`: the bound on one upload; None while there is room.

    `on_change(is_full)` is called when the limit is set, lowered, or ends.
    """

    def __init__(self, bytes_target: int, on_change: Callable[[bool], None]) -> None:
        self._bytes_target = bytes_target
        self._on_change = on_change
        self.limit_bytes: int | None = None

    def refuse(self, size_bytes: int) -> None:
        """An upload of this size found no room."""
        allowed = min(size_bytes, self.limit_bytes or size_bytes)
        self.limit_bytes = max(allowed // 2, PIECE_BYTES_MIN)
        # Called each time: the WAL may now free files that were in use before.
        self._on_change(True)

    def stored(self, size_bytes: int) -> None:
        """An upload of this size is in the store."""
        # A much smaller upload does not show that there is room for more.
        if self.limit_bytes is not None and size_bytes * 2 >= self.limit_bytes:
            self.limit_bytes *= 2
            if self.limit_bytes >= self._bytes_target:
                self.end()

    def is_cut(self, size_bytes: int) -> bool:
        """Whether a batch of this size must be split."""
        return self.limit_bytes is not None and size_bytes > self.limit_bytes

    def end(self) -> None:
        """Uploads of full size fit again, or no batch waits."""
        if self.limit_bytes is not None:
            self.limit_bytes = None
            self._on_change(False)
