"""Finds readers that go through a stream in sequence, and how far ahead to read for each.

A reader has no name: it is known by the offset at which its next fetch will start.
1. Its first fetch reads what it asks for, and a whole first step where the stream begins: who
   begins there will go on. When it does so, it is *in sequence*, and its GETs grow to the maximum.
2. In sequence, the next GETs are under way while earlier ones are decoded and consumed.
3. Readers in sequence share the block cache, but for what scans are ahead by: each asks ahead for
   its share at most, in GETs of at most half of it, so that what was read ahead is not dropped
   before it is consumed.
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
"""A reader that has not moved for so long has no share of the cache any more."""
_COUNT_EVERY_S = 0.25
_GETS_AHEAD_MAX = 3
"""One that is consumed and two under way."""


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
    """`asked_until`: blocks up to this offset were asked for. `asked_bytes` of them: not consumed
    as far as whole GETs go."""

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
        """Of its next GET; 0 before it is in sequence."""
        self.asked_until = 0
        self.asked_bytes = 0
        self.is_busy = False
        self.began_at: tuple[int, int] | None = None
        """Stream and first offset of its last fetch; None before there is one."""
        self.moved_at = 0.0
        self.near_block = -1
        """Number of the last block that it was given, in its object's index."""
        self._ranges: Sequence[LiveRange] = ()
        self._ranges_needed = 0

    def located(self, ranges: Sequence[LiveRange], needed: int, offset: int) -> None:
        """A fetch up to `offset` looked at the first `needed` of the ranges found for it."""
        self._ranges = [one for one in ranges[: 2 * needed + 1] if one.end > offset]
        self._ranges_needed = needed

    def ranges_from(self, start: int, end: int) -> Sequence[LiveRange]:
        """Those found for earlier fetches, if they are enough for one more; `start` is its next.

        What is committed never changes its bytes: at worst their object is gone meanwhile.
        """
        ranges = self._ranges
        if not ranges or ranges[0].start > start:
            return ()
        return ranges if len(ranges) >= self._ranges_needed or ranges[-1].end >= end else ()

    def asked(self, until: int, size_bytes: int) -> None:
        """A GET up to the offset `until` is under way."""
        self._asked.append((until, size_bytes))
        self.asked_until = max(self.asked_until, until)
        self.asked_bytes += size_bytes

    def consumed(self, offset: int) -> None:
        """Everything below `offset` has been handed out."""
        while self._asked and self._asked[0][0] <= offset:
            self.asked_bytes -= self._asked.popleft()[1]
        self.asked_until = max(self.asked_until, offset)


class Readers:
    def __init__(self, config: ReadConfig, clock: Clock, scans: ObjectScans) -> None:
        self._clock = clock
        self._scans = scans
        self._config = config
        self._first = min(config.read_ahead_bytes_first, config.read_ahead_bytes_max)
        self._max = config.read_ahead_bytes_max
        self._going: OrderedDict[tuple[int, int], Reader] = OrderedDict()
        self._at_end: OrderedDict[tuple[int, int], Reader] = OrderedDict()
        """Where there is nothing for it now: those that read on get its share."""
        self._again: OrderedDict[tuple[int, int], tuple[int, int]] = OrderedDict()
        """Where a reader's last fetch began: where its next one will, if it is still known."""
        self._active = 1
        self._scans_bytes = 0
        self._counted_at = -1e9

    def at(self, stream_id: int, offset: int) -> tuple[Reader, bool]:
        """The reader whose next offset this is (True), or a new one (False).

        One may also begin again where its last fetch did: the answer was lost, or not all of it was
        wanted.
        """
        place = stream_id, offset
        reader = self._taken(place)
        if reader is None and place in self._again:
            reader = self._taken(self._again.pop(place))
        if reader is None:
            return Reader(), False
        reader.consumed(offset)
        if reader.asked_until > offset:
            # It began with a step, and was met again.
            reader.window_bytes = self._max
        return reader, True

    def moved(
        self, stream_id: int, reader: Reader, start: int, offset: int, *, is_at_end: bool
    ) -> None:
        """The reader's fetch began at `start`; its next one will at `offset`."""
        reader.moved_at = self._clock.monotonic()
        reader.began_at = stream_id, start
        known = self._at_end if is_at_end else self._going
        known[stream_id, offset] = reader
        self._again[reader.began_at] = stream_id, offset
        for places in (known, self._again):
            if len(places) > _READERS_MAX:
                places.popitem(last=False)

    def _taken(self, place: tuple[int, int]) -> Reader | None:
        return self._going.pop(place, None) or self._at_end.pop(place, None)

    def step(self, reader: Reader) -> int:
        """Bytes of the reader's next GET; the one after it is larger, once it is in sequence."""
        size = max(reader.window_bytes, self._first)
        if reader.began_at is not None:
            reader.window_bytes = self._max
        return _clipped(self._config, size, self._share())

    def may_go_ahead(self, reader: Reader) -> bool:
        """There is room in the reader's share for its next GET."""
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
