"""Objects that compaction leaves alone, since they were damaged or missing: each time for longer.

A store may give right bytes again, and an operator may put an object back: so each is tried again
after its rest. How long the next one lasts is forgotten when a merge has used it, or it lives no
more.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from streamlog.runtime.clock import Clock

REST_S = 600.0
REST_S_MAX = 24 * 3600.0


@dataclass(slots=True)
class _Rest:
    until: float
    seconds: float


class Quarantine:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._rests: dict[int, _Rest] = {}

    def add(self, object_id: int) -> float:
        """For how many seconds it is left alone now: twice as long as the last time."""
        known = self._rests.get(object_id)
        seconds = REST_S if known is None else min(2 * known.seconds, REST_S_MAX)
        self._rests[object_id] = _Rest(self._clock.monotonic() + seconds, seconds)
        return seconds

    @property
    def resting(self) -> frozenset[int]:
        """Those that are left alone now."""
        now = self._clock.monotonic()
        return frozenset(one for one, rest in self._rests.items() if rest.until > now)

    @property
    def due(self) -> frozenset[int]:
        """Those that may be tried again."""
        return frozenset(self._rests) - self.resting

    def clear(self, object_ids: Iterable[int]) -> None:
        """They could be used, or are gone."""
        for object_id in object_ids:
            self._rests.pop(object_id, None)
