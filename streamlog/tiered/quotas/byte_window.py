"""Bytes over a rolling window of whole buckets and the current one, with what was too much. Pure.

The window has `buckets` buckets of `bucket_s` seconds; over all of them the quota allows
`capacity` bytes. A bucket that is older is forgotten, and makes room.

One amount may be larger than the room that is left: a segment is copied as a whole. Kafka then has
more in its window than the quota allows, forgets it with the bucket, and over and over copies more
than the quota: 1.2 × with segments of 0.4 windows. Here what does not fit is a debt, which takes
the room of the next buckets that are forgotten. So for any number of windows, used to their end,
the bytes are those that the quota allows and one amount at most.
"""

from __future__ import annotations

from collections import deque

UNLIMITED = (1 << 63) - 1


class ByteWindow:
    """`now` is monotonic seconds, and never goes back."""

    __slots__ = ("_amounts", "_bucket_s", "_buckets", "_current", "_debt", "_rate", "_sum")

    def __init__(self, rate: int, buckets: int, bucket_s: float, now: float) -> None:
        assert buckets > 0
        assert bucket_s > 0
        self._rate = rate
        self._buckets = buckets
        self._bucket_s = bucket_s
        self._amounts: deque[tuple[int, int]] = deque()
        """(bucket's number, bytes), rising; those in the window that have any."""
        self._sum = 0
        self._debt = 0
        self._current = self._number(now)

    @property
    def rate(self) -> int:
        """Bytes a second."""
        return self._rate

    def set_rate(self, rate: int, now: float) -> None:
        """What is in the window stays; the room changes at once."""
        self._advance(now)
        self._rate = rate
        self._fill(self._current)

    @property
    def _capacity(self) -> int:
        return int(self._rate * self._buckets * self._bucket_s)

    def record(self, size_bytes: int, now: float) -> None:
        if self._rate >= UNLIMITED:
            return
        self._advance(now)
        self._debt += size_bytes
        self._fill(self._current)

    def wait_s(self, now: float) -> float:
        """After how long there is room, if nothing is recorded meanwhile; 0: there is."""
        if self._rate >= UNLIMITED:
            return 0.0
        self._advance(now)
        capacity = self._capacity
        needed = self._sum + self._debt - capacity
        if needed < 0:
            return 0.0
        # A bucket of the debt is forgotten, too: for large debts windows pass.
        windows = self._debt // max(capacity, 1)
        needed -= windows * capacity
        for number, amount in self._amounts:
            needed -= amount
            if needed < 0:
                at = (number + self._buckets) * self._bucket_s
                return max(at - now, 0.0) + windows * self._buckets * self._bucket_s
        return (windows + 1) * self._buckets * self._bucket_s

    def used(self, now: float) -> float:
        """Bytes a second over the window."""
        self._advance(now)
        return self._sum / (self._buckets * self._bucket_s)

    def _number(self, now: float) -> int:
        return int(now // self._bucket_s)

    def _advance(self, now: float) -> None:
        number = self._number(now)
        if number <= self._current:
            return
        while self._amounts and self._amounts[0][0] + self._buckets <= number:
            oldest, amount = self._amounts.popleft()
            self._sum -= amount
            self._fill(oldest + self._buckets)
        self._current = number

    def _fill(self, number: int) -> None:
        """The debt takes the room that is there when this bucket is the current one."""
        moved = min(self._debt, max(self._capacity - self._sum, 0))
        if not moved:
            return
        self._debt -= moved
        self._sum += moved
        if self._amounts and self._amounts[-1][0] == number:
            moved += self._amounts.pop()[1]
        self._amounts.append((number, moved))
