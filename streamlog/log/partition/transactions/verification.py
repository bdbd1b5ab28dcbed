"""Which producers' next transactional batch is let in (KIP-890). Pure.

    unknown ──verified──▶ VERIFIED ──the transaction begins, or a marker──▶ unknown

The coordinator is asked between `guard` and `verified`. A guard counts the markers of the log up to
the question: an answer that a marker of its producer has overtaken belongs to a transaction that
has ended, and lets nothing in, however many questions are under way.

Bounded: the producer that waits for longest is forgotten and has to be verified again. Of the last
markers the oldest are forgotten, too; what was asked before them counts as overtaken. Source:
Kafka's VerificationGuard and VerificationStateEntry.
"""

from __future__ import annotations

PRODUCERS_MAX = 10_000


class Verifications:
    def __init__(self, producers_max: int = PRODUCERS_MAX) -> None:
        self._producers_max = producers_max
        self._epochs: dict[int, int] = {}
        """Verified producers: id → epoch."""
        self._markers = 0
        self._last_marker: dict[int, int] = {}
        """Producer id → which of the log's markers its last one was; the newest is the last."""
        self._forgotten = 0
        """Up to this marker, producers' last ones may be forgotten."""

    def __len__(self) -> int:
        return len(self._epochs)

    @property
    def guard(self) -> int:
        """What `verified` is given when the coordinator, asked now, has answered."""
        return self._markers

    def is_verified(self, producer_id: int, producer_epoch: int) -> bool:
        return self._epochs.get(producer_id) == producer_epoch

    def verified(self, producer_id: int, producer_epoch: int, guard: int) -> None:
        """The coordinator has the partition in the pair's transaction."""
        if guard < self._last_marker.get(producer_id, self._forgotten):
            return
        self._epochs.pop(producer_id, None)
        if len(self._epochs) >= self._producers_max:
            del self._epochs[next(iter(self._epochs))]
        self._epochs[producer_id] = producer_epoch

    def begun(self, producer_id: int) -> None:
        """The producer's transaction is open: its batches are let in by that."""
        self._epochs.pop(producer_id, None)

    def ended(self, producer_id: int) -> None:
        """A marker of the producer has come."""
        self._epochs.pop(producer_id, None)
        self._markers += 1
        last = self._last_marker
        last.pop(producer_id, None)
        if len(last) >= self._producers_max:
            self._forgotten = last.pop(next(iter(last)))
        last[producer_id] = self._markers
