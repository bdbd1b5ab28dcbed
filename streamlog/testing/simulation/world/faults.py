"""The kinds of faults, and how often each strikes; per call unless stated otherwise."""

from __future__ import annotations

from dataclasses import dataclass, replace

from streamlog.runtime.rand import SeededRandom
from streamlog.testing.torn_media import DiskFault

LATE_EFFECT_S_MAX = 6.0
"""The longest time between a request and its effect. Deletions wait longer (NODE_CONFIG): an object
that lands after its deletion stays for ever, in a real store too."""
SLOW_ANSWER_S_MAX = 60.0

REMOTE_KINDS = ("refused", "lost", "late", "gone", "stuck", "slow")
STATEFUL_KINDS = (
    "crash",
    "power-cut",
    "zombie",
    "pause",
    "torn-write",
    "clock-jump",
    "watch-broken",
    "watch-lag",
)


@dataclass(frozen=True)
class FaultRates:
    """Chances in [0, 1] of each kind of fault; 0 switches a kind off."""

    refused: float = 0.02
    """A call to store or metadata fails without effect."""
    lost: float = 0.02
    """The call takes effect, and the answer is lost."""
    late: float = 0.008
    """The caller is told that the outcome is unknown; the effect lands later."""
    gone: float = 0.004
    """The caller's time-out passes, and nothing ever happens."""
    stuck: float = 0.004
    """The effect is late, later calls overtake it, and the answer comes."""
    slow: float = 0.002
    """The answer takes up to a minute."""
    cut: float = 0.02
    """Per piece of a GET: the rest does not come."""
    twice: float = 0.05
    """Per piece of a GET: all pieces before it come once more."""
    compaction_stuck: float = 0.2
    """Per compaction commit: as `stuck`, so that another compactor's may come first."""
    disk: float = 0.01
    """A write, sync or rename on the local disk fails."""
    disk_slow: float = 0.01
    """A sync takes up to some seconds."""
    disk_full: float = 0.1
    """Per second: the local disk has no room for a while."""
    outage: float = 0.06
    """Per second and for each of store and metadata: an outage begins."""
    watch_broken: float = 0.01
    """Per batch of changes that a node hears of: the watch breaks."""
    watch_lag: float = 0.03
    """Per batch of changes: the node hears of it seconds later."""
    clock_jump: float = 0.1
    """Per second and node: the wall clock is set."""

    def scaled(self, share: float) -> FaultRates:
        """The same rates, with calls to store and metadata failing `share` times as often."""
        kinds = (*REMOTE_KINDS, "cut")
        return replace(self, **{kind: share * getattr(self, kind) for kind in kinds})


FAULTS = FaultRates()
NO_FAULTS = FaultRates(*[0.0] * len(FaultRates.__dataclass_fields__))


@dataclass
class FaultSource:
    """Draws faults; none once `is_healed`, at the end of a history."""

    random: SeededRandom
    rates: FaultRates
    is_healed: bool = False
    store_away_until: float = 0.0
    kv_away_until: float = 0.0
    disk_full_until: float = 0.0

    def __post_init__(self) -> None:
        edges, edge = [], 0.0
        for kind in REMOTE_KINDS:
            edge += getattr(self.rates, kind)
            edges.append((edge, kind))
        self._edges = edges
        self._edge_max = edge

    def remote(self, now: float, away_until: float) -> str | None:
        if self.is_healed:
            return None
        if now < away_until:
            return "refused"
        draw = self.random.random()
        if draw >= self._edge_max:
            return None
        return next(kind for edge, kind in self._edges if draw < edge)

    def happens(self, chance: float) -> bool:
        """Draws whether a fault with this chance strikes now."""
        return not self.is_healed and self.random.random() < chance

    def disk(self, now: float) -> DiskFault | None:
        if self.is_healed:
            return None
        if now < self.disk_full_until:
            return DiskFault.FULL
        if self.random.random() >= self.rates.disk:
            return None
        return DiskFault.FULL if self.random.random() < 0.5 else DiskFault.IO_ERROR

    def outage_s(self) -> float:
        """How long an outage lasts: mostly seconds, at times a minute."""
        draw = self.random.random()
        return 60.0 * self.random.random() if draw < 0.03 else 4.0 * draw

    def stall_s(self) -> float:
        """How long the disk access that begins now stalls."""
        return 4.0 * self.random.random() if self.happens(self.rates.disk_slow) else 0.0
