"""Which producers' next transactional batch is let in (KIP-890). Pure.

    unknown ──asked──▶ ASKED ──verified──▶ VERIFIED ──the transaction begins──▶ unknown
                         │                    └────────────a marker──────────────▲
                         └──a marker──▶ STALE ──verified──────────────────────────┘
                                          └────asked───▶ ASKED

The coordinator is asked between `asked` and `verified`. An answer that a marker has overtaken
belongs to a transaction that has ended: it lets nothing in.

Kept for one epoch of a producer, the last that came; bounded: the pair that waits for longest is
forgotten and has to be verified again. Source: Kafka's VerificationStateEntry.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

PAIRS_MAX = 10_000


class _State(Enum):
    ASKED = "asked"
    VERIFIED = "verified"
    STALE = "stale"


class _Pair(NamedTuple):
    producer_epoch: int
    state: _State


class Verifications:
    def __init__(self, pairs_max: int = PAIRS_MAX) -> None:
        self._pairs: dict[int, _Pair] = {}
        self._pairs_max = pairs_max

    def __len__(self) -> int:
        return len(self._pairs)

    def is_verified(self, producer_id: int, producer_epoch: int) -> bool:
        return self._pairs.get(producer_id) == (producer_epoch, _State.VERIFIED)

    def asked(self, producer_id: int, producer_epoch: int) -> None:
        """The coordinator is asked for this pair now."""
        self._keep(producer_id, _Pair(producer_epoch, _State.ASKED))

    def verified(self, producer_id: int, producer_epoch: int) -> None:
        """The coordinator has the partition in the pair's transaction."""
        if self._pairs.get(producer_id) == (producer_epoch, _State.STALE):
            del self._pairs[producer_id]
        else:
            self._keep(producer_id, _Pair(producer_epoch, _State.VERIFIED))

    def begun(self, producer_id: int) -> None:
        """The producer's transaction is open: its batches are let in by that."""
        self._pairs.pop(producer_id, None)

    def ended(self, producer_id: int) -> None:
        """A marker of the producer has come."""
        pair = self._pairs.pop(producer_id, None)
        if pair is not None and pair.state is not _State.VERIFIED:
            self._keep(producer_id, pair._replace(state=_State.STALE))

    def _keep(self, producer_id: int, pair: _Pair) -> None:
        """As the newest one."""
        self._pairs.pop(producer_id, None)
        if len(self._pairs) >= self._pairs_max:
            del self._pairs[next(iter(self._pairs))]
        self._pairs[producer_id] = pair
