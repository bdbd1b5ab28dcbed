"""Detects readers that scan an object stream by stream, and decides how far to read ahead of them.

Small streams lie side by side in an object, ordered by id. A consumer that reads many of them one
after another would need a GET for each.

1. A *scan* is recognised when three streams of an object were read to their ends there, each near
   the ones before. Several readers may share a scan, some a little ahead of the others.
2. The bytes ahead of a scan are read in GETs that grow, whichever streams they belong to, as long
   as the parts read last make up two fifths of the bytes between them.
3. When a reader does not find a part that was read ahead for its scan, the cache has dropped it:
   the scan was too far ahead, and pauses.
4. All scans together are at most a quarter of the block cache ahead.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from streamlog.engine.config import ReadConfig
from streamlog.runtime.clock import Clock

_STREAMS_MIN = 3
_STREAMS_KEPT = 48
"""Parts remembered by a scan: enough to see gaps, in whatever order parallel readers come."""
_STREAMS_NEAR = 32
"""How far from a scan a stream may lie, as a multiple of its own size, and still belong to it."""
_STREAMS_AHEAD_MIN = 8
"""Streams that a scan is ahead by at least; a stream too large for that gets a GET of its own."""
_STREAMS_PER_GET_MIN = 2
_FIRST_BYTES_MIN = 64 * 1024
_OBJECTS_MAX = 256
_SCANS_PER_OBJECT_MAX = 8
_ACTIVE_S = 5.0
"""A scan without a read for so long is inactive. A pause has the same length."""
_COUNT_EVERY_S = 0.25
_NOWHERE = 1 << 62


class StreamPart(NamedTuple):
    """One stream's bytes `start` to `end` in an object; the stream ends there at `end`. In the
    object's index, block `next_number` follows."""

    start: int
    end: int
    next_number: int


class ObjectScan:
    """One scan of one object. Positions are bytes in the object."""

    __slots__ = (
        "moved_at_s",
        "next_number",
        "passed",
        "paused_until_s",
        "position",
        "read_from",
        "until",
        "window_bytes",
    )

    def __init__(self, start: int, window_bytes: int) -> None:
        self.passed: OrderedDict[int, int] = OrderedDict()
        """End → start of the parts read last."""
        self.position = start
        """End of the furthest part read."""
        self.until = start
        """End of the bytes read ahead, or `position`."""
        self.next_number = 0
        """Number of the block at `until`, in the index."""
        self.read_from = _NOWHERE
        """From here to `until` everything was read ahead."""
        self.window_bytes = window_bytes
        """How far to be ahead."""
        self.moved_at_s = 0.0
        self.paused_until_s = 0.0

    @property
    def ahead_bytes(self) -> int:
        return self.until - self.position

    @property
    def is_recognised(self) -> bool:
        return len(self.passed) >= _STREAMS_MIN

    def is_near(self, part: StreamPart) -> bool:
        near_bytes = _STREAMS_NEAR * (part.end - part.start)
        return self.position - near_bytes <= part.start <= self.until + near_bytes

    def was_read_ahead(self, part: StreamPart) -> bool:
        """Whether the part was read ahead and no reader of the scan has passed it."""
        is_ahead = self.position < part.end <= self.until
        return is_ahead and self.read_from <= part.start

    def add(self, part: StreamPart) -> None:
        """Notes a read of the part."""
        self.passed[part.end] = min(part.start, self.passed.get(part.end, part.start))
        if len(self.passed) > _STREAMS_KEPT:
            self.passed.popitem(last=False)
        self.position = max(self.position, part.end)
        if part.end > self.until:
            self.until, self.next_number, self.read_from = part.end, part.next_number, _NOWHERE
        elif part.end == self.until:
            self.next_number = part.next_number

    def is_dense(self) -> bool:
        """Whether the scan is recognised, and reads two fifths of the bytes that it passes."""
        if not self.is_recognised:
            return False
        read_bytes = sum([end - start for end, start in self.passed.items()])
        return 5 * read_bytes >= 2 * (max(self.passed) - min(self.passed.values()))


class ObjectScans:
    """All scans of one engine, and their share of the block cache."""

    def __init__(self, config: ReadConfig, clock: Clock) -> None:
        self._clock = clock
        self._max_bytes = config.object_scan_bytes_max
        self._first_bytes = min(
            max(config.read_ahead_bytes_min, _FIRST_BYTES_MIN), config.object_scan_bytes_max
        )
        self._shared_bytes = config.block_cache_bytes // 4
        self._scans: OrderedDict[int, list[ObjectScan]] = OrderedDict()
        """By object. Objects, and the scans of each, are ordered by their last read."""
        self._active_count = 1
        self._counted_at_s = -1e9

    def note_read(
        self, object_id: int, part: StreamPart, *, is_cached: bool
    ) -> tuple[ObjectScan, int] | None:
        """Notes a read of the part. `is_cached`: all of it was in the cache, or on its way.

        Returns the scan to read ahead for, and how many bytes at most from its `until` on; or None.
        """
        size = part.end - part.start
        if size * _STREAMS_AHEAD_MIN > self._max_bytes:
            return None
        now = self._clock.monotonic()
        scan = self._scan_of(object_id, part)
        if not is_cached and scan.was_read_ahead(part):
            scan.paused_until_s = now + _ACTIVE_S
            scan.window_bytes = self._first_bytes
        scan.moved_at_s = now
        scan.add(part)
        window_bytes = max(scan.window_bytes, _STREAMS_AHEAD_MIN * size)
        window_bytes = min(window_bytes, self._fair_bytes(now))
        if scan.ahead_bytes > window_bytes // 2 or scan.paused_until_s > now or not scan.is_dense():
            return None
        other_bytes = sum([other.ahead_bytes for other in self._active(now) if other is not scan])
        wanted = min(window_bytes, self._shared_bytes - other_bytes) - scan.ahead_bytes
        return (scan, wanted) if wanted >= _STREAMS_PER_GET_MIN * size else None

    def note_read_ahead(self, scan: ObjectScan, start: int, until: int, next_number: int) -> None:
        """The bytes from `start` to `until` are on their way; block `next_number` follows them."""
        scan.read_from = min(scan.read_from, start)
        scan.until, scan.next_number = until, next_number
        scan.window_bytes = min(2 * scan.window_bytes, self._max_bytes)

    @property
    def ahead_bytes(self) -> int:
        """Bytes that all active scans are ahead by."""
        return sum([scan.ahead_bytes for scan in self._active(self._clock.monotonic())])

    def _scan_of(self, object_id: int, part: StreamPart) -> ObjectScan:
        """The scan that the part belongs to, or a new one."""
        scans = self._scans.setdefault(object_id, [])
        self._scans.move_to_end(object_id)
        if len(self._scans) > _OBJECTS_MAX:
            self._scans.popitem(last=False)
        for scan in reversed(scans):
            if scan.is_near(part):
                scans.remove(scan)
                break
        else:
            scan = ObjectScan(part.start, self._first_bytes)
        scans.append(scan)
        del scans[:-_SCANS_PER_OBJECT_MAX]
        return scan

    def _fair_bytes(self, now: float) -> int:
        """How far each active scan may be ahead if all are equally far."""
        if now - self._counted_at_s >= _COUNT_EVERY_S:
            self._counted_at_s = now
            self._active_count = max(1, len(self._active(now)))
        return self._shared_bytes // self._active_count

    def _active(self, now: float) -> list[ObjectScan]:
        return [
            scan
            for scans in self._scans.values()
            for scan in scans
            if scan.moved_at_s > now - _ACTIVE_S and scan.is_recognised
        ]
