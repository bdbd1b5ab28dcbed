"""The throttle of a node whose event loop is late, and foreground I/O beside it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from prometheus_client import CollectorRegistry

from streamlog.runtime.concurrency.background import Background
from streamlog.runtime.concurrency.catch_up_throttle import (
    CatchUpLimits,
    CatchUpMetrics,
    CatchUpThrottle,
)
from tests.support.busy_clock import BusyClock

MIB = 1 << 20
RATE = 8 * MIB
LIMITS = CatchUpLimits(RATE, MIB, 0.5, 10_000)


class BusyNode:
    """With a clock whose slowness is 1.1 the throttle stays at its least rate."""

    def __init__(self, limits: CatchUpLimits, clock: BusyClock) -> None:
        self.clock = clock
        self.registry = CollectorRegistry()
        self.failures: list[BaseException] = []
        self.background = Background("test", self.failures.append)
        self.throttle = CatchUpThrottle(
            limits, self.background, self.clock, CatchUpMetrics(self.registry)
        )

    def metric(self, name: str) -> float:
        return self.registry.get_sample_value(f"streamlog_engine_catch_up_{name}") or 0.0

    @asynccontextmanager
    async def foreground(self) -> AsyncIterator[None]:
        """Somebody else's appends, during the block."""

        async def note() -> None:
            while True:
                self.throttle.note_foreground_io()
                await asyncio.sleep(0.05)

        task = asyncio.ensure_future(note())
        await asyncio.sleep(0)
        try:
            yield
        finally:
            task.cancel()

    async def close(self) -> None:
        self.throttle.close()
        await self.background.close()
        assert self.failures == []
        assert self.metric("waiting") == 0


@asynccontextmanager
async def busy_node(
    limits: CatchUpLimits = LIMITS, clock: BusyClock | None = None
) -> AsyncIterator[BusyNode]:
    node = BusyNode(limits, clock or BusyClock(1.1))
    try:
        yield node
    finally:
        await node.close()
