"""Time comes from a Clock, so that a day of retention runs in milliseconds under simulation."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Wall and monotonic time. `asyncio.sleep` follows the event loop's own clock."""

    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch; may jump."""
        ...

    def monotonic(self) -> float:
        """Seconds; never goes back."""
        ...


class SystemClock:
    """The machine's clock."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()
