"""Waits between tries: doubling, with jitter, from injected randomness."""

from __future__ import annotations

import asyncio

from streamlog.engine.config import AppendConfig
from streamlog.runtime.rand import Random


class Backoff:
    """The waits of one series of tries."""

    def __init__(self, config: AppendConfig, random: Random) -> None:
        self._config = config
        self._random = random
        self._wait_ms = float(config.retry_backoff_ms)
        self.tries = 0

    async def sleep(self) -> None:
        """Waits between half and the whole of the current interval, then doubles it."""
        self.tries += 1
        wait_ms, self._wait_ms = (
            self._wait_ms,
            min(self._wait_ms * 2, float(self._config.retry_backoff_ms_max)),
        )
        await asyncio.sleep(wait_ms * (0.5 + self._random.random() / 2) / 1000)
