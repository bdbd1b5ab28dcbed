"""How fast compaction may read: a token bucket of bytes."""

from __future__ import annotations

import asyncio

from streamlog.runtime.clock import Clock

BURST_S = 0.25
BUSY_DIVISOR = 4


class RateLimit:
    """Serves callers in the order of their calls; a quarter of the rate while `is_busy`."""

    def __init__(self, bytes_per_s: int, clock: Clock) -> None:
        self._bytes_per_s = bytes_per_s
        self._clock = clock
        self._free_at = clock.monotonic()
        """When the bytes taken so far are used up."""
        self.is_busy = False

    async def take(self, size_bytes: int) -> None:
        """Returns once `size_bytes` more may be read."""
        now = self._clock.monotonic()
        rate = self._bytes_per_s / (BUSY_DIVISOR if self.is_busy else 1)
        self._free_at = max(self._free_at, now - BURST_S) + size_bytes / rate
        if self._free_at > now:
            await asyncio.sleep(self._free_at - now)
