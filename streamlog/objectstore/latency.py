"""How long requests of a kind usually take, so that a straggler is known."""

from __future__ import annotations

_HISTORY = 256
_FACTOR = 3


class Latencies:
    """The p99 of the last 256 requests."""

    __slots__ = ("_next", "_p99", "_seconds")

    def __init__(self) -> None:
        self._seconds: list[float] = []
        self._next = 0
        self._p99: float | None = None

    def add(self, seconds: float) -> None:
        self._p99 = None
        if len(self._seconds) < _HISTORY:
            self._seconds.append(seconds)
        else:
            self._seconds[self._next] = seconds
            self._next = (self._next + 1) % _HISTORY

    def hedge_delay_s(self, minimum_s: float) -> float:
        """When a request is slow: after three times the p99, and not before `minimum_s`."""
        if not self._seconds:
            return minimum_s
        if self._p99 is None:
            ordered = sorted(self._seconds)
            self._p99 = ordered[int(0.99 * (len(ordered) - 1))]
        return max(_FACTOR * self._p99, minimum_s)


class LatenciesBySize:
    """Requests of about one size take about as long: a class spans a factor of 16."""

    __slots__ = ("_classes",)

    def __init__(self) -> None:
        self._classes: dict[int, Latencies] = {}

    def of(self, size_bytes: int | None) -> Latencies:
        """Those of requests for `size_bytes`; None: for whole objects."""
        size_class = 16 if size_bytes is None else max(size_bytes, 1).bit_length() // 4
        return self._classes.setdefault(size_class, Latencies())
