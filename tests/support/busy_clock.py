"""A clock of a process whose event loop is late."""

from __future__ import annotations

from tests.support.virtual_time import LoopClock


class BusyClock(LoopClock):
    """While `slowness` is above 1 every timer of the loop runs late by that factor."""

    def __init__(self, slowness: float = 1.0) -> None:
        self.slowness = slowness
        self._at = self._shown = 0.0

    def monotonic(self) -> float:
        now = super().monotonic()
        self._shown += (now - self._at) * self.slowness
        self._at = now
        return self._shown
