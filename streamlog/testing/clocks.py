"""A clock that a test moves."""

from __future__ import annotations


class ManualClock:
    """Wall and monotonic time move together, by `advance`; `set_by` moves wall time alone."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._start_ms = now_ms
        self._elapsed_ms = 0

    def now_ms(self) -> int:
        return self._start_ms + self._elapsed_ms

    def monotonic(self) -> float:
        return self._elapsed_ms / 1000

    def advance(self, elapsed_ms: int) -> None:
        self._elapsed_ms += elapsed_ms

    def set_by(self, change_ms: int) -> None:
        """Sets the wall clock ahead, or back (a negative change)."""
        self._start_ms += change_ms
