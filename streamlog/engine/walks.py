"""Sees who goes through an object stream by stream, and how far to read ahead for them.

Small streams lie side by side in objects, by their ids. Consumers of many, one after another, would
need a GET for each.
1. A *walk* is known once three streams in a row were asked for to their ends in an object, each
   near the one before. Several readers may be on it, each somewhat before or behind the others.
2. What lies before it is read in GETs that grow, whichever streams it belongs to, while at least
   half of what the walk passes is asked for.
3. A walk that does not find what was read ahead for it was too far ahead: it begins anew.
4. Walks share a quarter of the block cache.
"""

from __future__ import annotations

from collections import OrderedDict

from streamlog.engine.config import ReadConfig
from streamlog.runtime.clock import Clock

_STREAMS_MIN = 3
_STREAMS_AHEAD_MIN = 8
"""What is read ahead at most holds so many: a larger one deserves a GET of its own."""
_NOWHERE = 1 << 62
_OBJECTS_MAX = 1024
_WALKS_MAX = 8
"""Of one object."""
_NEAR_BYTES = 2 * 1024 * 1024
"""As far may readers on the same walk be from one another."""
_ACTIVE_S = 5.0
"""A walk on which nobody has moved for so long has no share of the cache any more."""
_COUNT_EVERY_S = 0.25


class Walk:
    """Through one object. Positions are bytes in it, `number` one of a block in its index."""

    __slots__ = (
        "at",
        "moved_at",
        "number",
        "passed_at",
        "read_from",
        "stream_id",
        "streams",
        "until",
        "used_bytes",
        "window_bytes",
    )

    def __init__(self, start: int, window_bytes: int) -> None:
        self.stream_id = -1
        """The last one that was asked for."""
        self.streams = 0
        self.at = start
        """Where the furthest one ends."""
        self.until = start
        """What lies before that was read ahead, or asked for."""
        self.read_from = _NOWHERE
        """From here to `until` all was read ahead."""
        self.number = 0
        """The first block that was neither."""
        self.passed_at = start
        """Where it was when something was last read ahead; `used_bytes` were asked for since."""
        self.used_bytes = 0
        self.window_bytes = window_bytes
        self.moved_at = 0.0

    def is_near(self, start: int) -> bool:
        return self.at - _NEAR_BYTES <= start <= self.until + _NEAR_BYTES

    def was_read_ahead(self, start: int, end: int) -> bool:
        return self.read_from <= start and end <= self.until

    def take(self, stream_id: int, end: int, number: int) -> None:
        """The stream is the next one on it."""
        if stream_id != self.stream_id:
            self.stream_id = stream_id
            self.streams += 1
        if end > self.until:
            self.until, self.read_from = end, _NOWHERE
        self.at = max(self.at, end)
        self.number = max(self.number, number)


class Walks:
    def __init__(self, config: ReadConfig, clock: Clock) -> None:
        self._clock = clock
        self._first = min(config.read_ahead_bytes_min, config.walk_bytes_max)
        self._max = config.walk_bytes_max
        self._shared = config.block_cache_bytes // 4
        self._walks: OrderedDict[int, list[Walk]] = OrderedDict()
        """By object, the one that was last asked for at the end."""
        self._active = 1
        self._counted_at = -1e9

    def asked(
        self, object_id: int, stream_id: int, start: int, end: int, number: int, *, is_here: bool
    ) -> tuple[Walk, int] | None:
        """A stream was asked for from the byte `start` of an object to its `end` there, where the
        block `number` follows; `is_here`: all of it was here, or on its way.

        The walk for which to read ahead, and the bytes from its block `number` on; None: nothing.
        """
        if (end - start) * _STREAMS_AHEAD_MIN > self._max:
            return None
        walk = self._near(object_id, start)
        if walk is None or (not is_here and walk.was_read_ahead(start, end)):
            walk = self._begin(walk, object_id, start)
        walk.moved_at = self._clock.monotonic()
        if stream_id != walk.stream_id:
            walk.used_bytes += end - start
        walk.take(stream_id, end, number)
        if walk.streams < _STREAMS_MIN:
            return None
        if 2 * walk.used_bytes < walk.at - walk.passed_at:
            self._begin(walk, object_id, end)
            return None
        window = min(walk.window_bytes, self._share(walk.moved_at))
        if walk.until - walk.at > window // 2:
            return None
        return walk, walk.at + window - walk.until

    def went_ahead(self, walk: Walk, start: int, until: int, number: int) -> None:
        """The bytes from `start` to `until` are on their way; the block `number` follows."""
        walk.read_from = min(walk.read_from, start)
        walk.until = until
        walk.number = number
        walk.passed_at, walk.used_bytes = walk.at, 0
        walk.window_bytes = min(2 * walk.window_bytes, self._max)

    def _begin(self, instead: Walk | None, object_id: int, start: int) -> Walk:
        known = self._walks.setdefault(object_id, [])
        if instead is not None:
            known.remove(instead)
        walk = Walk(start, self._first)
        known.append(walk)
        del known[:-_WALKS_MAX]
        if len(self._walks) > _OBJECTS_MAX:
            self._walks.popitem(last=False)
        return walk

    def _near(self, object_id: int, start: int) -> Walk | None:
        known = self._walks.get(object_id)
        if known is None:
            return None
        self._walks.move_to_end(object_id)
        return next((one for one in known if one.is_near(start)), None)

    def _share(self, now: float) -> int:
        if now - self._counted_at >= _COUNT_EVERY_S:
            self._counted_at = now
            self._active = sum(
                [
                    one.streams >= _STREAMS_MIN and one.moved_at > now - _ACTIVE_S
                    for known in self._walks.values()
                    for one in known
                ]
            )
        return self._shared // max(1, self._active)
