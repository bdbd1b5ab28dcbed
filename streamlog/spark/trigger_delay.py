"""minOffsetsPerTrigger and maxTriggerDelay, as in Spark's Kafka source: a micro-batch waits until
enough records have come, or until the last micro-batch is long enough ago.

The first micro-batch of a run never waits: the time of the last one before the run is unknown, and
a query that is restarted often would otherwise never read a small topic.
"""

from __future__ import annotations

import re

from streamlog.runtime.clock import Clock

MAX_TRIGGER_DELAY = "15m"
DELAY_DAYS_MAX = 36_500
"""A bound that keeps the arithmetic exact; Spark's own is that of 64 bits."""
_UNITS_US = {
    "us": 1,
    "ms": 1000,
    "s": 1_000_000,
    "m": 60_000_000,
    "min": 60_000_000,
    "h": 3_600_000_000,
    "d": 86_400_000_000,
}


def parse_duration_ms(text: str) -> int:
    """Parses a duration as Spark writes it: 500ms, 10s, 15m, 15min, 2h, 1d; a bare number is
    milliseconds.

    Errors: ValueError.
    """
    match = re.fullmatch(r"0*(\d{1,19})\s*([a-z]*)", text.strip().lower(), re.ASCII)
    if match is None or (match[2] or "ms") not in _UNITS_US:
        raise ValueError(f"{text[:40]!r} is no time such as 500ms, 10s, 15m, 2h or 1d")
    delay_us = int(match[1]) * _UNITS_US[match[2] or "ms"]
    if delay_us > DELAY_DAYS_MAX * _UNITS_US["d"]:
        raise ValueError(f"{text[:40]!r} is longer than {DELAY_DAYS_MAX}d")
    return delay_us // 1000


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
