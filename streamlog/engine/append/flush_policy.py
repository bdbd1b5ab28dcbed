"""When the open batch becomes an object: a pure decision.

Full: at once. Pressed (appends wait for room, or somebody waits for the commit): at once. As large
as the uploads under way, and large enough that its PUT costs little for its bytes: at once.
Otherwise after the interval; an adaptive policy does not wait when no upload is under way, but
keeps the distance that the PUT rate asks for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class FlushDecision(NamedTuple):
    """Close at `due_at` (monotonic seconds; in the past: now), for `reason`."""

    due_at: float
    reason: str


@dataclass(frozen=True, slots=True)
class FlushPolicy:
    """`put_distance_s`: least time between two uploads of small batches, 0 for none."""

    bytes_target: int
    interval_s: float
    is_adaptive: bool
    put_distance_s: float = 0.0
    overlap_bytes: int | None = None
    """A batch of this size goes up beside those under way once it is as large as they are together,
    so that objects grow with the load; None: it waits for them. `put_distance_s` is not for it."""

    def decide(
        self,
        *,
        size_bytes: int,
        opened_at: float,
        uploads_in_flight: int,
        bytes_in_flight: int,
        last_closed_at: float,
        is_flush_requested: bool,
    ) -> FlushDecision:
        if size_bytes >= self.bytes_target:
            return FlushDecision(opened_at, "size")
        if is_flush_requested:
            return FlushDecision(opened_at, "pressure")
        if self.overlap_bytes is not None and size_bytes >= max(
            self.overlap_bytes, bytes_in_flight
        ):
            return FlushDecision(opened_at, "overlap")
        earliest = last_closed_at + self.put_distance_s
        if self.is_adaptive and uploads_in_flight == 0:
            return FlushDecision(max(opened_at, earliest), "idle")
        return FlushDecision(max(opened_at + self.interval_s, earliest), "time")
