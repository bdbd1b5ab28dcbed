"""Sees who goes through an object stream by stream, and how far to read ahead for them.

Small streams lie side by side in objects, by their ids. Consumers of many, one after another, would
need a GET for each.
1. A *walk* is known by three streams that were asked for to their ends, each near the ones before.
   Several readers may be on it, each somewhat before or behind the others.
2. What lies before it is read in GETs that grow, whichever streams it belongs to, as long as the
   last streams that were asked for make up two fifths of the bytes between them.
3. A walk that does not find what was read ahead for it was too far ahead, and rests.
4. All walks together are ahead by a quarter of the block cache at most.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from streamlog.engine.config import ReadConfig
from streamlog.runtime.clock import Clock

_STREAMS_MIN = 3
_STREAMS_KEPT = 48
"""Asked for last: enough to see gaps, whatever the order of readers side by side."""
_STREAMS_NEAR = 32
"""As many of its own size may a stream be from a walk that it belongs to."""
_STREAMS_AHEAD_MIN = 8
"""A walk is ahead by so many at least; larger ones deserve a GET of their own."""
_STREAMS_PER_GET_MIN = 2
_FIRST_BYTES_MIN = 64 * 1024
_OBJECTS_MAX = 256
_WALKS_MAX = 8
"""Of one object."""
_ACTIVE_S = 5.0
"""A walk on which nobody has moved for so long counts no more; one that rests does so long."""
_COUNT_EVERY_S = 0.25
_NOWHERE = 1 << 62


class Part(NamedTuple):
    """Of a stream in an object: bytes `start` to `end`, which is the stream's end there; in the
    index the block `next_number` follows."""

    start: int
    end: int
    next_number: int


class ObjectScan:
    """Through one object; positions are bytes in it."""

    __slots__ = (
        "moved_at_s",
        "next_number",
        "passed",
        "position",
        "read_from",
        "rests_until_s",
        "until",
        "window_bytes",
    )

    def __init__(self, start: int, window_bytes: int) -> None:
        self.passed: OrderedDict[int, int] = OrderedDict()
        """Where the last parts asked for begin, by their ends."""
        self.position = start
        """The end of the furthest one."""
        self.until = start
        """The end of what was read ahead, or `position`."""
        self.next_number = 0
        """Of the block at `until`, in the index."""
        self.read_from = _NOWHERE
        """From here to `until` all was read ahead."""
        self.window_bytes = window_bytes
        """How far to be ahead."""
        self.moved_at_s = 0.0
        self.rests_until_s = 0.0

    @property
    def ahead_bytes(self) -> int:
        return self.until - self.position

    @property
    def is_known(self) -> bool:
        """Enough streams were asked for."""
        return len(self.passed) >= _STREAMS_MIN

    def is_near(self, part: Part) -> bool:
        near_bytes = _STREAMS_NEAR * (part.end - part.start)
        return self.position - near_bytes <= part.start <= self.until + near_bytes

    def was_read_ahead(self, part: Part) -> bool:
        """And nobody has passed it yet."""
        is_ahead = self.position < part.end <= self.until
        return is_ahead and self.read_from <= part.start

    def take(self, part: Part) -> None:
        """The part was asked for."""
        self.passed[part.end] = min(part.start, self.passed.get(part.end, part.start))
        if len(self.passed) > _STREAMS_KEPT:
            self.passed.popitem(last=False)
        self.position = max(self.position, part.end)
        if part.end > self.until:
            self.until, self.next_number, self.read_from = part.end, part.next_number, _NOWHERE
        elif part.end == self.until:
            self.next_number = part.next_number

    def is_dense(self) -> bool:
        """Known as a walk, and two fifths of what it passes are asked for."""
        if not self.is_known:
            return False
        asked_bytes = sum([end - start for end, start in self.passed.items()])
        return 5 * asked_bytes >= 2 * (max(self.passed) - min(self.passed.values()))


class ObjectScans:
    def __init__(self, config: ReadConfig, clock: Clock) -> None:
        self._clock = clock
        self._max_bytes = config.object_scan_bytes_max
        self._first_bytes = min(
            max(config.read_ahead_bytes_min, _FIRST_BYTES_MIN), config.object_scan_bytes_max
        )
        self._shared_bytes = config.block_cache_bytes // 4
        self._walks: OrderedDict[int, list[ObjectScan]] = OrderedDict()
        """By object; of both the one that was last asked for at the end."""
        self._active_count = 1
        self._counted_at_s = -1e9

    def asked(self, object_id: int, part: Part, *, is_here: bool) -> tuple[ObjectScan, int] | None:
        """A part was asked for; `is_here`: all of it was here, or on its way.

        The walk for which to read ahead, and the bytes at most from its `until` on; None: nothing.
        """
        size = part.end - part.start
        if size * _STREAMS_AHEAD_MIN > self._max_bytes:
            return None
        now = self._clock.monotonic()
        walk = self._at(object_id, part)
        if not is_here and walk.was_read_ahead(part):
            walk.rests_until_s = now + _ACTIVE_S
            walk.window_bytes = self._first_bytes
        walk.moved_at_s = now
        walk.take(part)
        window_bytes = max(walk.window_bytes, _STREAMS_AHEAD_MIN * size)
        window_bytes = min(window_bytes, self._fair_bytes(now))
        if walk.ahead_bytes > window_bytes // 2 or walk.rests_until_s > now or not walk.is_dense():
            return None
        others_bytes = sum([one.ahead_bytes for one in self._active(now) if one is not walk])
        wanted = min(window_bytes, self._shared_bytes - others_bytes) - walk.ahead_bytes
        return (walk, wanted) if wanted >= _STREAMS_PER_GET_MIN * size else None

    def went_ahead(self, walk: ObjectScan, start: int, until: int, next_number: int) -> None:
        """The bytes from `start` to `until` are on their way; the block `next_number` follows."""
        walk.read_from = min(walk.read_from, start)
        walk.until, walk.next_number = until, next_number
        walk.window_bytes = min(2 * walk.window_bytes, self._max_bytes)

    @property
    def ahead_bytes(self) -> int:
        """Of all walks that are under way."""
        return sum([one.ahead_bytes for one in self._active(self._clock.monotonic())])

    def _at(self, object_id: int, part: Part) -> ObjectScan:
        """The walk that the part belongs to, or a new one."""
        known = self._walks.setdefault(object_id, [])
        self._walks.move_to_end(object_id)
        if len(self._walks) > _OBJECTS_MAX:
            self._walks.popitem(last=False)
        for walk in reversed(known):
            if walk.is_near(part):
                known.remove(walk)
                break
        else:
            walk = ObjectScan(part.start, self._first_bytes)
        known.append(walk)
        del known[:-_WALKS_MAX]
        return walk

    def _fair_bytes(self, now: float) -> int:
        """How far each may be ahead, were all equally far."""
        if now - self._counted_at_s >= _COUNT_EVERY_S:
            self._counted_at_s = now
            self._active_count = max(1, len(self._active(now)))
        return self._shared_bytes // self._active_count

    def _active(self, now: float) -> list[ObjectScan]:
        return [
            one
            for known in self._walks.values()
            for one in known
            if one.moved_at_s > now - _ACTIVE_S and one.is_known
        ]
