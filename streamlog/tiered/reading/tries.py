"""Tries of a plug-in's call: an outage is told, a try that does not end is given up."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from streamlog.errors import Corrupt, NotFound, UnsupportedVersion
from streamlog.runtime.clock import Clock
from streamlog.tiered.reading.failures import RemoteFailures
from streamlog.tiered.reading.plugin_calls import PluginCalls

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PluginTries:
    """`for_ms`: how long a call is repeated; `timeout_ms`: of one try."""

    clock: Clock
    failures: RemoteFailures
    calls: PluginCalls
    for_ms: int = 5_000
    timeout_ms: int = 30_000
    retry_ms: int = 100
    retry_ms_max: int = 2_000

    async def run(self, doing: str, work: Callable[[], Awaitable[T]]) -> T:
        """Errors: StoreUnavailable; as the call raised them those that another try would not mend:
        NotFound, Corrupt, UnsupportedVersion."""
        until = self.clock.monotonic() + self.for_ms / 1000
        retry_ms = self.retry_ms
        while True:
            try:
                result = await self.calls.run(doing, self.timeout_ms, work)
            except (NotFound, Corrupt, UnsupportedVersion):
                raise
            except Exception as error:
                # A plug-in may raise anything: the outage is shown, and ends with a success.
                self.failures.failed(error)
                if self.clock.monotonic() + retry_ms / 1000 >= until:
                    raise self.failures.error(doing) from error
                await asyncio.sleep(retry_ms / 1000)
                retry_ms = min(2 * retry_ms, self.retry_ms_max)
                continue
            self.failures.succeeded()
            return result
