"""Detects readers that read a stream in sequence, and decides how far to read ahead of each.

A reader has no name: it is recognised by the offset at which its next fetch starts.

1. A reader's first fetch reads what it asked for; at the start of the stream it reads a whole first
   step, because a reader that starts there usually goes on. Its second fetch makes it *in
   sequence*, and its GETs grow to the maximum.
2. For a reader in sequence the next GETs run while earlier ones are decoded and consumed.
3. Readers in sequence share the block cache, except for the share of object scans. Each reads ahead
   for at most its share, in GETs of at most half of it: otherwise blocks would be dropped before
   they are consumed.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence

from streamlog.engine.config import ReadConfig
from streamlog.engine.read.object_scan import ObjectScans
from streamlog.metadata.interface import LiveRange
from streamlog.runtime.clock import Clock

_READERS_MAX = 4096
_ACTIVE_S = 5.0
"""A reader without a fetch for so long loses its share of the cache."""
_COUNT_EVERY_S = 0.25
_GETS_AHEAD_MAX = 3
"""One is consumed, two are under way."""


def get_bytes_bounds(config: ReadConfig) -> tuple[int, int]:
    """The smallest GET of a reader in sequence, among many, and the largest, of one alone."""
    largest = config.read_ahead_bytes_max
    return _clipped(config, largest, 0), _clipped(config, largest, _share_of(config, 1, 0))


def _share_of(config: ReadConfig, readers: int, taken_bytes: int) -> int:
    room = (config.block_cache_bytes - taken_bytes) // readers
    return min(room, _GETS_AHEAD_MAX * config.read_ahead_bytes_max)


def _clipped(config: ReadConfig, size: int, share: int) -> int:
    most = min(max(config.read_ahead_bytes_min, share // 2), config.block_cache_bytes // 2)
    return max(1, min(size, most))


class Reader:
    """`asked_until`: blocks up to this offset were requested. `asked_bytes`: size of the requested
    GETs that are not consumed to their ends."""

    __slots__ = (
        "_asked",
        "_ranges",
        "_ranges_needed",
        "asked_bytes",
        "asked_until",
        "began_at",
        "is_busy",
        "moved_at",
        "near_block",
        "window_bytes",
    )

    def __init__(self) -> None:
        self._asked: deque[tuple[int, int]] = deque()
        self.window_bytes = 0
        """Size of its next GET; 0 before it is in sequence."""
        self.asked_until = 0
        self.asked_bytes = 0
        self.is_busy = False
        self.began_at: tuple[int, int] | None = None
        """Stream and first offset of its last fetch; None before there is one."""
        self.moved_at = 0.0
        self.near_block = -1
        """Number of the last block that it got, in the object's index."""
        self._ranges: Sequence[LiveRange] = ()
        self._ranges_needed = 0

    def located(self, ranges: Sequence[LiveRange], needed: int, offset: int) -> None:
        """Keeps the ranges of a fetch up to `offset`, which used the first `needed` of them."""
        self._ranges = [live for live in ranges[: 2 * needed + 1] if live.end > offset]
        self._ranges_needed = needed

    def ranges_from(self, start: int, end: int) -> Sequence[LiveRange]:
        """The ranges kept from earlier fetches, if they suffice for one from `start` on.

        Committed bytes never change: at worst the object was deleted meanwhile.
        """
        ranges = self._ranges
        if not ranges or ranges[0].start > start:
            return ()
        return ranges if len(ranges) >= self._ranges_needed or ranges[-1].end >= end else ()

    def asked(self, until: int, size_bytes: int) -> None:
        """A GET up to the offset `until` has started."""
        self._asked.append((until, size_bytes))
        self.asked_until = max(self.asked_until, until)
        self.asked_bytes += size_bytes

    def consumed(self, offset: int) -> None:
        """Everything below `offset` was returned by fetches."""
        while self._asked and self._asked[0][0] <= offset:
            self.asked_bytes -= self._asked.popleft()[1]
        self.asked_until = max(self.asked_until, offset)


class Readers:
    """All readers of one engine, and their shares of the block cache."""

    def __init__(self, config: ReadConfig, clock: Clock, scans: ObjectScans) -> None:
        self._clock = clock
        self._scans = scans
        self._config = config
        self._first = min(config.read_ahead_bytes_first, config.read_ahead_bytes_max)
        self._max = config.read_ahead_bytes_max
        self._going: OrderedDict[tuple[int, int], Reader] = OrderedDict()
        self._at_end: OrderedDict[tuple[int, int], Reader] = OrderedDict()
        """Readers at the end of their stream; they have no share of the cache."""
        self._again: OrderedDict[tuple[int, int], tuple[int, int]] = OrderedDict()
        """Start of a reader's last fetch → start of its next one."""
        self._active = 1
        self._scans_bytes = 0
        self._counted_at = -1e9

    def at(self, stream_id: int, offset: int) -> tuple[Reader, bool]:
        """The reader whose next fetch starts at `offset` (True), or a new one (False).

        A reader may also repeat its last fetch: the answer was lost, or it used only a part.
        """
        place = stream_id, offset
        reader = self._taken(place)
        if reader is None and place in self._again:
            reader = self._taken(self._again.pop(place))
        if reader is None:
            return Reader(), False
        reader.consumed(offset)
        if reader.asked_until > offset:
            # Its first fetch read a whole step ahead.
            reader.window_bytes = self._max
        return reader, True

    def moved(
        self, stream_id: int, reader: Reader, start: int, offset: int, *, is_at_end: bool
    ) -> None:
        """The reader's fetch started at `start`; its next one is expected at `offset`."""
        reader.moved_at = self._clock.monotonic()
        reader.began_at = stream_id, start
        readers = self._at_end if is_at_end else self._going
        readers[stream_id, offset] = reader
        self._again[reader.began_at] = stream_id, offset
        for places in (readers, self._again):
            if len(places) > _READERS_MAX:
                places.popitem(last=False)

    def _taken(self, place: tuple[int, int]) -> Reader | None:
        return self._going.pop(place, None) or self._at_end.pop(place, None)

    def step(self, reader: Reader) -> int:
        """Size of the reader's next GET. Once the reader is in sequence, later ones are larger."""
        size = max(reader.window_bytes, self._first)
        if reader.began_at is not None:
            reader.window_bytes = self._max
        return _clipped(self._config, size, self._share())

    def may_go_ahead(self, reader: Reader) -> bool:
        """Whether the reader's next GET fits into its share."""
        if not reader.window_bytes:
            return False
        share = self._share()
        return reader.asked_bytes + _clipped(self._config, reader.window_bytes, share) <= share

    def _share(self) -> int:
        now = self._clock.monotonic()
        if now - self._counted_at >= _COUNT_EVERY_S:
            self._counted_at = now
            self._scans_bytes = self._scans.ahead_bytes
            self._active = max(
                1,
                sum(
                    [
                        reader.window_bytes > 0 and reader.moved_at > now - _ACTIVE_S
                        for reader in self._going.values()
                    ]
                ),
            )
        return _share_of(self._config, self._active, self._scans_bytes)
