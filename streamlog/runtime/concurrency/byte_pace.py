"""A pace for work that moves bytes: who is ahead of the rate waits until time has paid for it.

In any time t the bytes are at most rate × t and those of one call. Time in which nobody spends pays
for nothing later. A rate that changes counts from then on, also for a call that waits.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable

from streamlog.runtime.clock import Clock

UNLIMITED = sys.float_info.max
LOOK_S = 1.0
"""A waiting call looks at the rate this often: it may have changed."""
SLEEP_S_MIN = 0.001
"""A shorter wait is left to the next call."""


class BytePace:
    """`rate()`: bytes a second. One call at a time."""

    def __init__(self, rate: Callable[[], float], clock: Clock) -> None:
        self._rate = rate
        self._clock = clock
        self._owed = 0.0
        self._paid_until = clock.monotonic()

    async def spend(self, size_bytes: int) -> None:
        """Returns when the bytes, which were moved just now, are paid. Cancelling it leaves them
        owed."""
        self._pay()
        self._owed += size_bytes
        while (wait_s := self._owed / self._rate()) >= SLEEP_S_MIN:
            await asyncio.sleep(min(wait_s, LOOK_S))
            self._pay()

    def _pay(self) -> None:
        now = self._clock.monotonic()
        self._owed = max(0.0, self._owed - self._rate() * (now - self._paid_until))
        self._paid_until = now
