"""Metrics of the process: resident memory, and how late its event loop runs."""

from __future__ import annotations

import asyncio
import os

from streamlog.runtime.concurrency.background import Background
from streamlog.server.metrics import ServerMetrics

LAG_INTERVAL_S = 0.05
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def resident_bytes() -> int:
    """0 where the system has no /proc."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * _PAGE_BYTES
    except FileNotFoundError:
        return 0


def watch_loop_lag(background: Background, metrics: ServerMetrics) -> None:
    """Measures, 20 times a second, how much later than asked for a timer runs."""

    async def watch() -> None:
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + LAG_INTERVAL_S
            await asyncio.sleep(LAG_INTERVAL_S)
            metrics.loop_lag.observe(max(0.0, loop.time() - due))

    background.spawn(watch(), name="loop_lag")
