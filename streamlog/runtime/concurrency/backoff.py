"""Waits between tries: they double, with jitter from injected randomness."""

from __future__ import annotations

import asyncio

from streamlog.runtime.rand import Random


class Backoff:
    """The waits of one series of tries: `wait_ms` at first, `wait_ms_max` at most."""

    def __init__(self, wait_ms: float, wait_ms_max: float, random: Random) -> None:
        self._wait_ms = float(wait_ms)
        self._wait_ms_max = float(wait_ms_max)
        self._random = random
        self.tries = 0

    async def sleep(self) -> None:
        """Waits between half and the whole of the current interval, then doubles it."""
        self.tries += 1
        wait_ms, self._wait_ms = self._wait_ms, min(self._wait_ms * 2, self._wait_ms_max)
        await asyncio.sleep(wait_ms * (0.5 + self._random.random() / 2) / 1000)
