"""Finds readers that go through a stream in sequence, and how far ahead to read for each.

A reader has no name: it is known by the offset at which its next fetch will start. Its window
doubles with every fetch that goes on where the last one ended.
"""

from __future__ import annotations

from collections import OrderedDict

_READERS_MAX = 4096


class Reader:
    """`ahead_until`: blocks up to this offset were asked for."""

    __slots__ = ("ahead_until", "is_busy", "window_bytes")

    def __init__(self, window_bytes: int) -> None:
        self.window_bytes = window_bytes
        self.ahead_until = 0
        self.is_busy = False


class Readers:
    def __init__(self, window_bytes_min: int, window_bytes_max: int) -> None:
        self._min = min(window_bytes_min, window_bytes_max)
        self._max = window_bytes_max
        self._known: OrderedDict[tuple[int, int], Reader] = OrderedDict()

    def at(self, stream_id: int, offset: int) -> tuple[Reader, bool]:
        """The reader whose next offset this is (True), or a new one (False)."""
        reader = self._known.pop((stream_id, offset), None)
        if reader is None:
            return Reader(self._min), False
        reader.window_bytes = min(reader.window_bytes * 2, self._max)
        return reader, True

    def moved(self, stream_id: int, reader: Reader, offset: int) -> None:
        """The reader's next fetch will start at `offset`."""
        self._known[stream_id, offset] = reader
        if len(self._known) > _READERS_MAX:
            self._known.popitem(last=False)
