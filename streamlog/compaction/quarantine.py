"""Damaged or missing objects, which compaction leaves alone for a time, each time for longer.

An object is tried again after its pause, because a store may return right bytes again, and an
operator may put an object back. The quarantine forgets an object once a merge has used it, or once
it is dead.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from streamlog.runtime.clock import Clock

PAUSE_S = 600.0
PAUSE_S_MAX = 24 * 3600.0


@dataclass(slots=True)
class _Pause:
    until: float
    seconds: float


class Quarantine:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._pauses: dict[int, _Pause] = {}

    def add(self, object_id: int) -> float:
        """Seconds for which the object is left alone: twice as many as the last time."""
        last = self._pauses.get(object_id)
        seconds = PAUSE_S if last is None else min(2 * last.seconds, PAUSE_S_MAX)
        self._pauses[object_id] = _Pause(self._clock.monotonic() + seconds, seconds)
        return seconds

    @property
    def excluded(self) -> frozenset[int]:
        """Objects that are left alone now."""
        now = self._clock.monotonic()
        return frozenset(
            object_id for object_id, pause in self._pauses.items() if pause.until > now
        )

    @property
    def due(self) -> frozenset[int]:
        """Objects whose pause is over, and that may be tried again."""
        return frozenset(self._pauses) - self.excluded

    def clear(self, object_ids: Iterable[int]) -> None:
        """Forgets objects that a merge could use, or that are dead."""
        for object_id in object_ids:
            self._pauses.pop(object_id, None)
