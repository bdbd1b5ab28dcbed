"""Which faults strike, and how often. All chances are per call."""

from __future__ import annotations

from dataclasses import dataclass

from streamlog.runtime.rand import SeededRandom
from streamlog.testing.torn_disk import DiskFault


@dataclass(frozen=True)
class FaultRates:
    """Chances in [0, 1]: of each kind of remote fault per call; `disk`: of a failed write."""

    refused: float = 0.02
    lost: float = 0.02
    late: float = 0.01
    disk: float = 0.01
    outage: float = 0.3
    """Chance that a minute of the history has an outage of the store or the metadata."""


@dataclass
class FaultSource:
    """Draws faults; `calm` draws none (the end of a history, when everything must come right)."""

    random: SeededRandom
    rates: FaultRates
    calm: bool = False
    store_away_until: float = 0.0
    kv_away_until: float = 0.0

    def remote(self, now: float, away_until: float) -> str | None:
        if self.calm:
            return None
        if now < away_until:
            return "refused"
        draw = self.random.random()
        for kind in ("refused", "lost", "late"):
            chance: float = getattr(self.rates, kind)
            if draw < chance:
                return kind
            draw -= chance
        return None

    def disk(self) -> DiskFault | None:
        if self.calm or self.random.random() >= self.rates.disk:
            return None
        return DiskFault.FULL if self.random.random() < 0.5 else DiskFault.IO_ERROR
