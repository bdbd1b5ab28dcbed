"""RemoteQuota: who copies to the remote tier, or reads from it, asks here first (RLMQuotaManager).

A node has one for copies and one for reads. A change of the rate holds at once, also for those who
wait. Copies are recorded when they are let in, first come, first served: so however many tasks
copy, what is above the quota is one segment at most. Reads are recorded when their size is known,
and `reads_max` of them may be under way: what is above the quota is at most so many reads.

Source: Kafka's RemoteLogManager.RLMCopyTask, which holds a fair lock while it waits, and
ReplicaManager.processRemoteFetches.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, Counter, Gauge

from streamlog.runtime.clock import Clock
from streamlog.tiered.quotas.byte_window import UNLIMITED, ByteWindow

WAITS_KEPT_S = 60
"""Age of the waits that the metrics of their times are of: Kafka's two samples of 30 s."""
WAITS_KEPT = 1000


class RemoteQuota:
    """A CopyQuota and a FetchQuota. `operation` names its metrics."""

    def __init__(
        self,
        operation: str,
        window: ByteWindow,
        clock: Clock,
        registry: CollectorRegistry,
        reads_max: int = 1,
    ) -> None:
        self._window = window
        self._clock = clock
        self._reads_max = reads_max
        self._reads = 0
        """Reads that were let in and are under way."""
        self._turn = asyncio.Lock()
        self._in_line = 0
        """Copies that wait; the one that has the turn goes next."""
        self._changed = asyncio.Event()
        self._waits: deque[tuple[float, float]] = deque(maxlen=WAITS_KEPT)
        """(when it ended, its milliseconds) of each wait."""

        def gauge(name: str, text: str) -> Gauge:
            return Gauge(f"streamlog_remote_{operation}_{name}", text, registry=registry)

        self._throttled = Counter(
            f"streamlog_remote_{operation}_throttles",
            "Calls that had to wait for the quota, or were turned away.",
            registry=registry,
        )
        gauge("throttle_time_avg_ms", "Mean wait for the quota, of the last minute.").set_function(
            self._average_ms
        )
        gauge(
            "throttle_time_max_ms", "Longest wait for the quota in the last minute."
        ).set_function(lambda: max(self._recent_ms(), default=0.0))
        self._rate = gauge("quota_bytes_per_second", "The quota; 9.2e18: there is none.")
        self._rate.set(window.rate)

    @property
    def rate(self) -> int:
        """Bytes a second."""
        return self._window.rate

    def set_rate(self, rate: int) -> None:
        """Bytes a second; UNLIMITED: there is no quota."""
        if rate != self._window.rate:
            self._window.set_rate(rate, self._clock.monotonic())
            self._rate.set(rate)
            self._wake()

    async def before_segment(
        self, size_bytes: int, *, may_wait: bool, is_wanted: Callable[[], bool] = lambda: True
    ) -> bool:
        """As CopyQuota.before_segment. A wait that is cancelled has recorded nothing."""
        # Room goes to those in line first.
        if not self._in_line and not self._wait_s():
            self.record(size_bytes)
            return True
        if not may_wait:
            self._throttled.inc()
            return False
        self._in_line += 1
        try:
            with self._throttling():
                async with self._turn:
                    while wait_s := self._wait_s():
                        await self._change(wait_s)
                    if not is_wanted():
                        return False
                    self.record(size_bytes)
        finally:
            self._in_line -= 1
        return True

    async def until_room(self, deadline: float) -> bool:
        """As FetchQuota.until_room."""
        if self.has_room():
            return True
        with self._throttling():
            return await self._until(deadline)

    @contextmanager
    def reading(self) -> Iterator[bool]:
        """As FetchQuota.reading."""
        if not self.has_room():
            yield False
            return
        self._reads += 1
        try:
            yield True
        finally:
            self._reads -= 1
            if self._window.rate < UNLIMITED:
                self._wake()

    def has_room(self) -> bool:
        """As FetchQuota.has_room."""
        if self._window.rate >= UNLIMITED:
            return True
        return self._reads < self._reads_max and not self._wait_s()

    def record(self, size_bytes: int) -> None:
        """Bytes that are used now."""
        self._window.record(size_bytes, self._clock.monotonic())

    async def _until(self, deadline: float) -> bool:
        while not self.has_room():
            left_s = deadline - self._clock.monotonic()
            if left_s <= 0:
                return False
            # Without a wait it is for a read to end.
            await self._change(min(self._wait_s() or left_s, left_s))
        return True

    def _wait_s(self) -> float:
        return self._window.wait_s(self._clock.monotonic())

    def _wake(self) -> None:
        """Has all who wait look again."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def _change(self, timeout_s: float) -> None:
        """Returns when something changes, or after the time."""
        changed = asyncio.ensure_future(self._changed.wait())
        try:
            await asyncio.wait({changed}, timeout=timeout_s)
        finally:
            changed.cancel()

    @contextmanager
    def _throttling(self) -> Iterator[None]:
        self._throttled.inc()
        began = self._clock.monotonic()
        try:
            yield
        finally:
            now = self._clock.monotonic()
            if now > began:
                self._waits.append((now, (now - began) * 1000))

    def _recent_ms(self) -> list[float]:
        while self._waits and self._waits[0][0] <= self._clock.monotonic() - WAITS_KEPT_S:
            self._waits.popleft()
        return [waited_ms for _, waited_ms in self._waits]

    def _average_ms(self) -> float:
        recent = self._recent_ms()
        return sum(recent) / len(recent) if recent else 0.0


def remote_quota(
    operation: str,
    rate: int,
    buckets: int,
    bucket_s: float,
    clock: Clock,
    registry: CollectorRegistry,
    reads_max: int = 1,
) -> RemoteQuota:
    """A quota whose window begins now, and is empty."""
    window = ByteWindow(rate, buckets, bucket_s, clock.monotonic())
    return RemoteQuota(operation, window, clock, registry, reads_max)


__all__ = ["UNLIMITED", "RemoteQuota", "remote_quota"]
