"""Decides when the open batch becomes an object. Pure.

A batch is flushed at once if it is full, if a flush was requested (appends wait for room, or a
caller waits for the commit), or if it is as large as the uploads in flight and large enough that
its PUT is cheap for its bytes. Otherwise it is flushed after the interval. An adaptive policy does
not wait for the interval when no upload is in flight, but keeps the distance between PUTs that the
PUT rate demands.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class FlushDecision(NamedTuple):
    """Flush at `due_at` (monotonic seconds; in the past: now), for `reason`."""

    due_at: float
    reason: str


@dataclass(frozen=True, slots=True)
class FlushPolicy:
    """`put_distance_s`: least time between the uploads of two small batches; 0: none."""

    bytes_target: int
    interval_s: float
    is_adaptive: bool
    put_distance_s: float = 0.0
    overlap_bytes: int | None = None
    """A batch of this size is uploaded beside those in flight once it is as large as all of them,
    so that objects grow with the load, and without regard to `put_distance_s`. None: never."""

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
