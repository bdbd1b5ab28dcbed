"""One client id with quotas: what it used, and how long it is throttled.

A charge is made when the work is there (bytes received, an answer made, time spent), and its answer
says for how long the client is throttled: until its rate is the quota's again, as Kafka computes
it. A single request may pass the quota; the next one waits.

1. A throttle of bytes lasts the whole window at most: then all that was charged has been forgotten.
   That is below the time after which clients give a request up.
2. A throttle of `request_percentage` lasts one sample at most, as in Kafka.
3. Listeners that know connections let one wait for it (Kafka's). Those that do not await `turn`,
   which lets the client's requests of a kind through one after the other. `WAITING_MAX` of them may
   wait: each is a request under way, whose number is bounded for all clients together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from streamlog.errors import QuotaExceeded
from streamlog.runtime.clock import Clock
from streamlog.runtime.rate_window import RateWindow
from streamlog.server.limits.quotas.quota_values import QuotaKind, QuotaValues
from streamlog.server.metrics import ClientMetrics

WAITING_MAX = 64
"""Requests of one client and kind that wait for their turn."""


FETCHED_AT_LEAST_S = 0.1
"""Seconds of the quota that an answer may have, whatever was used before."""


class QuotaWindows:
    """How the rates of all clients are measured: Kafka's `quota.window.num` samples of
    `quota.window.size.seconds`."""

    def __init__(self, clock: Clock, samples: int, sample_s: float) -> None:
        self.clock = clock
        self.samples = samples
        self.sample_s = sample_s

    @property
    def window_s(self) -> float:
        return self.samples * self.sample_s

    def new(self) -> RateWindow:
        return RateWindow(self.clock, self.samples, self.sample_s)


class _Measured:
    """One kind of use by one client."""

    __slots__ = ("lock", "reserved", "throttled_until", "waiting", "window")

    def __init__(self, windows: QuotaWindows) -> None:
        self.window = windows.new()
        self.throttled_until = 0.0
        """On the clock."""
        self.lock: asyncio.Lock | None = None
        self.reserved = 0
        """Bytes that fetches under way may still return."""
        self.waiting = 0
        """Requests that wait for their turn."""


class LimitedClient:
    """`values` may be replaced at any time, and counts from the next charge on."""

    __slots__ = ("_measured", "_metrics", "_windows", "client_id", "values")

    def __init__(
        self, client_id: str, values: QuotaValues, windows: QuotaWindows, metrics: ClientMetrics
    ) -> None:
        self.client_id = client_id
        self.values = values
        self._windows = windows
        self._metrics = metrics
        self._measured: dict[QuotaKind, _Measured] = {}

    def produced(self, size_bytes: int) -> int:
        """Charges a produce request; for how many milliseconds the client is throttled, or 0."""
        bound = self.values.produce
        if bound is None:
            return 0
        return self._charge(QuotaKind.PRODUCE, size_bytes, bound, self._windows.window_s)

    def fetched(self, size_bytes: int) -> int:
        """Charges the answer to a fetch; as `produced`."""
        bound = self.values.fetch
        if bound is None:
            return 0
        return self._charge(QuotaKind.FETCH, size_bytes, bound, self._windows.window_s)

    async def produce_turn(self, size_bytes: int) -> int:
        """Waits until the client may produce, then charges the request, as `produced`.

        Cancelled while it waits, it has charged nothing.
        """
        await self.turn(QuotaKind.REQUEST)
        await self.turn(QuotaKind.PRODUCE)
        return self.produced(size_bytes)

    def worked(self, seconds: float) -> int:
        """Charges time on the event loop; as `produced`."""
        bound = self.values.request
        if bound is None:
            return 0
        return self._charge(QuotaKind.REQUEST, seconds * 100, bound, self._windows.sample_s)

    @property
    def is_work_measured(self) -> bool:
        return self.values.request is not None

    @contextmanager
    def fetching(self, max_bytes: int) -> Iterator[int]:
        """`max_bytes` of a fetch, or less: what its answer may have without a throttle. Entered
        while it reads; its answer is charged then.

        Fetches of other connections that read meanwhile have their part of it already: each would
        get all that the window may hold, and be throttled for the window at most. Where nothing is
        left, a fetch gets `FETCHED_AT_LEAST_S` of the quota, and not single batches.
        """
        bound = self.values.fetch
        if bound is None:
            yield max_bytes
            return
        measured = self._of(QuotaKind.FETCH)
        room = max(measured.window.room(bound) - measured.reserved, bound * FETCHED_AT_LEAST_S)
        size = max(1, min(max_bytes, int(room)))
        measured.reserved += size
        try:
            yield size
        finally:
            measured.reserved -= size

    async def turn(self, kind: QuotaKind) -> None:
        """Waits until the client is not throttled for `kind`; first come, first served.

        What the caller charges next, before it waits for anything, counts for those behind it.
        Cancelled, it has changed nothing. Errors: QuotaExceeded, where too many wait already.
        """
        measured = self._measured.get(kind)
        if measured is None or not (measured.waiting or self._wait_s(measured) > 0):
            return
        if measured.waiting >= WAITING_MAX:
            raise QuotaExceeded(
                f"client id {self.client_id!r} is above its {kind.value}, and {WAITING_MAX} of its "
                "requests wait for their turn already; send fewer at once",
                retry_after_ms=round(self._wait_s(measured) * 1000),
            )
        if measured.lock is None:
            measured.lock = asyncio.Lock()
        measured.waiting += 1
        try:
            async with measured.lock:
                # Once: who charges the client meanwhile cannot make this one wait without end.
                await asyncio.sleep(self._wait_s(measured))
        finally:
            measured.waiting -= 1

    def _wait_s(self, measured: _Measured) -> float:
        return max(0.0, measured.throttled_until - self._windows.clock.monotonic())

    def is_idle(self) -> bool:
        """Whether nothing is left of what was charged: a new one in its place is the same."""
        now = self._windows.clock.monotonic()
        return all(
            measured.throttled_until <= now
            and measured.window.is_empty()
            and not (measured.waiting or measured.reserved)
            for measured in self._measured.values()
        )

    def _of(self, kind: QuotaKind) -> _Measured:
        measured = self._measured.get(kind)
        if measured is None:
            measured = self._measured[kind] = _Measured(self._windows)
        return measured

    def _charge(self, kind: QuotaKind, amount: float, bound: float, throttle_s_max: float) -> int:
        measured = self._of(kind)
        measured.window.record(amount)
        throttle_ms = round(min(measured.window.wait_s(bound), throttle_s_max) * 1000)
        if throttle_ms > 0:
            throttle_s = throttle_ms / 1000
            until = self._windows.clock.monotonic() + throttle_s
            measured.throttled_until = max(measured.throttled_until, until)
            self._metrics.throttled(self.client_id, kind.value, throttle_s)
        return throttle_ms
