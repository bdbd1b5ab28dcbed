"""How the metadata retries: doubling waits with jitter, without end or up to a deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from streamlog.errors import Closed, OutcomeUnknown, StreamlogError, Unavailable
from streamlog.metadata.config import MetadataConfig
from streamlog.runtime.clock import Clock
from streamlog.runtime.rand import Random

T = TypeVar("T")
TRANSIENT = (Unavailable, OutcomeUnknown)


def is_transient(error: StreamlogError) -> bool:
    """Whether the same call may succeed later; not so once the KV store was closed."""
    return isinstance(error, TRANSIENT) and not isinstance(error, Closed)


class MetadataBackoff:
    """The waits of one operation. `deadline`: the operation's `operation_timeout_ms` applies."""

    def __init__(
        self, config: MetadataConfig, clock: Clock, random: Random, *, deadline: bool
    ) -> None:
        self._config = config
        self._clock = clock
        self._random = random
        self._wait_ms = float(config.retry_backoff_ms)
        self._end = clock.monotonic() + config.operation_timeout_ms / 1000 if deadline else None

    async def after(self, error: StreamlogError) -> None:
        """Waits; raises the error itself when it is not transient or the deadline passed."""
        if not is_transient(error) or self.is_over:
            raise error
        await self.wait()

    async def run(self, call: Callable[[], Awaitable[T]]) -> T:
        """Calls until the call succeeds. Errors: as `after`."""
        while True:
            try:
                return await call()
            except StreamlogError as error:
                await self.after(error)

    @property
    def is_over(self) -> bool:
        return self._end is not None and self._clock.monotonic() >= self._end

    def left_s(self) -> float | None:
        """Seconds to the deadline; None: there is none."""
        return None if self._end is None else max(self._end - self._clock.monotonic(), 0.0)

    async def wait(self) -> None:
        await asyncio.sleep(self._wait_ms * (0.5 + self._random.random() / 2) / 1000)
        self._wait_ms = min(2 * self._wait_ms, self._config.retry_backoff_max_ms)


class RetryPolicy:
    """Makes the MetadataBackoff of each operation."""

    def __init__(self, config: MetadataConfig, clock: Clock, random: Random) -> None:
        self._config = config
        self._clock = clock
        self._random = random

    def endless(self) -> MetadataBackoff:
        return MetadataBackoff(self._config, self._clock, self._random, deadline=False)

    def bounded(self) -> MetadataBackoff:
        return MetadataBackoff(self._config, self._clock, self._random, deadline=True)
