"""minOffsetsPerTrigger and maxTriggerDelay, as Spark's Kafka source has them: a micro-batch waits
until enough records have come, or until the last one is long enough ago.

The first micro-batch of a run never waits: how long ago the run before had its last one is not
known, and a query that is restarted often would otherwise never read a small topic.
"""

from __future__ import annotations

import re

from streamlog.runtime.clock import Clock

MAX_TRIGGER_DELAY = "15m"
_UNITS_MS = {
    "us": 0.001,
    "ms": 1,
    "s": 1000,
    "m": 60_000,
    "min": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
}


def parse_duration_ms(text: str) -> int:
    """Spark's way to write a time: 500ms, 10s, 15m, 15min, 2h, 1d; a bare number is milliseconds.

    Errors: ValueError.
    """
    match = re.fullmatch(r"(\d+)\s*([a-z]*)", text.strip().lower())
    if match is None or (match[2] or "ms") not in _UNITS_MS:
        raise ValueError(f"{text!r} is no time such as 500ms, 10s, 15m, 2h or 1d")
    return int(int(match[1]) * _UNITS_MS[match[2] or "ms"])


class TriggerDelay:
    """Whether the next micro-batch waits for more records; one for each run of a query."""

    def __init__(self, rows_min: int, delay_max_ms: int, clock: Clock) -> None:
        self._rows_min = rows_min
        self._delay_max_s = delay_max_ms / 1000
        self._clock = clock
        self._last_at: float | None = None

    def is_due(self, rows: int) -> bool:
        """Whether `rows` new records are read now. True restarts the clock of maxTriggerDelay."""
        now = self._clock.monotonic()
        is_late = self._last_at is None or now - self._last_at >= self._delay_max_s
        if rows < self._rows_min and not is_late:
            return False
        self._last_at = now
        return True
