"""A clock on the virtual time of the running simulation loop."""

from __future__ import annotations

import asyncio

START_MS = 1_700_000_000_000


class LoopClock:
    """Moves as the loop's timers do."""

    def now_ms(self) -> int:
        return START_MS + round(self.monotonic() * 1000)

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()
