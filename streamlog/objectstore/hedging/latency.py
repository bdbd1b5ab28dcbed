"""How long requests of a kind usually take, to recognize a slow one."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque

_HISTORY = 256
_FACTOR = 3


class Latencies:
    """The p95 of the last 256 requests.

    The p95 and not the p99, because one pause of the machine or the network hits all requests
    that are under way at once: three of them would set the p99 for the next 250 (RFC 11).
    """

    __slots__ = ("_ordered", "_seconds")

    def __init__(self) -> None:
        self._seconds: deque[float] = deque()
        self._ordered: list[float] = []

    def add(self, seconds: float) -> None:
        if len(self._seconds) == _HISTORY:
            del self._ordered[bisect_left(self._ordered, self._seconds.popleft())]
        self._seconds.append(seconds)
        insort(self._ordered, seconds)

    def hedge_delay_s(self, minimum_s: float) -> float:
        """The time after which a request is slow: three times the p95, at least `minimum_s`."""
        if not self._ordered:
            return minimum_s
        p95 = self._ordered[int(0.95 * (len(self._ordered) - 1))]
        return max(_FACTOR * p95, minimum_s)


class LatenciesBySize:
    """Latencies by classes of size; a class spans a factor of 16."""

    __slots__ = ("_classes",)

    def __init__(self) -> None:
        self._classes: dict[int, Latencies] = {}

    def of(self, size_bytes: int | None) -> Latencies:
        """The latencies of requests for `size_bytes`; None: for whole objects."""
        size_class = 16 if size_bytes is None else max(size_bytes, 1).bit_length() // 4
        return self._classes.setdefault(size_class, Latencies())
