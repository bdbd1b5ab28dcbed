"""Bytes over a rolling window, as Kafka measures them, and what of them is not paid yet. Pure.

1. Amounts go into the newest piece; one that comes a bucket or more after its begin begins another
   piece. A piece counts until nothing was added to it for the whole window: so the window has
   `buckets` whole pieces and the newest one.
2. There is room while the bytes that count are at most what the rate pays since the oldest piece
   began, which is taken for one bucket at least. So an empty window lets in one bucket's worth and
   the rest of one amount, not a whole window's worth, and each amount is paid before the next.
3. What a piece had above what its own time has paid is a debt when the piece is forgotten: the next
   one has it. What its time would have paid beyond is lost.

Kafka lacks 3. It forgets the bytes, and a sample that it has emptied counts as time in which nobody
used anything, though that time pays for the samples that are left: segments of more than a quarter
of the window are copied above the quota for ever. Rate over 12 windows of 61 × 1 s and of 11 × 1 s,
in quotas, from one segment's begin to another's, the same with one task as with ten:

segment, in quota × window   0.01  0.1   0.25  0.3   0.4   0.49  0.5   0.9   1.5   3
Kafka's SimpleRate, 61       1.00  1.00  1.00  1.17  1.17  1.38  1.00  1.72  1.50  3.00
Kafka's SimpleRate, 11       1.00  1.00  1.00  1.08  1.10  1.26  1.00  1.53  1.50  3.00
here, both                   1.00  1.00  1.00  1.00  1.00  1.00  1.00  1.00  1.00  1.00

Bound: in any time that is longer than the window and a bucket, from one record's to another's, the
bytes are at most what the rate pays in that time and two buckets, and one amount. In less time they
may be what was left of the window: who has used little of it may use the rest at once, and pays for
it then.

Source: Kafka's RLMQuotaManager, SampledStat, SimpleRate, QuotaUtils.throttleTime (KIP-956); RFC 14.
"""

from __future__ import annotations

from collections import deque

UNLIMITED = (1 << 63) - 1


class _Piece:
    """`charge` and `paid` are in thousandths of bytes: a millisecond pays the rate."""

    __slots__ = ("amount", "began_ms", "charge", "last_ms", "paid")

    def __init__(self, began_ms: int) -> None:
        self.began_ms = began_ms
        self.last_ms = began_ms
        self.amount = 0
        self.charge = 0
        """Its bytes, and the debt of those before it."""
        self.paid = 0
        """What the time from its begin to that of the next one has paid."""


class ByteWindow:
    """`now` is monotonic seconds, and never goes back. UNLIMITED records nothing."""

    __slots__ = ("_bucket_ms", "_owed", "_pieces", "_rate", "_settled_ms", "_sum", "_window_ms")

    def __init__(self, rate: int, buckets: int, bucket_s: float, now: float) -> None:
        assert rate > 0
        assert buckets > 0
        assert bucket_s >= 0.001
        self._rate = rate
        self._bucket_ms = round(bucket_s * 1000)
        self._window_ms = buckets * self._bucket_ms
        self._pieces: deque[_Piece] = deque()
        self._sum = 0
        self._owed = 0
        """Σ (charge - paid) of the pieces at `_settled_ms`, in thousandths of bytes."""
        self._settled_ms = _milliseconds(now)

    @property
    def rate(self) -> int:
        """Bytes a second."""
        return self._rate

    def set_rate(self, rate: int, now: float) -> None:
        """What counts stays, and is measured by the new rate from now on.

        A higher rate pays for what counts as if it had held before. A lower one makes no debt of
        what the higher one has paid.
        """
        now_ms = self._settle(now)
        self._rate = rate
        if rate >= UNLIMITED:
            self._pieces.clear()
            self._sum = self._owed = 0
            return
        end_ms, owed = now_ms, 0
        for piece in reversed(self._pieces):
            piece.paid = max(piece.paid, rate * (end_ms - piece.began_ms))
            owed += piece.charge - piece.paid
            end_ms = piece.began_ms
        self._owed = owed

    def record(self, size_bytes: int, now: float) -> None:
        if self._rate >= UNLIMITED:
            return
        now_ms = self._settle(now)
        pieces = self._pieces
        if not pieces or now_ms - pieces[-1].began_ms >= self._bucket_ms:
            pieces.append(_Piece(now_ms))
        newest = pieces[-1]
        newest.last_ms = now_ms
        newest.amount += size_bytes
        newest.charge += size_bytes * 1000
        self._sum += size_bytes
        self._owed += size_bytes * 1000

    def wait_s(self, now: float) -> float:
        """After how long there is room, if nothing is recorded meanwhile; 0: there is."""
        if self._rate >= UNLIMITED:
            return 0.0
        now_ms = self._settle(now)
        if not self._pieces:
            return 0.0
        owed, total, debt, from_ms = self._owed, self._sum, 0, now_ms
        last = len(self._pieces) - 1
        for index, piece in enumerate(self._pieces):
            debt += piece.charge - piece.amount * 1000
            # Until its first bucket is over, that counts as a whole, unless there is a debt.
            full_ms = piece.began_ms if debt else piece.began_ms + self._bucket_ms
            ready_ms = max(from_ms, self._paid_ms(owed, total, piece.began_ms, full_ms))
            forgotten_ms = piece.last_ms + self._window_ms
            if ready_ms < forgotten_ms:
                return (ready_ms - now_ms) / 1000
            from_ms = forgotten_ms
            total -= piece.amount
            if index < last:
                left = debt + piece.amount * 1000 - piece.paid
                debt = max(left, 0)
                owed += debt - left
        return max(from_ms - now_ms, _ceil(owed, self._rate)) / 1000

    def _paid_ms(self, owed: int, total: int, began_ms: int, full_ms: int) -> int:
        """When the rate has paid what is owed now, and the `total` bytes since `began_ms`."""
        rate = self._rate
        if owed <= rate * (full_ms - self._settled_ms) and total * 1000 <= rate * (
            full_ms - began_ms
        ):
            return self._settled_ms
        return max(self._settled_ms + _ceil(owed, rate), began_ms + _ceil(total * 1000, rate))

    def _settle(self, now: float) -> int:
        """Forgets what is too old, and pays until now. Returns now in milliseconds."""
        now_ms = _milliseconds(now)
        pieces = self._pieces
        while pieces and pieces[0].last_ms + self._window_ms <= now_ms:
            oldest = pieces.popleft()
            self._sum -= oldest.amount
            if not pieces:
                self._pay(oldest, oldest.last_ms + self._window_ms)
            left = oldest.charge - oldest.paid
            if left <= 0:
                self._owed -= left
            elif pieces:
                pieces[0].charge += left
            else:
                # It stays for its debt, for another window.
                oldest.amount, oldest.last_ms = 0, self._settled_ms
                pieces.append(oldest)
        if pieces:
            self._pay(pieces[-1], now_ms)
        self._settled_ms = now_ms
        return now_ms

    def _pay(self, newest: _Piece, until_ms: int) -> None:
        paid = self._rate * (until_ms - self._settled_ms)
        newest.paid += paid
        self._owed -= paid
        self._settled_ms = until_ms


def _milliseconds(now: float) -> int:
    # Whole milliseconds, as in Kafka: a fraction could count a piece as not yet forgotten.
    return round(now * 1000)


def _ceil(amount: int, rate: int) -> int:
    return -(-amount // rate)
