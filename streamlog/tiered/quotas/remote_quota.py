"""RemoteQuota: who copies to the remote tier, or reads from it, asks here first (RLMQuotaManager).

A node has one for copies and one for reads. A change of the rate holds at once, also for those who
wait. Copies are recorded when they are let in, so that however many tasks copy, the bytes of any
time are those that the quota allows and one segment at most. Reads are recorded when their size is
known: so many reads at a time as there are reader tasks may come beside.
"""

from __future__ import annotations

import asyncio

from prometheus_client import CollectorRegistry, Counter, Gauge

from streamlog.runtime.clock import Clock
from streamlog.tiered.quotas.byte_window import UNLIMITED, ByteWindow

WAITS_KEPT = 100
"""Waits that the metrics of their times are of."""


class RemoteQuota:
    """A CopyQuota and a FetchQuota. `operation` names its metrics."""

    def __init__(
        self,
        operation: str,
        window: ByteWindow,
        clock: Clock,
        registry: CollectorRegistry,
    ) -> None:
        self._window = window
        self._clock = clock
        self._changed = asyncio.Event()
        self._waits: list[float] = []

        def gauge(name: str, text: str) -> Gauge:
            return Gauge(f"streamlog_remote_{operation}_{name}", text, registry=registry)

        self._throttled = Counter(
            f"streamlog_remote_{operation}_throttles",
            "Calls that had to wait for the quota, or were turned away.",
            registry=registry,
        )
        self._average = gauge("throttle_time_avg_ms", "Mean of the last waits for the quota.")
        self._longest = gauge("throttle_time_max_ms", "Longest of the last waits for the quota.")
        self._rate = gauge("quota_bytes_per_second", "The quota; 9.2e18: there is none.")
        self._rate.set(window.rate)

    @property
    def rate(self) -> int:
        return self._window.rate

    def set_rate(self, rate: int) -> None:
        """Bytes a second; UNLIMITED: there is no quota."""
        if rate != self._window.rate:
            self._window.set_rate(rate, self._clock.monotonic())
            self._rate.set(rate)
            self._changed.set()
            self._changed = asyncio.Event()

    async def before_segment(self, size_bytes: int, *, may_wait: bool) -> bool:
        """As CopyQuota.before_segment."""
        if not await self._room(None if may_wait else self._clock.monotonic()):
            return False
        self.record(size_bytes)
        return True

    async def until_below(self, deadline: float) -> bool:
        """As FetchQuota.until_below."""
        return await self._room(deadline)

    def record(self, size_bytes: int) -> None:
        self._window.record(size_bytes, self._clock.monotonic())

    async def _room(self, deadline: float | None) -> bool:
        began = now = self._clock.monotonic()
        wait_s = self._window.wait_s(now)
        if not wait_s:
            return True
        self._throttled.inc()
        try:
            while wait_s:
                left_s = wait_s if deadline is None else min(wait_s, deadline - now)
                if left_s <= 0:
                    return False
                changed = asyncio.ensure_future(self._changed.wait())
                try:
                    await asyncio.wait({changed}, timeout=left_s)
                finally:
                    changed.cancel()
                now = self._clock.monotonic()
                wait_s = self._window.wait_s(now)
            return True
        finally:
            self._waited(self._clock.monotonic() - began)

    def _waited(self, seconds: float) -> None:
        self._waits = [*self._waits[-WAITS_KEPT + 1 :], seconds * 1000]
        self._average.set(sum(self._waits) / len(self._waits))
        self._longest.set(max(self._waits))


def remote_quota(
    operation: str,
    rate: int,
    buckets: int,
    bucket_s: float,
    clock: Clock,
    registry: CollectorRegistry,
) -> RemoteQuota:
    window = ByteWindow(rate, buckets, bucket_s, clock.monotonic())
    return RemoteQuota(operation, window, clock, registry)


__all__ = ["UNLIMITED", "RemoteQuota", "remote_quota"]
