"""A rate over a rolling window of samples, as Kafka measures quotas. Pure but for its clock.

The window is `samples` pieces of `sample_s` seconds. Amounts go into the newest piece; the first
one that comes `sample_s` or more after its begin begins another piece. A piece counts until nothing
was added to it for the whole window.

The time that the sum is divided by begins with the oldest piece that counts, and is never less than
all pieces but one, and what of the newest has passed. So the first second of a client that was
silent does not count as its rate for ever, and a burst is allowed that the average allows.

Source: Kafka's SampledStat, Rate and QuotaUtils.throttleTime. Each call costs no more than the
pieces that have expired since the last one, at most `samples` + 1.
"""

from __future__ import annotations

from collections import deque

from streamlog.runtime.clock import Clock


class _Piece:
    __slots__ = ("amount", "began_ms", "last_ms")

    def __init__(self, now_ms: int) -> None:
        self.began_ms = now_ms
        self.last_ms = now_ms
        self.amount = 0.0


class RateWindow:
    """`record` what was used, then ask for the `rate`, or for the wait that a bound asks for."""

    __slots__ = ("_clock", "_pieces", "_sample_ms", "_samples", "_sum")

    def __init__(self, clock: Clock, samples: int, sample_s: float) -> None:
        assert samples > 0
        assert sample_s >= 0.001
        self._clock = clock
        self._samples = samples
        self._sample_ms = round(sample_s * 1000)
        self._pieces: deque[_Piece] = deque()
        self._sum = 0.0

    def record(self, amount: float) -> None:
        """Adds an amount that is used now."""
        now_ms = self._now_ms()
        pieces = self._pieces
        if not pieces or now_ms - pieces[-1].began_ms >= self._sample_ms:
            self._expire(now_ms)
            pieces.append(_Piece(now_ms))
        newest = pieces[-1]
        newest.amount += amount
        newest.last_ms = now_ms
        self._sum += amount

    def rate(self) -> float:
        """Amount a second."""
        now_ms = self._now_ms()
        self._expire(now_ms)
        return self._sum * 1000 / self._measured_ms(now_ms)

    def wait_s(self, bound: float) -> float:
        """After how long without another amount the rate is `bound`; 0: it is not above it.

        `bound`: amount a second, above 0. The wait may be longer than the window, though all is
        forgotten by then: the caller says which of the two counts.
        """
        now_ms = self._now_ms()
        self._expire(now_ms)
        return max(0.0, self._sum / bound - self._measured_ms(now_ms) / 1000)

    def room(self, bound: float) -> float:
        """What may be added now without a wait; below 0: there is a wait already."""
        now_ms = self._now_ms()
        self._expire(now_ms)
        return bound * self._measured_ms(now_ms) / 1000 - self._sum

    def is_empty(self) -> bool:
        """Whether no amount counts any more: the window is as good as a new one."""
        self._expire(self._now_ms())
        return not self._pieces

    def _now_ms(self) -> int:
        # Whole milliseconds, as in Kafka: a fraction could count a piece as not yet whole.
        return round(self._clock.monotonic() * 1000)

    def _expire(self, now_ms: int) -> None:
        pieces, window_ms = self._pieces, self._samples * self._sample_ms
        while pieces and now_ms - pieces[0].last_ms >= window_ms:
            self._sum -= pieces.popleft().amount
        if not pieces:
            self._sum = 0.0  # What subtractions of fractions leave is nobody's.

    def _measured_ms(self, now_ms: int) -> int:
        elapsed_ms = now_ms - self._pieces[0].began_ms if self._pieces else 0
        missing = self._samples - 1 - elapsed_ms // self._sample_ms
        return max(elapsed_ms + max(missing, 0) * self._sample_ms, 1)
